-- A probe of some pauses was answered: they are over, and do not begin again before they would have ended, or before that time has
-- passed if it is shorter. KEYS: the pauses. ARGV: now, that time. Answers: now.
local now, MAX_DISPROVED = read_clock(ARGV[1]), tonumber(ARGV[2])
for i = 1, #KEYS do
  local stored = redis.call('GET', KEYS[i])
  local pause = stored and cmsgpack.unpack(stored)
  if pause and now < pause[1] then
    local disproved = min(pause[1], now + MAX_DISPROVED)
    keep(KEYS[i], cmsgpack.pack({ 0, 0, 0, disproved }), disproved - now)
  end
end
return { now }
