-- Forgets parts that are finished, each only if the owner still holds it. Returns how many it held.
-- KEYS: leases, leased, owners, deliveries   ARGV: owner, part...
local acked = 0
for i = 2, #ARGV do
  local part = ARGV[i]
  if redis.call('HGET', KEYS[3], part) == ARGV[1] then
    redis.call('ZREM', KEYS[1], part)
    redis.call('HDEL', KEYS[2], part)
    redis.call('HDEL', KEYS[3], part)
    redis.call('HDEL', KEYS[4], part)
    acked = acked + 1
  end
end
return acked
