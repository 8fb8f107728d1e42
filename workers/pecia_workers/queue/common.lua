-- What several scripts do: push a wake-up key, count a flow.
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
