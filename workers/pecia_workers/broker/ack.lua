-- Forgets parts that are finished, each only if the owner still holds it. Returns how many it held.
-- One whose message came again meanwhile goes back to its list: whether there is more to do, the ledger knows.
-- KEYS: leases, leased, owners, again   ARGV: owner, part...
local acked = 0
for i = 2, #ARGV do
  local part = ARGV[i]
  if redis.call('HGET', KEYS[3], part) == ARGV[1] then
    redis.call('ZREM', KEYS[1], part)
    redis.call('HDEL', KEYS[2], part)
    redis.call('HDEL', KEYS[3], part)
    redis.call('HDEL', DELIVERIES, part)
    local again = redis.call('HGET', KEYS[4], part)
    if again then
      redis.call('HDEL', KEYS[4], part)
      put_back(again)
    end
    acked = acked + 1
  end
end
return acked
