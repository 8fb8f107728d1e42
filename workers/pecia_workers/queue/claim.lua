-- Takes parts out of their lists while they fit. Who runs a part, Postgres knows: Redis forgets what was taken.
-- Each call has a number; that of the last call that took something returns the same parts again: its reply may have been lost.
-- Lanes are served strictly in the order of the lists, but for what is due to a lower one: its share of all tokens, and one
-- part after a long wait.
-- Parts on which a worker died run apart from others: a worker that holds nothing takes suspects alone, together as long as
-- each has lost few workers. Some that are busy run dry for them, and take no more than urgent parts until then.
-- KEYS: claimed, dead, credit, served; then each list and the wake-up key of its stage, in the order of service; then quarantine
-- and drainers of each stage
-- ARGV: worker; number; most parts; free tokens (-1: no limit); '1' if the worker holds nothing; lists; rules as JSON
-- Returns {part, flow, list, lane, cost, deaths, trace, part, ...} and 1 if it stopped although more may be had at once.
local CLAIMED, DEAD, CREDIT, SERVED = unpack(KEYS, 1, 4)
local FIRST_LIST, FIELDS = 5, 7
local CLAIMED_TTL_MS = 600000
local MAX_BYTES, MAX_COST = 256, 2147483647
local TRACE_BYTES = 55
local DEAD_KEPT, DEAD_BYTES = 1000, 200
local MOST_CREDIT = 32768
local AGED = 'aged'
local MOST_DRAINERS = 2
local AHEAD = 32 -- messages of a list that are read at a time
local HEX = '[0-9a-f]'
local UUID = '^' .. HEX:rep(8) .. ('%-' .. HEX:rep(4)):rep(3) .. '%-' .. HEX:rep(12) .. '$'

local worker, number = ARGV[1], ARGV[2]
local slots, tokens, idle = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local first_quarantine = FIRST_LIST + 2 * tonumber(ARGV[6])
local rules = cjson.decode(ARGV[7])
local limited = tokens >= 0
local steps, TURN_STEPS = 1000, 10 -- what one call puts aside, so that it never keeps Redis for long
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local taken, held, count = {}, {}, 0
local lists, lower, waiting_of = {}, {}, {}

-- Runs a command of many arguments, if there are any.
local function call_with(command, key, arguments)
  if #arguments > 0 then return redis.call(command, key, unpack(arguments)) end
end

-- Returns a list as the claim sees it: the messages read ahead, how many of it were passed and are still to be removed, and
-- how many of each flow were taken from it.
local function lane_list(name, lane)
  return {name = name, lane = lane, ahead = {}, passed = 0, flows = {}}
end

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
  local deaths = type(said.deaths) == 'number' and said.deaths > 0 and math.min(math.floor(said.deaths), MAX_COST)
  deaths = list.lane == 'quarantine' and (deaths or rules.alone_from) or 0
  return {part = said.part, flow = said.flow, lane = said.lane, cost = cost, trace = trace, deaths = deaths}
end

