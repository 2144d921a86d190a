-- What an attempt did to a key. Follows: what (0 nothing, 1 succeeded, 2 failed, 3 refused, 4 unused, 5 cool the key, 6 cool its
-- group; by hand: 7 rest, 8 as good as new), the key, whether it was a probe, a detail, a seed. Answers: now, pool.
-- The detail: of a success, one more than the key that was refused for the same request, or zero; of a refusal, the request's mark;
-- otherwise how long to cool from now.
local SUCCEEDED, FAILED, REFUSED, UNUSED, COOL_KEY, COOL_GROUP, REST, RESTORE = 1, 2, 3, 4, 5, 6, 7, 8
local what, key, probe, detail = tonumber(ARGV[rest]), tonumber(ARGV[rest + 1]), ARGV[rest + 2] == '1', tonumber(ARGV[rest + 3])
local p = load_pool(rest + 4)

local function fail(of) p[at(of, FAILS)] = min(p[at(of, FAILS)] + 1, 4294967295) end

if what == SUCCEEDED then
  p[at(key, FAILS)] = max(p[at(key, FAILS)] - 1, 0)
  forget_refusals(p, key)
  if probe then p[at(key, PROBE_AT)], p[at(key, PAUSE)] = LIVE, 0 end
  local refused = detail - 1
  if refused >= 0 and refused < count then
    fail(refused)
    if p[at(refused, PROBE_AT)] == LIVE then p[at(refused, PROBE_AT)], p[at(refused, PAUSE)] = now + FIRST_PROBE, FIRST_PROBE end
  end
elseif what == FAILED then
  fail(key)
elseif what == REFUSED then
  fail(key)
  local first, second = of_refusal(key, 0), of_refusal(key, 1)
  if p[at(key, PROBE_AT)] == LIVE and p[first] ~= detail and p[second] ~= detail then
    if p[first] == 0 then
      p[first] = detail
    elseif p[second] == 0 then
      p[second] = detail
    else
      p[at(key, PROBE_AT)], p[at(key, PAUSE)] = now + UNPROVEN_PROBE, UNPROVEN_PROBE
    end
  end
elseif what == UNUSED then
  p[at(key, USES)] = max(p[at(key, USES)] - 1, 0)
  if probe and p[at(key, PROBE_AT)] ~= LIVE then
    p[at(key, PAUSE)] = max(math.floor(p[at(key, PAUSE)] / 2), FIRST_PROBE)
    p[at(key, PROBE_AT)] = now
  end
elseif what == COOL_KEY then
  fail(key)
  p[at(key, COOL)] = max(p[at(key, COOL)], now + detail)
elseif what == COOL_GROUP then
  fail(key)
  local group = of_group(group_of[key])
  p[group] = max(p[group], now + detail)
elseif what == REST then
  p[at(key, COOL)] = max(p[at(key, COOL)], now + detail)
elseif what == RESTORE then
  p[at(key, FAILS)], p[at(key, PROBE_AT)], p[at(key, PAUSE)], p[at(key, COOL)] = 0, LIVE, 0, 0
  p[of_group(group_of[key])] = 0
  forget_refusals(p, key)
end
store_pool(p)
return with_pool(p, { now })
