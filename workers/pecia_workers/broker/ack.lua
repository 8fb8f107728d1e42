-- Forgets parts that are finished, each only if the owner still holds it. Returns how many it held.
-- One whose message came again meanwhile goes back to its list: whether there is more to do, the ledger knows.
-- KEYS: leases, leased, owners, deliveries, again   ARGV: owner, bell prefix, bell's life in ms, part...
local function queue_again(held)
  local list, raw = string.match(held, '^([^\n]+)\n(.*)$')
  local bell = ARGV[2] .. string.match(list, '^[^.]+')
  redis.call('RPUSH', list, raw)
  redis.call('LPUSH', bell, 1)
  redis.call('PEXPIRE', bell, ARGV[3])
end

local acked = 0
for i = 4, #ARGV do
  local part = ARGV[i]
  if redis.call('HGET', KEYS[3], part) == ARGV[1] then
    redis.call('ZREM', KEYS[1], part)
    redis.call('HDEL', KEYS[2], part)
    redis.call('HDEL', KEYS[3], part)
    redis.call('HDEL', KEYS[4], part)
    local again = redis.call('HGET', KEYS[5], part)
    if again then
      redis.call('HDEL', KEYS[5], part)
      queue_again(again)
    end
    acked = acked + 1
  end
end
return acked
