-- Ends a reservation. KEYS: the entry. ARGV: now, the reservation, how (1 done, 2 released, 3 unknown), ttl, the response
-- (empty: none). Answers whether it was still held.
local RELEASED, IN_DOUBT = 2, 3
local now, e = read_clock(ARGV[1]), load_entry(KEYS[1])
if not e or e.reservation ~= tonumber(ARGV[2]) or e.state == DONE then return 0 end
local how = tonumber(ARGV[3])
if how == RELEASED then
  redis.call('DEL', KEYS[1])
  return 1
end
e.state = how == IN_DOUBT and UNKNOWN or DONE
e.expires = now + tonumber(ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'response', ARGV[5]) end
store_entry(KEYS[1], e, now)
return 1
