-- An instance says that it is there. KEYS: the set of instances. ARGV: now, its name. Answers: how many there are, now.
local now = read_clock(ARGV[1])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - 50000000))
redis.call('PEXPIRE', KEYS[1], 60000)
return { redis.call('ZCARD', KEYS[1]), now }
