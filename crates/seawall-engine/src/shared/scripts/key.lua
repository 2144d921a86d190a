-- The twin of seawall-core's admit/idempotency.rs. An entry is a hash: fingerprint, state, end of its lease, reservation,
-- expiry, owner, and the response once there is one.
local IN_FLIGHT, DONE, UNKNOWN = 0, 1, 2

local function text(number) return string.format('%.0f', number) end

local function load_entry(key)
  local found = redis.call('HMGET', key, 'fingerprint', 'state', 'lease', 'reservation', 'expires', 'owner')
  if not found[1] then return nil end
  return {
    fingerprint = found[1], state = tonumber(found[2]), lease = tonumber(found[3]), reservation = tonumber(found[4]),
    expires = tonumber(found[5]), owner = found[6],
  }
end

-- A second more than it means something, and never beyond forty days, as every cell.
local function store_entry(key, e, now)
  redis.call('HSET', key, 'fingerprint', e.fingerprint, 'state', text(e.state), 'lease', text(e.lease),
    'reservation', text(e.reservation), 'expires', text(e.expires), 'owner', e.owner)
  redis.call('PEXPIRE', key, text(life(e.expires - now)))
end
