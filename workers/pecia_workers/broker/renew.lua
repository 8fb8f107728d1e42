-- Extends the owner's leases from now, by the clock of Redis, and its watch over quarantines. Returns the parts it no longer
-- holds.
-- KEYS: leases, leased, owners, warden of each stage   ARGV: owner, a warden's life in ms, part...
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local lost = {}
for i = 3, #ARGV do
  if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[1] then
    redis.call('ZADD', KEYS[1], 'XX', now, ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
for i = 4, #KEYS do
  local warden = redis.call('GET', KEYS[i])
  if warden == ARGV[1] or warden == '!' .. ARGV[1] then redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
end
return lost
