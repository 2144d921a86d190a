-- Asks to send once. KEYS: the breaker, pauses that a server asked for. ARGV: now, how long a probe may be out, the generation the asker knows (-1:
-- none), the wait while probes are out, the policy, a seed. Answers: kind, wait, generation, probe, now, then the breaker if it is another than known.
local GO, REFUSED, FORCED, RAMP, PAUSED, PROBE = 0, 1, 2, 3, 4, 5
local now, lease, known, policy = read_clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), read_policy(5)
-- While all probes are out, a refused call may ask again after this.
local while_probing = tonumber(ARGV[4])
local b, stored = load_breaker(KEYS[1], 17)
local kind, wait, probe, changed = GO, 0, -1, false

-- Each pause that lasts refuses, unless its probe is due. A call that passes all of them is the probe of all of them.
local due, paused = {}, 0
for i = 2, #KEYS do
  local stored = redis.call('GET', KEYS[i])
  local pause = stored and cmsgpack.unpack(stored)
  if pause and now < pause[1] then
    if now >= pause[2] then due[#due + 1] = { KEYS[i], pause } else paused = max(paused, pause[1]) end
  end
end
if paused == 0 then
  for _, found in ipairs(due) do
    local key, pause = found[1], found[2]
    pause[3] = pause[3] * 2
    pause[2] = now + pause[3]
    keep(key, cmsgpack.pack(pause), pause[1] - now)
    kind = PROBE
  end
end

if now < paused then
  kind, wait = PAUSED, paused - now
elseif b[PHASE] == CLOSED then
  -- The path of a healthy upstream reads and does not write.
elseif policy.mode ~= ENFORCE and b[PHASE] ~= FORCED_OPEN then
  if policy.mode == SHADOW and b[PHASE] ~= FORCED_CLOSED then
    close(b)
    changed = true
  end
else
  while settle(b, policy, now) do changed = true end
  local phase = b[PHASE]
  if phase == RAMPING then
    changed = true
    local passed = max(now - b[SINCE], 0)
    if passed >= policy.ramp then
      for i = PHASE, CREDIT do b[i] = 0 end
    else
      b[CREDIT] = b[CREDIT] + RAMP_START + math.floor(passed * (WHOLE - RAMP_START) / max(policy.ramp, 1))
      if b[CREDIT] >= WHOLE then b[CREDIT] = b[CREDIT] - WHOLE else kind = RAMP end
    end
  elseif phase == OPEN then
    kind, wait = REFUSED, b[UNTIL] - now
  elseif phase == HALF_OPEN then
    for i = PROBES, #b do
      -- A lease that is over is of a probe that nobody will report on: its instance died, or never heard this answer.
      if b[i] == FREE or b[i] <= now then
        b[i], probe, changed = now + lease, i - PROBES, true
        break
      end
    end
    if probe < 0 then kind, wait = REFUSED, min(first_expiry(b) - now, while_probing) end
  elseif phase == FORCED_OPEN then
    kind = FORCED
  end
  -- Whoever is asked is not forgotten.
  changed = changed or phase >= FORCED_OPEN
end
if changed or (not stored and #ARGV >= 17) then store_breaker(KEYS[1], policy, b, now) end
local answer = { kind, wait, b[GENERATION], probe, now }
if b[GENERATION] ~= known or b[PHASE] ~= CLOSED then
  for i = 1, #b do answer[#answer + 1] = b[i] end
end
return answer
