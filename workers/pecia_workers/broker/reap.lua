-- Puts parts whose lease ran out into quarantine and counts the lost delivery.
-- KEYS: leases, leased, owners, again   ARGV: lease in seconds, most parts
-- Returns how many leases ran out.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1], 'LIMIT', 0, ARGV[2])

for _, part in ipairs(expired) do
  local held = redis.call('HGET', KEYS[2], part)
  redis.call('ZREM', KEYS[1], part)
  redis.call('HDEL', KEYS[2], part)
  redis.call('HDEL', KEYS[3], part)
  redis.call('HDEL', KEYS[4], part)
  if held then suspect(part, held) end
end
return #expired
