-- Takes parts in the order of the lists while they fit and leases them to the owner: a part is always in a list or leased.
-- A message of a part that is leased waits in `again` for the end of the lease: the part may have been queued anew.
-- KEYS: leases, leased, owners, deliveries, again, dead; then a list and the bell of its stage, in the order of service
-- ARGV: owner; most parts; free tokens (-1: no limit); '1' if the owner holds nothing
-- Returns {part, list, cost, delivery, part, ...} and 1 if it stopped although more may be had at once.
local LEASES, LEASED, OWNERS, DELIVERIES, AGAIN, DEAD = unpack(KEYS, 1, 6)
local FIRST_LIST, FIELDS = 7, 4
local MAX_BYTES, MAX_COST = 256, 2147483647
local DEAD_KEPT, DEAD_BYTES = 1000, 200
local BELL_TTL_MS = 1000
local UUID = '^' .. table.concat({
  string.rep('[0-9a-f]', 8), string.rep('[0-9a-f]', 4), string.rep('[0-9a-f]', 4),
  string.rep('[0-9a-f]', 4), string.rep('[0-9a-f]', 12),
}, '%-') .. '$'

local owner, slots, tokens, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local limited = tokens >= 0
local patience = slots + 1000
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local taken, count = {}, 0

local function parse(raw, lane)
  if #raw > MAX_BYTES then return nil end
  local ok, message = pcall(cjson.decode, raw)
  if not ok or type(message) ~= 'table' or message.lane ~= lane then return nil end
  local part, cost = message.part, message.cost
  if type(part) ~= 'string' or not string.match(part, UUID) then return nil end
  if type(cost) ~= 'number' or not (cost > 0) then return nil end
  return part, math.max(1, math.min(math.floor(cost), MAX_COST))
end

local function fits(cost)
  return not limited or cost <= tokens or (idle and count == 0)
end

local function bury(raw)
  redis.call('LPUSH', DEAD, string.sub(raw, 1, DEAD_BYTES))
  redis.call('LTRIM', DEAD, 0, DEAD_KEPT - 1)
end

local function take(list, raw, part, cost)
  redis.call('ZADD', LEASES, now, part)
  redis.call('HSET', LEASED, part, list .. '\n' .. raw)
  redis.call('HSET', OWNERS, part, owner)
  local delivery = tonumber(redis.call('HGET', DELIVERIES, part) or 0) + 1
  local at = count * FIELDS
  taken[at + 1], taken[at + 2], taken[at + 3], taken[at + 4] = part, list, cost, delivery
  count = count + 1
  tokens = limited and math.max(0, tokens - cost) or tokens
end

-- Returns false when the head of the list stays where it is.
local function serve(list, lane, raw)
  local part, cost = parse(raw, lane)
  local fresh = part and not redis.call('ZSCORE', LEASES, part)
  if fresh and (count == slots or not fits(cost)) then return false end
  redis.call('RPOP', list)
  if fresh then
    take(list, raw, part, cost)
  elseif part then
    redis.call('HSET', AGAIN, part, list .. '\n' .. raw)
  else
    bury(raw)
  end
  return true
end

local function serve_all()
  for i = FIRST_LIST, #KEYS, 2 do
    local list = KEYS[i]
    local lane = string.match(list, '[^.]+$')
    local raw = redis.call('LINDEX', list, -1)
    while raw do
      if patience == 0 then return 1 end
      if not serve(list, lane, raw) then return 0 end
      patience = patience - 1
      raw = redis.call('LINDEX', list, -1)
    end
  end
  return 0
end

local function ring_for_the_rest()
  for i = FIRST_LIST, #KEYS, 2 do
    if redis.call('LLEN', KEYS[i]) > 0 and redis.call('LLEN', KEYS[i + 1]) == 0 then
      redis.call('LPUSH', KEYS[i + 1], 1)
      redis.call('PEXPIRE', KEYS[i + 1], BELL_TTL_MS)
    end
  end
end

local more = serve_all()
if count > 0 then ring_for_the_rest() end
return {taken, more}
