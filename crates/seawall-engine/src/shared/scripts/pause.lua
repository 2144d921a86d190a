-- A server asked everybody to stay away. KEYS: the pause. ARGV: now, for how long. Answers: now, until when it lasts.
local now = read_clock(ARGV[1])
local till = max(now + tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[1]) or '0'))
keep(KEYS[1], string.format('%.0f', till), till - now)
return { now, till }
