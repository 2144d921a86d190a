-- KEYS: the token, the right to fetch it. ARGV: now, the version that is of no use (0: none), our name, how long a
-- fetch may take in ms. Answers: the version and the sealed token; or 0 and who fetches, which may be us.
local version, sealed = unpack(redis.call('HMGET', KEYS[1], 'version', 'sealed'))
if version and tonumber(version) > tonumber(ARGV[2]) then return { tonumber(version), sealed } end
redis.call('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4])
return { 0, redis.call('GET', KEYS[2]) }
