-- What several scripts do: push a wake-up key, count a flow, let go of what a worker took.
redis.call('DEL', 'pecia:nothing') -- a first write that frees memory: a full Redis then lets the script write on

local function wake(list)
  local wakeup = WAKEUP_PREFIX .. string.match(list, '^[^.]+')
  redis.call('LPUSH', wakeup, 1)
  redis.call('PEXPIRE', wakeup, WAKEUP_TTL_MS)
end

-- Counts messages of a flow that come to stand in a lane's list, or leave it.
local function stand(list, flow, by)
  if string.match(list, '[^.]+$') == 'quarantine' then return end
  local standing = STANDING_PREFIX .. list
  if redis.call('HINCRBY', standing, flow, by) <= 0 then redis.call('HDEL', standing, flow) end
end

-- Returns the number of the call that took a message, its place in it, its list and the message itself.
local function unpacked(held)
  local call, place, list, raw = string.match(held, '^(%d+) (%d+) (%S+) (.*)$')
  return tonumber(call), tonumber(place), list, raw
end

-- Puts a message to the head of the list it was taken from.
local function put_back(held)
  local _, _, list, raw = unpacked(held)
  redis.call('RPUSH', list, raw)
  stand(list, cjson.decode(raw).flow, 1)
  wake(list)
end

