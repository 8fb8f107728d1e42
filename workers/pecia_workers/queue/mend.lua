-- Sets the marker of a flow for which messages wait and none stands in the list. Returns 1 if it was missing.
-- KEYS: list, rest of the flow   ARGV: marker
if redis.call('EXISTS', KEYS[2]) == 0 or redis.call('LPOS', KEYS[1], ARGV[1]) then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[1])
wake(KEYS[1])
return 1
