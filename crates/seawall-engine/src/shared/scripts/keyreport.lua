-- What an attempt did to a key. Follows: what (0 nothing, 1 succeeded, 2 failed, 3 refused, 4 unused, 5 cool the key, 6 cool its
-- group; by hand: 7 rest, 8 as good as new; 9 throttle the key, 10 throttle its group, 11 a probe was answered), the key, whether it was a probe, a detail, a seed. Answers: now, pool.
-- The detail: of a success, one more than the key that was refused for the same request, or zero; of a refusal, the request's mark;
-- otherwise how long to cool from now.
local SUCCEEDED, FAILED, REFUSED, UNUSED, COOL_KEY, COOL_GROUP, REST, RESTORE = 1, 2, 3, 4, 5, 6, 7, 8
local THROTTLE_KEY, THROTTLE_GROUP, ANSWERED = 9, 10, 11
local what, key, probe, detail = tonumber(ARGV[rest]), tonumber(ARGV[rest + 1]), ARGV[rest + 2] == '1', tonumber(ARGV[rest + 3])
local p = load_pool(rest + 4)

local group = group_of[key]
local cool, key_probe, key_disproved = at(key, COOL), of_key_probe(key), of_key_disproved(key)
local group_cool, group_probe, group_disproved = of_group(group), of_group_probe(group), of_group_disproved(group)

-- A probe was answered: what the provider asked for is over, what a quota or an operator says is not.
local function probe_answered(of, probed, disproved)
  if p[probed] ~= NEVER then
    p[disproved] = min(p[of], now + MAX_DISPROVED)
    p[of] = 0
    never_probe(p, probed)
  end
end

local function probe_returned(probed)
  if p[probed] ~= NEVER then
    p[probed], p[probed + 1] = min(p[probed], now), max(math.floor(p[probed + 1] / 2), FIRST_GAP)
  end
end

local function fail(of) p[at(of, FAILS)] = min(p[at(of, FAILS)] + 1, 4294967295) end

if what == SUCCEEDED then
  p[at(key, FAILS)] = max(p[at(key, FAILS)] - 1, 0)
  forget_refusals(p, key)
  p[of_accepted(key)] = now
  if probe then
    p[at(key, PROBE_AT)], p[at(key, PAUSE)] = LIVE, 0
    probe_answered(cool, key_probe, key_disproved)
    probe_answered(group_cool, group_probe, group_disproved)
  end
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
  if detail ~= 0 and not was_refused_for(p, key, detail) then
    if p[first] == 0 then
      p[first] = detail
    elseif p[second] == 0 then
      p[second] = detail
    else
      p[first], p[second] = p[second], detail
      local accepted = p[of_accepted(key)]
      local is_good = accepted ~= NEVER and max(now - accepted, 0) < PROVEN_GOOD
      if p[at(key, PROBE_AT)] == LIVE and not is_good then
        p[at(key, PROBE_AT)], p[at(key, PAUSE)] = now + UNPROVEN_PROBE, UNPROVEN_PROBE
      end
    end
  end
elseif what == UNUSED then
  p[at(key, USES)] = max(p[at(key, USES)] - 1, 0)
  if probe and p[at(key, PROBE_AT)] ~= LIVE then
    if p[at(key, PAUSE)] ~= UNPROVEN_PROBE then p[at(key, PAUSE)] = max(math.floor(p[at(key, PAUSE)] / 2), FIRST_PROBE) end
    p[at(key, PROBE_AT)] = now
  end
  if probe then
    probe_returned(key_probe)
    probe_returned(group_probe)
  end
elseif what == COOL_KEY or what == REST then
  if what == COOL_KEY then fail(key) end
  p[cool] = max(p[cool], now + detail)
  never_probe(p, key_probe)
elseif what == COOL_GROUP then
  fail(key)
  p[group_cool] = max(p[group_cool], now + detail)
  never_probe(p, group_probe)
elseif what == THROTTLE_KEY then
  fail(key)
  throttle(p, cool, key_probe, key_disproved, detail)
elseif what == ANSWERED then
  if probe then
    probe_answered(cool, key_probe, key_disproved)
    probe_answered(group_cool, group_probe, group_disproved)
  end
elseif what == THROTTLE_GROUP then
  fail(key)
  throttle(p, group_cool, group_probe, group_disproved, detail)
elseif what == RESTORE then
  p[at(key, FAILS)], p[at(key, PROBE_AT)], p[at(key, PAUSE)], p[cool] = 0, LIVE, 0, 0
  p[group_cool], p[key_disproved], p[group_disproved] = 0, 0, 0
  never_probe(p, key_probe)
  never_probe(p, group_probe)
  forget_refusals(p, key)
end
store_pool(p)
return with_pool(p, { now })
