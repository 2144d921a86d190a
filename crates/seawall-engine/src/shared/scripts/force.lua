-- An operator's hand on the breaker. KEYS: the breaker. ARGV: now, the phase it is held in (0: let go), the policy, a seed.
-- Answers: now, the change (from, to, cause, age), then the breaker.
local now, held, policy = read_clock(ARGV[1]), tonumber(ARGV[2]), read_policy(3)
local FORCED = 8
local b = load_breaker(KEYS[1], 15)
local from = b[PHASE]
if from == OPEN then
  b[OPENED_FOR] = b[OPENED_FOR] + max(min(now, b[UNTIL]) - b[SINCE], 0)
  if now >= b[UNTIL] then from = HALF_OPEN end
elseif from == FORCED_OPEN then
  b[OPENED_FOR] = b[OPENED_FOR] + max(now - b[SINCE], 0)
end
close(b)
b[PHASE] = held
if held == FORCED_OPEN then b[SINCE] = now end
store_breaker(KEYS[1], policy, b, now)
local answer = { now, from, held, FORCED, 0 }
for i = 1, #b do answer[#answer + 1] = b[i] end
return answer
