-- What an attempt did to a key. Follows: what (0 nothing, 1 succeeded, 2 failed, 3 rejected, 4 unused, 5 cool the key, 6 cool its
-- group; by hand: 7 rest, 8 as good as new), the key, whether it was a probe, how long to cool from now, a seed. Answers: now, pool.
local SUCCEEDED, FAILED, REJECTED, UNUSED, COOL_KEY, COOL_GROUP, REST, RESTORE = 1, 2, 3, 4, 5, 6, 7, 8
local what, key, probe, cool = tonumber(ARGV[rest]), tonumber(ARGV[rest + 1]), ARGV[rest + 2] == '1', tonumber(ARGV[rest + 3])
local p = load_pool(rest + 4)

local function fail() p[at(key, FAILS)] = min(p[at(key, FAILS)] + 1, 4294967295) end

if what == SUCCEEDED then
  p[at(key, FAILS)] = max(p[at(key, FAILS)] - 1, 0)
  if probe then p[at(key, PROBE_AT)], p[at(key, PAUSE)] = LIVE, 0 end
elseif what == FAILED then
  fail()
elseif what == REJECTED then
  fail()
  if p[at(key, PROBE_AT)] == LIVE then p[at(key, PROBE_AT)], p[at(key, PAUSE)] = now + FIRST_PROBE, FIRST_PROBE end
elseif what == UNUSED then
  p[at(key, USES)] = max(p[at(key, USES)] - 1, 0)
  if probe and p[at(key, PROBE_AT)] ~= LIVE then
    p[at(key, PAUSE)] = max(math.floor(p[at(key, PAUSE)] / 2), FIRST_PROBE)
    p[at(key, PROBE_AT)] = now
  end
elseif what == COOL_KEY then
  fail()
  p[at(key, COOL)] = max(p[at(key, COOL)], now + cool)
elseif what == COOL_GROUP then
  fail()
  local group = of_group(group_of[key])
  p[group] = max(p[group], now + cool)
elseif what == REST then
  p[at(key, COOL)] = max(p[at(key, COOL)], now + cool)
elseif what == RESTORE then
  p[at(key, FAILS)], p[at(key, PROBE_AT)], p[at(key, PAUSE)], p[at(key, COOL)] = 0, LIVE, 0, 0
  p[of_group(group_of[key])] = 0
end
store_pool(p)
return with_pool(p, { now })
