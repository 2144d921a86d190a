-- The twin of seawall-core's admit/limit.rs and admit/limit/window.rs. A cell is three numbers: `at`, and `held`,
-- which windows divide into the calls of the current window and of the one before.
local TOKEN, LEAKY, FIXED, SLIDING = 1, 2, 3, 4
local ENFORCE, SHADOW, OFF = 1, 2, 3
local GO, REFUSED, TOO_COSTLY = 0, 1, 2

local function load_cell(key)
  local stored = redis.call('GET', key)
  if not stored then return { at = 0, held = 0, before = 0 } end
  local at, held, before = cmsgpack.unpack(stored)
  return { at = at, held = held, before = before }
end

local function store_cell(key, limit, cell, now)
  local last = max(cell.at, cell.held)
  if limit.algorithm == FIXED or limit.algorithm == SLIDING then last = cell.at + 2 * limit.per end
  keep(key, cmsgpack.pack(cell.at, cell.held, cell.before), last - now)
end

-- Six numbers for each layer, from `first` on.
local function read_limit(first)
  local function number(n) return tonumber(ARGV[first + n]) end
  return {
    algorithm = number(0), mode = number(1), interval = number(2),
    depth = number(3), capacity = number(4), per = number(5),
  }
end

local take = {}

take[TOKEN] = function(limit, cell, now, cost)
  local full_at = max(cell.at, now) + limit.interval * cost
  local ready = max(full_at - limit.depth, cell.held)
  if now < ready then return REFUSED, ready end
  cell.at = full_at
  return GO, 0
end

take[LEAKY] = function(limit, cell, now, cost)
  local turn = max(cell.at, cell.held, now)
  local after = turn - now
  if after > limit.depth then return REFUSED, turn - limit.depth end
  cell.at = turn + limit.interval * cost
  return GO, after
end

take[FIXED] = function(limit, cell, now, cost)
  if now < cell.at then return REFUSED, cell.at end
  if cell.held == 0 or now - cell.at >= limit.per then
    cell.at, cell.held = now, cost
    return GO, 0
  end
  if cell.held + cost > limit.capacity then return REFUSED, cell.at + limit.per end
  cell.held = cell.held + cost
  return GO, 0
end

local function rolled(limit, cell, now)
  local passed = now - cell.at
  if passed < limit.per and (cell.held ~= 0 or cell.before ~= 0) then return cell.at, cell.held, cell.before end
  if passed < 2 * limit.per and cell.held ~= 0 then return cell.at + limit.per, 0, cell.held end
  return now, 0, 0
end

-- n × x as two numbers of base 2^26, exact for n up to 2^25 and x below 2^53.
local function product(n, x)
  local low = x % 67108864
  local high = (x - low) / 67108864
  local foot = n * low
  local rest = foot % 67108864
  return n * high + (foot - rest) / 67108864, rest
end

local function sliding_ready(limit, at, current, before, cost)
  local start, older, room = at + limit.per, current, limit.capacity - cost
  if current + cost <= limit.capacity then start, older, room = at, before, limit.capacity - current - cost end
  older = max(older, 1)
  local covered = limit.per
  if room < older then
    local rest = limit.per % older
    covered = room * ((limit.per - rest) / older) + math.floor(room * rest / older)
  end
  return start + limit.per - min(covered, limit.per)
end

take[SLIDING] = function(limit, cell, now, cost)
  if now < cell.at then return REFUSED, cell.at end
  local at, current, before = rolled(limit, cell, now)
  local room = limit.capacity - current - cost
  local over = room < 0
  if not over then
    local used_high, used_low = product(before, limit.per - (now - at))
    local room_high, room_low = product(room, limit.per)
    over = used_high > room_high or (used_high == room_high and used_low > room_low)
  end
  if over then return REFUSED, sliding_ready(limit, at, current, before, cost) end
  cell.at, cell.held, cell.before = at, current + cost, before
  return GO, 0
end

local function take_from(limit, cell, now, cost)
  if cost > limit.capacity then return TOO_COSTLY, limit.capacity end
  return take[limit.algorithm](limit, cell, now, cost)
end

local function copy(cell) return { at = cell.at, held = cell.held, before = cell.before } end
