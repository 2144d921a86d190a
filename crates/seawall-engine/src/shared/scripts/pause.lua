-- The twin of seawall-core's guard/pause.rs. A provider asked everybody to stay away. KEYS: the pause. ARGV: now, for how long.
-- Answers: now, until when it lasts. A pause is an array: its end, when a probe is let through, how long after the probe before.
local FIRST_GAP = 500000
local now = read_clock(ARGV[1])
local till = now + tonumber(ARGV[2])
local stored = redis.call('GET', KEYS[1])
local pause = stored and cmsgpack.unpack(stored) or { 0, 0, 0 }
if pause[1] <= now then
  local gap = min(FIRST_GAP, till - now)
  pause = { till, now + gap, gap }
else
  pause[1] = max(pause[1], till)
end
keep(KEYS[1], cmsgpack.pack(pause), pause[1] - now)
return { now, pause[1] }
