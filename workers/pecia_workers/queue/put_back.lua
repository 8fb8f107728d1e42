-- Puts messages back to the heads of their lists, whether or not these are full.
-- ARGV: list, flow, message, again and again; the last message first
for i = 1, #ARGV, 3 do
  redis.call('RPUSH', ARGV[i], ARGV[i + 2])
  stand(ARGV[i], ARGV[i + 1], 1)
  wake(ARGV[i])
end
