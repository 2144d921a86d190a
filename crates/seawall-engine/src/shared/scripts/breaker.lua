-- The twin of seawall-core's guard: phases, generations, leased probes, a window of ten slots. A breaker is one array
-- of numbers, in the order in which the engine's code writes and reads them too.
local CLOSED, RAMPING, OPEN, HALF_OPEN, FORCED_OPEN, FORCED_CLOSED = 0, 1, 2, 3, 4, 5
local ENFORCE, SHADOW, OFF = 1, 2, 3
local WHOLE, RAMP_START, SLOTS, MOST_PROBES = 1000000, 100000, 10, 1000
local FAILURE_RATE, SLOW_RATE, CONSECUTIVE, OPEN_ELAPSED, PROBE_FAILED, PROBES_SUCCEEDED = 1, 2, 3, 4, 5, 7
-- Places in the array. Slots and probes follow the fixed part.
local PHASE, SINCE, UNTIL, LENGTH, SUCCESSES, CREDIT = 1, 2, 3, 4, 5, 6
local GENERATION, FAILED_IN_A_ROW, CROSSED, OPENED_FOR = 7, 8, 9, 10
local SUM, FILLING, SLOT_END, SLOT, CURRENT, RING, PROBES = 11, 14, 17, 18, 19, 20, 50
local FREE = -1

local function fresh()
  local b = {}
  for i = 1, PROBES - 1 do b[i] = 0 end
  return b
end

-- Twelve numbers from `first` on.
local function read_policy(first)
  local function number(n) return tonumber(ARGV[first + n]) end
  return {
    mode = number(0), window = number(1), failure_rate = number(2), min_calls = number(3), consecutive = number(4),
    slow = number(5), slow_rate = number(6), open = number(7), open_max = number(8), probes = number(9),
    successes = number(10), ramp = number(11),
  }
end

-- What is stored; else what the asker brings along from before the store was emptied; else a fresh one.
local function load_breaker(key, seed)
  local stored = redis.call('GET', key)
  if stored then return cmsgpack.unpack(stored), true end
  if seed > #ARGV then return fresh(), false end
  local b = {}
  for i = seed, #ARGV do b[i - seed + 1] = tonumber(ARGV[i]) end
  return b, false
end

local function store_breaker(key, policy, b, now)
  local last = max(policy.window, policy.open_max, policy.ramp, policy.open) * 2
  for i = PROBES, #b do last = max(last, b[i] - now) end
  -- What a hand holds is not let go by time.
  if b[PHASE] >= FORCED_OPEN then last = math.huge end
  keep(key, cmsgpack.pack(b), max(last, b[UNTIL] - now) + 600000000)
end

local function enter(b, phase)
  for i = #b, PROBES, -1 do b[i] = nil end
  for i = PHASE, CREDIT do b[i] = 0 end
  b[PHASE] = phase
  b[GENERATION] = (b[GENERATION] + 1) % 4294967296
end

local function open(b, length, since)
  enter(b, OPEN)
  b[SINCE], b[UNTIL], b[LENGTH] = since, since + length, length
end

local function clear_window(b)
  for i = SUM, PROBES - 1 do b[i] = 0 end
end

local function close(b)
  b[FAILED_IN_A_ROW], b[CROSSED] = 0, 0
  clear_window(b)
  enter(b, CLOSED)
end

local function doubled(policy, length) return min(length * 2, max(policy.open_max, policy.open)) end

local function first_expiry(b)
  local first
  for i = PROBES, #b do
    if b[i] ~= FREE and (not first or b[i] < first) then first = b[i] end
  end
  return first
end

-- What time alone has done: from, to, cause, at; or nothing.
local function settle(b, policy, now)
  if b[PHASE] == OPEN then
    if now < b[UNTIL] then return nil end
    local at, length = b[UNTIL], b[LENGTH]
    b[OPENED_FOR] = b[OPENED_FOR] + max(at - b[SINCE], 0)
    enter(b, HALF_OPEN)
    b[LENGTH] = length
    for i = 0, min(max(policy.probes, 1), MOST_PROBES) - 1 do b[PROBES + i] = FREE end
    return { OPEN, HALF_OPEN, OPEN_ELAPSED, at }
  end
  return nil
end

local function release(b, slot)
  if slot >= 0 and PROBES + slot <= #b then b[PROBES + slot] = FREE end
end
