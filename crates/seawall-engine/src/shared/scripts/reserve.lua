-- Asks to execute under an idempotency key. KEYS: the entry. ARGV: now, the request's fingerprint, who asks (empty: nobody
-- who comes back), lease, ttl, whether the upstream honours keys. Answers: kind, the reservation or how long somebody else
-- holds it, and the response that is to be replayed.
local PROCEED, REPLAY, MISMATCH, BUSY, DOUBT = 0, 1, 2, 3, 4
local now, fingerprint, owner = read_clock(ARGV[1]), ARGV[2], ARGV[3]
local lease, ttl, honoured = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'

local function grant(reservation)
  local e = { fingerprint = fingerprint, state = IN_FLIGHT, lease = now + lease, reservation = reservation, owner = owner }
  e.expires = max(e.lease, now + ttl)
  redis.call('DEL', KEYS[1])
  store_entry(KEYS[1], e, now)
  return { PROCEED, reservation, '' }
end

local e = load_entry(KEYS[1])
if not e or now >= e.expires then return grant(0) end
if e.fingerprint ~= fingerprint then return { MISMATCH, 0, '' } end
if e.state == DONE then return { REPLAY, 0, redis.call('HGET', KEYS[1], 'response') or '' } end
if owner ~= '' and e.owner == owner then return grant(e.reservation) end
if e.state == IN_FLIGHT and now < e.lease then return { BUSY, e.lease - now, '' } end
if honoured then return grant((e.reservation + 1) % 4294967296) end
return { DOUBT, 0, '' }
