-- Puts parts whose lease ran out back at the head of their own lists and counts the lost delivery.
-- KEYS: leases, leased, owners, deliveries, again   ARGV: lease in seconds, most parts, bell prefix, bell's life in ms
-- Returns how many leases ran out.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1], 'LIMIT', 0, ARGV[2])

local function ring(list)
  local bell = ARGV[3] .. string.match(list, '^[^.]+')
  redis.call('LPUSH', bell, 1)
  redis.call('PEXPIRE', bell, ARGV[4])
end

for i = #expired, 1, -1 do
  local part = expired[i]
  local held = redis.call('HGET', KEYS[2], part)
  redis.call('ZREM', KEYS[1], part)
  redis.call('HDEL', KEYS[2], part)
  redis.call('HDEL', KEYS[3], part)
  redis.call('HDEL', KEYS[5], part)
  if held then
    local list, raw = string.match(held, '^([^\n]+)\n(.*)$')
    redis.call('HINCRBY', KEYS[4], part, 1)
    redis.call('RPUSH', list, raw)
    ring(list)
  end
end
return #expired
