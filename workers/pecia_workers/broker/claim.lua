-- Takes parts while they fit and leases them to the owner: a part is always in a list or leased. Lanes are served strictly in
-- the order of the lists, but for what is due to a lower one: its share of all tokens, and one part after a long wait.
-- A message of a part that is leased waits in `again` for the end of the lease: the part may have been queued anew.
-- Parts on which a worker died run apart from others: their stage's one warden takes no more than urgent parts until it
-- holds nothing, then suspects alone, together as long as each has lost few workers. It begins to run dry as soon as a
-- holder falls silent, so as to be ready when those leases run out.
-- KEYS: leases, leased, owners, again, dead, credit, served; then each list and the bell of its stage, in the order of
-- service; then quarantine and warden of each stage
-- ARGV: owner; most parts; free tokens (-1: no limit); '1' if the owner holds nothing; lists; rules as JSON
-- Returns {part, list, lane, cost, delivery, trace, part, ...} and 1 if it stopped although more may be had at once.
local LEASES, LEASED, OWNERS, AGAIN, DEAD, CREDIT, SERVED = unpack(KEYS, 1, 7)
local FIRST_LIST, FIELDS = 8, 6
local MAX_BYTES, MAX_COST = 256, 2147483647
local TRACE_BYTES = 55
local DEAD_KEPT, DEAD_BYTES = 1000, 200
local MOST_CREDIT = 32768
local AGED = 'aged'
local SILENT_LOOKED_AT = 32
local BUSY = '!' -- before the name of a warden that runs suspects
local UUID = '^' .. table.concat({
  string.rep('[0-9a-f]', 8), string.rep('[0-9a-f]', 4), string.rep('[0-9a-f]', 4),
  string.rep('[0-9a-f]', 4), string.rep('[0-9a-f]', 12),
}, '%-') .. '$'

local owner, slots, tokens, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local first_quarantine = FIRST_LIST + 2 * tonumber(ARGV[5])
local rules = cjson.decode(ARGV[6])
local limited = tokens >= 0
local steps, TURN_STEPS = 1000, 10 -- what one call puts aside, so that it never keeps Redis for long
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local taken, count = {}, 0
local lists, lower, waiting_of = {}, {}, {}

local function is_uuid(value)
  return type(value) == 'string' and string.match(value, UUID) ~= nil
end

-- Returns what a message says; of a marker only the flow; nil if it is neither.
local function read(list, raw)
  if #raw > MAX_BYTES then return nil end
  local ok, said = pcall(cjson.decode, raw)
  if not ok or type(said) ~= 'table' or not is_uuid(said.flow) then return nil end
  if said.part == nil and said.lane == nil then
    return list.lane ~= 'quarantine' and {flow = said.flow} or nil
  end
  if not is_uuid(said.part) or type(said.cost) ~= 'number' or not (said.cost > 0) then return nil end
  if list.lane ~= said.lane and not (list.lane == 'quarantine' and rules.lanes[said.lane]) then return nil end
  local cost = math.max(1, math.min(math.floor(said.cost), MAX_COST))
  local trace = type(said.trace) == 'string' and #said.trace == TRACE_BYTES and said.trace or ''
  return {raw = raw, part = said.part, flow = said.flow, lane = said.lane, cost = cost, trace = trace}
end

local function bury(raw)
  redis.call('LPUSH', DEAD, string.sub(raw, 1, DEAD_BYTES))
  redis.call('LTRIM', DEAD, 0, DEAD_KEPT - 1)
end

