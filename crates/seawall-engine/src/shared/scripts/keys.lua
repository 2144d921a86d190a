-- The twin of seawall-core's lease/pool.rs. A pool is one array: where the next round begins, five numbers for each key
-- (failures, uses, when a dead one is probed, its pause, end of its cooldown), then the end of each group's cooldown, then for each
-- key the marks of the last two different requests that it was refused for since it was last accepted (zero: none), then for each key
-- and each group when its cooldown is probed next and the gap before that (-1: never), then for each key when a request was last
-- accepted with it (-1: never), then for each key and each group the time before which no throttle begins because a probe has ended one (zero: none).
local FEWEST_FAILURES, LEAST_USED, ROUND_ROBIN = 1, 2, 3
local FAILS, USES, PROBE_AT, PAUSE, COOL = 0, 1, 2, 3, 4
local TURN, LIVE = 1, -1
-- ARGV: now, pick, first and last pause of a dead key, the pause of one that nothing is proven of, how long a key is good after a
-- request was accepted with it, how long a probe that was answered keeps throttles from beginning, the first gap of its probes, how many keys, the
-- group of each (from zero), and what follows.
local now, pick = read_clock(ARGV[1]), tonumber(ARGV[2])
local FIRST_PROBE, LAST_PROBE, UNPROVEN_PROBE = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local PROVEN_GOOD, MAX_DISPROVED, FIRST_GAP, NEVER = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), -1
local count, group_of, groups = tonumber(ARGV[9]), {}, 0
for i = 0, count - 1 do
  group_of[i] = tonumber(ARGV[10 + i])
  groups = max(groups, group_of[i] + 1)
end
local rest = 10 + count

local function at(key, field) return 2 + key * 5 + field end
local function of_group(group) return 2 + count * 5 + group end
local function of_refusal(key, slot) return 2 + count * 5 + groups + key * 2 + slot end

-- Where the probes of a cooldown are written, of a key or of a group.
local function of_key_probe(key) return 2 + count * 7 + groups + key * 2 end
local function of_group_probe(group) return 2 + count * 9 + groups + group * 2 end
local function of_accepted(key) return 2 + count * 9 + groups * 3 + key end
local function of_key_disproved(key) return 2 + count * 10 + groups * 3 + key end
local function of_group_disproved(group) return 2 + count * 11 + groups * 3 + group end
local function last_place() return 1 + count * 11 + groups * 4 end

local function was_refused_for(p, key, request)
  return request ~= 0 and (p[of_refusal(key, 0)] == request or p[of_refusal(key, 1)] == request)
end

-- The provider asked for a wait. A cooldown that lasts already keeps its schedule, and one that a probe has disproved does not begin again.
local function throttle(p, cool, probe, disproved, length)
  if now < p[disproved] then return end
  if p[cool] <= now then
    local gap = min(FIRST_GAP, length)
    p[probe], p[probe + 1] = now + gap, gap
  end
  p[cool] = max(p[cool], now + length)
end

local function never_probe(p, probe) p[probe], p[probe + 1] = NEVER, 0 end

local function forget_refusals(p, key) p[of_refusal(key, 0)], p[of_refusal(key, 1)] = 0, 0 end

local function load_pool(seed)
  local stored = redis.call('GET', KEYS[1])
  if stored then
    local p = cmsgpack.unpack(stored)
    -- Written by a version that kept less.
    for i = #p + 1, of_refusal(count, 0) - 1 do p[i] = 0 end
    for i = #p + 1, of_accepted(0) - 1, 2 do never_probe(p, i) end
    for i = #p + 1, of_key_disproved(0) - 1 do p[i] = NEVER end
    for i = #p + 1, last_place() do p[i] = 0 end
    return p
  end
  local p = { 0 }
  for key = 0, count - 1 do
    for field = FAILS, COOL do p[at(key, field)] = 0 end
    p[at(key, PROBE_AT)] = LIVE
  end
  for group = 0, groups - 1 do p[of_group(group)] = 0 end
  for key = 0, count - 1 do forget_refusals(p, key) end
  for i = of_key_probe(0), of_accepted(0) - 1, 2 do never_probe(p, i) end
  for key = 0, count - 1 do p[of_accepted(key)] = NEVER end
  for i = of_key_disproved(0), last_place() do p[i] = 0 end
  if #ARGV - seed + 1 == #p then
    for i = seed, #ARGV do p[i - seed + 1] = tonumber(ARGV[i]) end
  end
  return p
end

local function store_pool(p)
  local last = LAST_PROBE
  for key = 0, count - 1 do last = max(last, p[at(key, COOL)] - now, p[at(key, PROBE_AT)] - now) end
  for group = 0, groups - 1 do last = max(last, p[of_group(group)] - now) end
  keep(KEYS[1], cmsgpack.pack(p), last + LAST_PROBE)
end

local function with_pool(p, answer)
  for i = 1, #p do answer[#answer + 1] = p[i] end
  return answer
end
