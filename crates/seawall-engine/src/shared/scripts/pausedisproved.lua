-- A probe of some pauses was answered: they are over, and do not begin again before they would have ended. KEYS: the pauses. ARGV: now.
-- Answers: now.
local now = read_clock(ARGV[1])
for i = 1, #KEYS do
  local stored = redis.call('GET', KEYS[i])
  local pause = stored and cmsgpack.unpack(stored)
  if pause and now < pause[1] then keep(KEYS[i], cmsgpack.pack({ 0, 0, 0, pause[1] }), pause[1] - now) end
end
return { now }
