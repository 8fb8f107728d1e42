-- Puts everything back that a worker took, to the heads of the lists; it counts as no death.
-- KEYS: taken, takers   ARGV: worker   Returns how many.
local all = {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] ~= '#' then
    local call, place = unpacked(fields[i + 1])
    all[#all + 1] = {call = call, place = place, held = fields[i + 1]}
  end
end
table.sort(all, function(a, b)
  if a.call ~= b.call then return a.call > b.call end
  return a.place > b.place
end)
for _, one in ipairs(all) do put_back(one.held) end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
return #all
