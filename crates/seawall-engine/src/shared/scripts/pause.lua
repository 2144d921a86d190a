-- The twin of seawall-core's guard/pause.rs. A provider asked everybody to stay away. KEYS: the pause. ARGV: now, for how long, the
-- first gap of a pause's probes. Answers: now, until when it lasts, and until when it cannot begin because a probe has disproved it (0:
-- none has). A pause is an array: its end, when a probe is let through, how long after the probe before, before when it cannot begin.
local now, FIRST_GAP = read_clock(ARGV[1]), tonumber(ARGV[3])
local till = now + tonumber(ARGV[2])
local stored = redis.call('GET', KEYS[1])
local pause = stored and cmsgpack.unpack(stored) or { 0, 0, 0 }
local disproved = pause[4] or 0
if now < disproved then return { now, 0, disproved } end
if pause[1] <= now then
  local gap = min(FIRST_GAP, till - now)
  pause = { till, now + gap, gap }
else
  pause[1] = max(pause[1], till)
end
keep(KEYS[1], cmsgpack.pack(pause), pause[1] - now)
return { now, pause[1], 0 }
