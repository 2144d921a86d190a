-- What became of a permit. KEYS: the breaker. ARGV: now, the generation the asker knows, the permit that is given back
-- unused (generation, probe; generation -1: none), the one with a result (generation, probe, failed, latency;
-- generation -1: none), the policy, a seed. Answers: now, the change (from, to, cause, age; from -1: none), then the
-- breaker if it is another than known.
local now, known, policy = read_clock(ARGV[1]), tonumber(ARGV[2]), read_policy(9)
local cancelled, cancelled_probe = tonumber(ARGV[3]), tonumber(ARGV[4])
local generation, probe, latency = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
-- A second failure of the same call (2) is no further evidence.
local failed, repeated = ARGV[7] ~= '0', ARGV[7] == '2'
local b = load_breaker(KEYS[1], 21)

local function forget_current()
  local at = RING + b[CURRENT] * 3
  for i = 0, 2 do
    b[SUM + i] = max(b[SUM + i] - b[at + i], 0)
    b[at + i] = 0
  end
end

local function advance()
  local slot = max(math.floor(policy.window / SLOTS), 1)
  local start = now - now % slot
  local passed = math.floor(max(start - b[SLOT_END], 0) / slot) + 1
  if slot ~= b[SLOT] or passed >= SLOTS then
    clear_window(b)
    b[SLOT] = slot
  else
    for _ = 1, passed do
      local at = RING + b[CURRENT] * 3
      for i = 0, 2 do b[at + i], b[FILLING + i] = b[FILLING + i], 0 end
      b[CURRENT] = (b[CURRENT] + 1) % SLOTS
      forget_current()
    end
  end
  b[SLOT_END] = start + slot
end

local function trip()
  if policy.consecutive > 0 and b[FAILED_IN_A_ROW] >= policy.consecutive then return CONSECUTIVE end
  local calls, fails, slows = b[SUM], b[SUM + 1], b[SUM + 2]
  if calls < policy.min_calls then return nil end
  if fails > 0 and fails * WHOLE >= policy.failure_rate * calls then return FAILURE_RATE end
  if slows > 0 and slows * WHOLE >= policy.slow_rate * calls then return SLOW_RATE end
  return nil
end

local function count(slow)
  if failed and repeated then return nil end
  b[FAILED_IN_A_ROW] = failed and min(b[FAILED_IN_A_ROW] + 1, 4294967295) or 0
  if now >= b[SLOT_END] then advance() end
  local seen = { 1, failed and 1 or 0, slow and 1 or 0 }
  for i = 0, 2 do
    b[FILLING + i], b[SUM + i] = b[FILLING + i] + seen[i + 1], b[SUM + i] + seen[i + 1]
  end
  if b[SUM + 1] == 0 and b[SUM + 2] == 0 then
    b[CROSSED] = 0
    return nil
  end
  local cause = trip()
  if not cause then
    b[CROSSED] = 0
    return nil
  end
  if policy.mode == ENFORCE then
    open(b, policy.open, now)
    return { CLOSED, OPEN, cause, now }
  end
  local crossed = b[CROSSED]
  b[CROSSED] = 1
  if crossed == 1 then return nil end
  return { CLOSED, OPEN, cause, now }
end

local function record()
  if policy.mode == OFF then return nil end
  local slow = policy.slow > 0 and latency >= policy.slow
  if b[PHASE] == CLOSED or b[PHASE] == RAMPING then
    if generation ~= b[GENERATION] then return nil end
    return count(slow)
  end
  local lapse = settle(b, policy, now)
  if lapse then return lapse end
  if generation ~= b[GENERATION] or b[PHASE] ~= HALF_OPEN or probe < 0 then return nil end
  release(b, probe)
  if failed or slow then
    open(b, doubled(policy, b[LENGTH]), now)
    return { HALF_OPEN, OPEN, PROBE_FAILED, now }
  end
  b[SUCCESSES] = min(b[SUCCESSES] + 1, 4294967295)
  if b[SUCCESSES] < policy.successes then return nil end
  close(b)
  if policy.ramp > 0 then b[PHASE], b[SINCE], b[CREDIT] = RAMPING, now, WHOLE end
  return { HALF_OPEN, CLOSED, PROBES_SUCCEEDED, now }
end

if cancelled == b[GENERATION] and b[PHASE] == HALF_OPEN then release(b, cancelled_probe) end
local change = nil
if generation >= 0 then change = record() end
store_breaker(KEYS[1], policy, b, now)
local answer = { now, -1, 0, 0, 0 }
if change then answer = { now, change[1], change[2], change[3], now - change[4] } end
if b[GENERATION] ~= known or b[PHASE] ~= CLOSED then
  for i = 1, #b do answer[#answer + 1] = b[i] end
end
return answer
