-- What every script begins with. Time is in ticks of 100 ns since 2020: a Lua number holds whole numbers below 2^53,
-- which is 28 years of ticks but only 104 days of nanoseconds. The server's own clock decides, so that instances whose
-- clocks differ still share one order of events; a test hands the time in instead.
local function read_clock(given)
  local now = tonumber(given)
  if now > 0 then return now end
  local time = redis.call('TIME')
  return (tonumber(time[1]) - 1577836800) * 10000000 + tonumber(time[2]) * 10
end

-- Ends with the value that still means something, and a second more. Never beyond forty days.
local function life(ticks) return math.min(math.max(math.ceil(ticks / 10000), 0) + 1000, 3456000000) end

local function keep(key, value, ticks)
  redis.call('SET', key, value, 'PX', string.format('%.0f', life(ticks)))
end

local max, min = math.max, math.min
