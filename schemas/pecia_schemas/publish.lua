-- Queues messages: a turn of each flow stands in the list itself; what is more waits in a list of the flow's own, for which
-- one marker stands in the list. A list of its own is never there without its marker.
-- KEYS: list, how many messages of each flow stand in it, bell
-- ARGV: messages that make a turn, bell's life in ms; then a flow and its message, again and again
local LIST, STANDING, BELL = KEYS[1], KEYS[2], KEYS[3]
local turn = tonumber(ARGV[1])

for i = 3, #ARGV, 2 do
  local flow, raw = ARGV[i], ARGV[i + 1]
  local rest = LIST .. ':' .. flow
  if redis.call('EXISTS', rest) == 1 then
    redis.call('LPUSH', rest, raw)
  elseif redis.call('HINCRBY', STANDING, flow, 1) <= turn then
    redis.call('LPUSH', LIST, raw)
  else
    redis.call('HINCRBY', STANDING, flow, -1)
    redis.call('LPUSH', rest, raw)
    redis.call('LPUSH', LIST, '{"flow":"' .. flow .. '"}')
  end
end
redis.call('LPUSH', BELL, 1)
redis.call('PEXPIRE', BELL, ARGV[2])
