-- A key for one send. Follows: the tried keys as a text of 0 and 1, the request's mark, a seed. Answers: kind, key, probe, wait, now,
-- pool; a wait of -1 that nobody knows.
local LEASED, COOLING, DEAD = 0, 1, 2
local tried, request, p = ARGV[rest], tonumber(ARGV[rest + 1]), load_pool(rest + 2)

local function is_tried(key) return string.sub(tried, key + 1, key + 1) == '1' end
local function is_dead(key) return p[at(key, PROBE_AT)] ~= LIVE end
local function cooling(key) return max(p[at(key, COOL)] - now, p[of_group(group_of[key])] - now, 0) end
local function is_warm(key) return not is_tried(key) and cooling(key) == 0 end
-- When a rejected key is probed with this request: later where it was refused for it already.
local function probe_at(key)
  return p[at(key, PROBE_AT)] + (was_refused_for(p, key, request) and UNPROVEN_PROBE or 0)
end

local function leased(key, probe)
  p[TURN] = key + 1 == count and 0 or key + 1
  p[at(key, USES)] = p[at(key, USES)] + 1
  store_pool(p)
  return with_pool(p, { LEASED, key, probe, 0, now })
end

-- A probe of a cooldown that is due is sent now, and the next one comes after twice the gap.
local function probe_sent(cool, probe)
  if p[cool] > now and p[probe] ~= NEVER and now >= p[probe] then
    p[probe + 1] = p[probe + 1] * 2
    p[probe] = now + p[probe + 1]
  end
end

-- Steps from the place where this round begins: fewer than there are keys.
local function distance(key) return key >= p[TURN] and key - p[TURN] or key + count - p[TURN] end

local function weight(key)
  if pick == FEWEST_FAILURES then return p[at(key, FAILS)] * count + distance(key) end
  if pick == LEAST_USED then return p[at(key, USES)] end
  return distance(key)
end

for key = 0, count - 1 do
  if is_dead(key) and is_warm(key) and now >= probe_at(key) then
    if p[at(key, PAUSE)] ~= UNPROVEN_PROBE then p[at(key, PAUSE)] = min(p[at(key, PAUSE)] * 2, LAST_PROBE) end
    p[at(key, PROBE_AT)] = now + p[at(key, PAUSE)]
    probe_sent(at(key, COOL), of_key_probe(key))
    probe_sent(of_group(group_of[key]), of_group_probe(group_of[key]))
    return leased(key, 1)
  end
end
local best, lightest
for key = 0, count - 1 do
  if not is_dead(key) and is_warm(key) and (not best or weight(key) < lightest) then best, lightest = key, weight(key) end
end
if best then return leased(best, 0) end

-- No key is viable: one that cools, where its cooldown and its group's let a probe through.
local function is_due(cool, probe) return p[cool] > now and p[probe] ~= NEVER and now >= p[probe] end
local function passes(cool, probe) return p[cool] <= now or is_due(cool, probe) end
for key = 0, count - 1 do
  local group = group_of[key]
  local places = { { at(key, COOL), of_key_probe(key) }, { of_group(group), of_group_probe(group) } }
  if not is_dead(key) and not is_tried(key) and passes(places[1][1], places[1][2]) and passes(places[2][1], places[2][2]) then
    for _, place in ipairs(places) do probe_sent(place[1], place[2]) end
    return leased(key, 1)
  end
end

local untried, any
for key = 0, count - 1 do
  if not is_dead(key) then
    local wait = cooling(key)
    if not any or wait < any then any = wait end
    if not is_tried(key) and (not untried or wait < untried) then untried = wait end
  end
end
local wait = untried or any
if wait then return with_pool(p, { COOLING, 0, 0, wait, now }) end
for key = 0, count - 1 do
  local until_probe = max(probe_at(key) - now, cooling(key), 0)
  if not wait or until_probe < wait then wait = until_probe end
end
return with_pool(p, { DEAD, 0, 0, wait or -1, now })
