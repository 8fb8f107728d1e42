-- Queues messages: a turn of each flow is in the list itself; further messages wait in a list of the flow's own, for which
-- one marker is in the list. A flow's own list never exists without its marker.
-- A full lane accepts no more: further parts wait in Postgres, and the relay moves them flow by flow. Until it has moved
-- them all, only the relay fills the lane, so that no flow is overtaken for ever. It may exceed the window by a reserve for flows
-- with less than a turn in the list: a few pages need not wait behind a million pages of another flow.
-- KEYS: list, wake-up key; and, unless the list is a quarantine, which is never full: `standing`, with the number of messages of each
-- flow in the list; in `#` the number behind turns, less the markers; in `+` that parts wait in Postgres
-- ARGV: messages of a turn, life of the wake-up key in ms, window, reserve (0: not the relay); then pairs of a flow and a message
-- Returns the indices, from 0, of messages that found no room.
local LIST, BELL, STANDING = KEYS[1], KEYS[2], KEYS[3]
local FIRST = 5
local turn, window, reserve = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local waiting, refused = 0, {}

local function is_full()
  return waiting >= window
end

-- Returns whether the message found room.
local function line_up(flow, raw)
  local rest = LIST .. ':' .. flow
  if redis.call('EXISTS', rest) == 1 then
    if is_full() then return false end
    redis.call('LPUSH', rest, raw)
    redis.call('HINCRBY', STANDING, '#', 1)
  elseif tonumber(redis.call('HGET', STANDING, flow) or 0) < turn then
    if waiting >= window + reserve then return false end
    redis.call('HINCRBY', STANDING, flow, 1)
    redis.call('LPUSH', LIST, raw)
  else
    if is_full() then return false end
    redis.call('LPUSH', rest, raw)
    redis.call('LPUSH', LIST, '{"flow":"' .. flow .. '"}')
  end
  waiting = waiting + 1
  return true
end

if STANDING then
  local others = redis.call('HMGET', STANDING, '#', '+')
  waiting = redis.call('LLEN', LIST) + tonumber(others[1] or 0)
  if others[2] and reserve == 0 then waiting = math.max(waiting, window) end
end
for i = FIRST, #ARGV, 2 do
  if not STANDING then
    redis.call('LPUSH', LIST, ARGV[i + 1])
  elseif not line_up(ARGV[i], ARGV[i + 1]) then
    refused[#refused + 1] = (i - FIRST) / 2
  end
end
if #refused > 0 then redis.call('HSET', STANDING, '+', 1) end
redis.call('LPUSH', BELL, 1)
redis.call('PEXPIRE', BELL, ARGV[2])
return refused
