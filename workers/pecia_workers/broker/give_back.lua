-- Puts parts back at the head of their own lists, each only if the owner still holds it; counts as no delivery.
-- KEYS: leases, leased, owners, again   ARGV: owner, bell prefix, bell's life in ms, part... in the order of claim
-- Returns how many went back.
local function ring(list)
  local bell = ARGV[2] .. string.match(list, '^[^.]+')
  redis.call('LPUSH', bell, 1)
  redis.call('PEXPIRE', bell, ARGV[3])
end

local returned = 0
for i = #ARGV, 4, -1 do
  local part = ARGV[i]
  if redis.call('HGET', KEYS[3], part) == ARGV[1] then
    local list, raw = string.match(redis.call('HGET', KEYS[2], part), '^([^\n]+)\n(.*)$')
    redis.call('ZREM', KEYS[1], part)
    redis.call('HDEL', KEYS[2], part)
    redis.call('HDEL', KEYS[3], part)
    redis.call('HDEL', KEYS[4], part)
    redis.call('RPUSH', list, raw)
    ring(list)
    returned = returned + 1
  end
end
return returned