-- The marker was taken from the head of the list, so that nothing of the flow stands there: its next turn lines up, and the
-- marker again if more is left.
local function open_turn(list, flow)
  local rest = list.name .. ':' .. flow
  local turn = redis.call('RPOP', rest, rules.turn)
  if not turn or #turn == 0 then return end
  redis.call('LPUSH', list.name, unpack(turn))
  redis.call('HSET', STANDING_PREFIX .. list.name, flow, #turn)
  if redis.call('EXISTS', rest) == 1 then redis.call('LPUSH', list.name, '{"flow":"' .. flow .. '"}') end
  steps = steps - TURN_STEPS
end

local function put_aside(list, raw, message)
  if not message then
    bury(raw)
  elseif not message.part then
    open_turn(list, message.flow)
  else
    redis.call('HSET', AGAIN, message.part, list.name .. '\n' .. raw)
    stand(list.name, message.flow, -1)
  end
end

-- Returns the first message of a list that can be leased; opens turns and puts aside what is in front of it.
local function head(list)
  while not list.head and steps > 0 do
    local raw = redis.call('LINDEX', list.name, -1)
    if not raw then return nil end
    local message = read(list, raw)
    if message and message.part and not redis.call('ZSCORE', LEASES, message.part) then
      list.head = message
    else
      steps = steps - 1
      redis.call('RPOP', list.name)
      put_aside(list, raw, message)
    end
  end
  return list.head
end

local function fits(cost)
  return not limited or cost <= tokens or (idle and count == 0)
end

local function lost_with(part)
  return tonumber(redis.call('HGET', DELIVERIES, part) or 0)
end

local function take(list)
  local message = list.head
  list.head = nil
  redis.call('RPOP', list.name)
  redis.call('ZADD', LEASES, now, message.part)
  redis.call('HSET', LEASED, message.part, list.name .. '\n' .. message.raw)
  redis.call('HSET', OWNERS, message.part, owner)
  stand(list.name, message.flow, -1)
  local at = count * FIELDS
  taken[at + 1], taken[at + 2], taken[at + 3] = message.part, list.name, message.lane
  taken[at + 4], taken[at + 5], taken[at + 6] = message.cost, lost_with(message.part) + 1, message.trace
  count = count + 1
  tokens = limited and math.max(0, tokens - message.cost) or tokens
  list.since = now
  return message.cost
end

local function overdue(list)
  return rules.patience > 0 and list.since and now - list.since > rules.patience
end

-- A lower lane that waits is owed its share of every token that is taken; what is taken from it pays.
local function account(list, cost)
  for _, other in ipairs(lower) do
    if other == list or head(other) then
      local owed = other.credit + rules.shares[other.lane] * cost / math.max(1, waiting_of[other.lane])
      if other == list then owed = owed - cost end
      local most = math.max(MOST_CREDIT, other.head and other.head.cost or 0)
      other.credit = math.max(0, math.min(owed, most))
    end
  end
end

-- A turn out of order is followed by one in order: patience shorter than a part must not turn the lanes round.
local function choose()
  for _, list in ipairs(lower) do
    if head(list) and not lists.aged and overdue(list) then return list, true end
  end
  for _, list in ipairs(lower) do
    if head(list) and list.credit >= list.head.cost then return list, lists.aged end
  end
  for _, list in ipairs(lists) do
    if head(list) then return list, false end
  end
end

local function urgent()
  for _, list in ipairs(lists) do
    if not rules.shares[list.lane] and head(list) then return list, false end
  end
end

local function serve(chosen)
  while steps > 0 do
    local list, aged = chosen()
    if not list then return steps > 0 and 0 or 1 end
    if count == slots or not fits(list.head.cost) then return 0 end
    account(list, take(list))
    lists.aged = aged
  end
  return 1
end

local function runs_alone(message)
  local lost = lost_with(message.part)
  return lost == 0 or lost >= rules.alone_from
end

local function serve_suspects(list)
  if not head(list) then return end
  local alone = runs_alone(list.head)
  take(list)
  redis.call('SET', list.warden, BUSY .. owner, 'PX', rules.warden_ms)
  while not alone and count < slots and head(list) and fits(list.head.cost) and not runs_alone(list.head) do
    take(list)
  end
end

local function look()
  for i = FIRST_LIST, first_quarantine - 1, 2 do
    local list = {name = KEYS[i], bell = KEYS[i + 1], lane = string.match(KEYS[i], '[^.]+$')}
    lists[#lists + 1] = list
    if rules.shares[list.lane] then
      lower[#lower + 1] = list
      list.credit = tonumber(redis.call('HGET', CREDIT, list.name) or 0)
      list.since = tonumber(redis.call('HGET', SERVED, list.name) or now)
      waiting_of[list.lane] = (waiting_of[list.lane] or 0) + (head(list) and 1 or 0)
    end
  end
  lists.aged = redis.call('HGET', SERVED, AGED) == '1'
end

-- A warden that has not begun yields to a worker that holds nothing, for that one can begin at once.
local function is_warden(warden)
  local name = redis.call('GET', warden)
  if name == owner or name == BUSY .. owner then
    redis.call('PEXPIRE', warden, rules.warden_ms)
    return true
  end
  if name and not (idle and string.sub(name, 1, 1) ~= BUSY) then return false end
  redis.call('SET', warden, owner, 'PX', rules.warden_ms)
  return true
end

local function free(warden)
  local name = redis.call('GET', warden)
  if name == owner or name == BUSY .. owner then redis.call('DEL', warden) end
end

-- Returns the quarantines that will have suspects soon, unless a holder that has fallen silent renews its leases.
local function expected()
  local names = {}
  if rules.silence == 0 then return names end
  local silent = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now - rules.silence, 'LIMIT', 0, SILENT_LOOKED_AT)
  for _, part in ipairs(silent) do
    local held = redis.call('HGET', LEASED, part)
    if held then names[quarantine_of(held)] = true end
  end
  return names
end

-- Returns the quarantine that the owner is to empty, or to be ready for; of the others of its stage none is.
local function guarded()
  local mine
  local soon = expected()
  for i = first_quarantine, #KEYS, 2 do
    local name, warden = KEYS[i], KEYS[i + 1]
    if redis.call('LLEN', name) == 0 and not soon[name] then
      redis.call('HDEL', SERVED, name)
      free(warden)
    elseif not mine and is_warden(warden) then
      local since = tonumber(redis.call('HGET', SERVED, name) or now)
      mine = {name = name, warden = warden, lane = 'quarantine', since = since}
    end
  end
  return mine
end

-- Suspects have lost a lease already: they do not wait for another behind urgent parts, nor at all if they are urgent.
local function comes_first(quarantine)
  local first = head(quarantine)
  return first and (first.lane == 'urgent' or now - quarantine.since > rules.warden_ms / 1000)
end

local function keep(quarantine)
  local waits = false
  for _, list in ipairs(lists) do
    if redis.call('EXISTS', list.name) == 0 then redis.call('DEL', STANDING_PREFIX .. list.name) end
  end
  for _, list in ipairs(lower) do
    if redis.call('EXISTS', list.name) == 1 then
      waits = true
      redis.call('HSET', CREDIT, list.name, list.credit)
      redis.call('HSET', SERVED, list.name, list.since)
    else
      redis.call('HDEL', CREDIT, list.name)
      redis.call('HDEL', SERVED, list.name)
    end
  end
  if quarantine then redis.call('HSET', SERVED, quarantine.name, quarantine.since) end
  if waits and lists.aged then redis.call('HSET', SERVED, AGED, '1') else redis.call('HDEL', SERVED, AGED) end
end

local function ring_for_the_rest()
  for _, list in ipairs(lists) do
    if redis.call('LLEN', list.name) > 0 and redis.call('LLEN', list.bell) == 0 then ring(list.name) end
  end
end

look()
local more = 0
local quarantine = guarded()
if not quarantine then
  more = serve(choose)
else
  if not comes_first(quarantine) then more = serve(urgent) end
  if idle and count == 0 then serve_suspects(quarantine) end
end
keep(quarantine)
if count > 0 then ring_for_the_rest() end
return {taken, more}
