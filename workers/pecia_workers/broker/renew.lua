-- Extends the owner's leases from now, by the clock of Redis. Returns the parts it no longer holds.
-- KEYS: leases, leased, owners   ARGV: owner, part...
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local lost = {}
for i = 2, #ARGV do
  if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[1] then
    redis.call('ZADD', KEYS[1], 'XX', now, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
