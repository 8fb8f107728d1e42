-- Puts parts back to the head of their own lists, each only if the owner still holds it; counts as no delivery. Those that
-- the owner's engine died on go to quarantine instead, and it counts.
-- KEYS: leases, leased, owners, again   ARGV: owner, '1' if its engine died on them, part... in the order of claim
-- Returns how many went back.
local died = ARGV[2] == '1'
local returned = 0
for i = #ARGV, 3, -1 do
  local part = ARGV[i]
  if redis.call('HGET', KEYS[3], part) == ARGV[1] then
    local held = redis.call('HGET', KEYS[2], part)
    redis.call('ZREM', KEYS[1], part)
    redis.call('HDEL', KEYS[2], part)
    redis.call('HDEL', KEYS[3], part)
    redis.call('HDEL', KEYS[4], part)
    if died then suspect(part, held) else put_back(held) end
    returned = returned + 1
  end
end
return returned
