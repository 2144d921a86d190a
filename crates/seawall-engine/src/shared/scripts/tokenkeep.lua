-- KEYS: the token, the right to fetch it. ARGV: now, our name, the version before, the sealed token (empty: there is
-- none), its life in ms. Answers its version. Whoever lost the right in the meantime changes nothing.
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[2])
if ARGV[4] == '' then return 0 end
local version = math.max(tonumber(redis.call('HGET', KEYS[1], 'version') or '0'), tonumber(ARGV[3])) + 1
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version), 'sealed', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return version