-- The marker was taken from the head of the list, so that nothing of the flow stands there: its next turn lines up, and the
-- marker again if more is left.
local function open_turn(list, flow)
  local rest = list.name .. ':' .. flow
  local turn = redis.call('RPOP', rest, rules.turn)
  if not turn or #turn == 0 then return end
  redis.call('LPUSH', list.name, unpack(turn))
  redis.call('HSET', STANDING_PREFIX .. list.name, flow, #turn)
  local left = redis.call('EXISTS', rest)
  if left == 1 then redis.call('LPUSH', list.name, '{"flow":"' .. flow .. '"}') end
  redis.call('HINCRBY', STANDING_PREFIX .. list.name, '#', 1 - #turn - left)
  steps = steps - TURN_STEPS
end

-- Removes the messages that were passed from their list, and counts those that were taken as standing there no more.
local function remove_passed(list)
  if list.passed > 0 then redis.call('LTRIM', list.name, 0, -1 - list.passed) end
  for flow, messages in pairs(list.flows) do stand(list.name, flow, -messages) end
  list.passed, list.flows = 0, {}
end

local function put_aside(list, raw, message)
  list.passed = list.passed + 1
  remove_passed(list)
  if not message then
    redis.call('LPUSH', DEAD, string.sub(raw, 1, DEAD_BYTES))
    redis.call('LTRIM', DEAD, 0, DEAD_KEPT - 1)
  elseif not message.part then
    open_turn(list, message.flow)
  else -- a repetition of one that this call has taken
    stand(list.name, message.flow, -1)
  end
end

-- Returns the first message of a list that can be taken; opens turns and puts aside what is in front of it.
local function head(list)
  while not list.head and not list.is_read and steps > 0 do
    if #list.ahead == 0 then
      list.ahead = redis.call('LRANGE', list.name, -AHEAD - list.passed, -1 - list.passed)
    end
    local raw = table.remove(list.ahead) -- behind those that were passed; nil at the list's end
    local message = raw and read(list, raw)
    if not raw then
      list.is_read = true
    elseif message and message.part and not held[message.part] then
      list.head = message
    else
      steps = steps - 1
      put_aside(list, raw, message)
    end
  end
  return list.head
end

local function fits(cost)
  return not limited or cost <= tokens or (idle and count == 0)
end

local function tell(list, message)
  local at = count * FIELDS
  taken[at + 1], taken[at + 2], taken[at + 3], taken[at + 4] = message.part, message.flow, list.name, message.lane
  taken[at + 5], taken[at + 6], taken[at + 7] = message.cost, message.deaths, message.trace
  count = count + 1
end

local function take(list)
  local message = list.head
  list.head = nil
  list.passed = list.passed + 1
  list.flows[message.flow] = (list.flows[message.flow] or 0) + 1
  held[message.part] = true
  tell(list, message)
  tokens = limited and math.max(0, tokens - message.cost) or tokens
  list.since = now
  return message.cost
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
    local overdue = rules.patience > 0 and list.since and now - list.since > rules.patience
    if head(list) and overdue and not lists.aged then return list, true end
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

local function serve_suspects(list)
  if not head(list) then return end
  local alone = list.head.deaths >= rules.alone_from
  take(list)
  redis.call('ZREM', list.drainers, worker)
  while not alone and count < slots and head(list) and fits(list.head.cost)
    and list.head.deaths < rules.alone_from do
    take(list)
  end
end

local function look()
  local names = {}
  for i = FIRST_LIST, first_quarantine - 1, 2 do
    local list = lane_list(KEYS[i], string.match(KEYS[i], '[^.]+$'))
    list.wakeup = KEYS[i + 1]
    lists[#lists + 1] = list
    if rules.shares[list.lane] then lower[#lower + 1], names[#names + 1] = list, list.name end
  end
  local credit, served = call_with('HMGET', CREDIT, names), redis.call('HMGET', SERVED, AGED, unpack(names))
  for i, list in ipairs(lower) do
    list.credit, list.since = tonumber(credit[i] or 0), tonumber(served[i + 1] or now)
    waiting_of[list.lane] = (waiting_of[list.lane] or 0) + (head(list) and 1 or 0)
  end
  lists.aged = served[1] == '1'
end

-- One that holds nothing takes suspects at once; of the others some run dry, never more than there are suspects.
local function drains(drainers, waiting)
  redis.call('ZREMRANGEBYSCORE', drainers, '-inf', now - rules.drain)
  if not idle and not redis.call('ZSCORE', drainers, worker)
    and redis.call('ZCARD', drainers) >= math.min(MOST_DRAINERS, waiting) then
    return false
  end
  redis.call('ZADD', drainers, now, worker)
  return true
end

-- Returns the quarantine that the worker is to empty, or to run dry for.
local function guarded()
  local mine
  for i = first_quarantine, #KEYS, 2 do
    local name, drainers = KEYS[i], KEYS[i + 1]
    local waiting = redis.call('LLEN', name)
    if waiting == 0 then
      redis.call('HDEL', SERVED, name)
      redis.call('DEL', drainers)
    elseif not mine and drains(drainers, waiting) then
      local since = tonumber(redis.call('HGET', SERVED, name) or now)
      mine = lane_list(name, 'quarantine')
      mine.drainers, mine.since = drainers, since
    end
  end
  return mine
end

-- Removes what was taken from the lists, and forgets the counts of those that are empty.
local function remove(quarantine)
  local emptied = {}
  if quarantine then remove_passed(quarantine) end
  for _, list in ipairs(lists) do
    remove_passed(list)
    list.waits = redis.call('EXISTS', list.name) == 1
    if not list.waits then emptied[#emptied + 1] = STANDING_PREFIX .. list.name end
  end
  if #emptied > 0 then redis.call('DEL', unpack(emptied)) end
end

-- Writes down credit and last service of the lower lanes that have a backlog, and forgets those of the others.
local function keep(quarantine)
  local credit, served, forgotten, aged = {}, {}, {}, false
  if quarantine then served = {quarantine.name, quarantine.since} end
  for _, list in ipairs(lower) do
    if list.waits then
      credit[#credit + 1], credit[#credit + 2] = list.name, list.credit
      served[#served + 1], served[#served + 2] = list.name, list.since
      aged = lists.aged
    else
      forgotten[#forgotten + 1] = list.name
    end
  end
  call_with('HSET', CREDIT, credit)
  call_with('HDEL', CREDIT, forgotten)
  if aged then served[#served + 1], served[#served + 2] = AGED, '1' else forgotten[#forgotten + 1] = AGED end
  call_with('HSET', SERVED, served)
  call_with('HDEL', SERVED, forgotten)
end

local function claim()
  look()
  local more = 0
  local quarantine = guarded()
  if not quarantine then
    more = serve(choose)
  else
    -- Suspects have lost a worker already: they do not wait for long behind urgent parts, nor at all if they are urgent.
    local first = head(quarantine)
    local at_once = first and (first.lane == 'urgent' or now - quarantine.since > rules.drain)
    if not at_once then more = serve(urgent) end
    if idle and count == 0 then serve_suspects(quarantine) end
  end
  remove(quarantine)
  keep(quarantine)
  for _, list in ipairs(lists) do
    if count > 0 and list.waits and redis.call('LLEN', list.wakeup) == 0 then wake(list.name) end
  end
  return more
end

local last = redis.call('HMGET', CLAIMED, 'number', 'taken')
if last[1] == number then return {cjson.decode(last[2]), 1} end
local more = slots > 0 and claim() or 0
if count > 0 then
  redis.call('HSET', CLAIMED, 'number', number, 'taken', cjson.encode(taken))
  redis.call('PEXPIRE', CLAIMED, CLAIMED_TTL_MS)
end
return {taken, more}
