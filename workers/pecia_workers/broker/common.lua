-- What several scripts do: ring a bell, count a flow, put a message back.
local function ring(list)
  local bell = BELL_PREFIX .. string.match(list, '^[^.]+')
  redis.call('LPUSH', bell, 1)
  redis.call('PEXPIRE', bell, BELL_TTL_MS)
end

local function quarantine_of(list)
  return string.match(list, '^[^.]+') .. '.quarantine'
end

-- Counts messages of a flow that come to stand in a lane's list, or leave it.
local function stand(list, flow, by)
  if list == quarantine_of(list) then return end
  local standing = STANDING_PREFIX .. list
  if redis.call('HINCRBY', standing, flow, by) <= 0 then redis.call('HDEL', standing, flow) end
end

-- Puts a message to the head of the list it was taken from; `held` is what LEASED and AGAIN keep of it.
local function put_back(held)
  local list, raw = string.match(held, '^([^\n]+)\n(.*)$')
  redis.call('RPUSH', list, raw)
  stand(list, cjson.decode(raw).flow, 1)
  ring(list)
end

-- Puts a message to the end of its stage's quarantine and counts the worker that was lost with it.
local function suspect(part, held)
  local list, raw = string.match(held, '^([^\n]+)\n(.*)$')
  redis.call('HINCRBY', DELIVERIES, part, 1)
  redis.call('LPUSH', quarantine_of(list), raw)
  ring(list)
end
