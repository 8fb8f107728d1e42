-- Sets the marker of a flow for which messages wait and none stands in the list. Returns 1 if it was missing.
-- KEYS: list, rest of the flow, bell   ARGV: marker, bell's life in ms
if redis.call('EXISTS', KEYS[2]) == 0 or redis.call('LPOS', KEYS[1], ARGV[1]) then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LPUSH', KEYS[3], 1)
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1
