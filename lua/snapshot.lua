#!lua flags=no-writes
-- snapshot: one atomic look at lots of one shard. Not gated: it is how a frozen shard is judged.
--
-- KEYS  as in common.lua
-- ARGV  1 run id, 2 -, 3 -, 4 how many due attempts may be looked at for each lot
-- Reply ok, '', now, then six values: owner, run id the shard is open on, freeze reason, run id asked with, outbox bytes, number of lots;
--       then for each lot the number of its fields and values (0: no such lot), those, and the units of due holds not taken back yet

local m = call('HMGET', KEYS[1], 'owner', 'run', 'frozen', 'bytes', 'trimmed')
local lots = (#KEYS - 4) / 3

-- due_units: units of holds whose deadline has passed, as far as the budget reaches.
local function due_units(k, budget)
  local units = 0
  for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[k + 2], '-inf', now_s, 'LIMIT', 0, budget)) do
    local attempts = attempts_of(member, budget)
    budget = budget - #attempts
    if #attempts == 0 then return units end
    for _, record in ipairs(call('HMGET', KEYS[k + 1], unpack(attempts))) do
      local user, _, qty, _, deadline = parse_hold(record)
      if user and deadline <= now then units = units + qty end
    end
  end
  return units
end

local reply = { 'ok', '', now_s, m[1] or '', m[2] or '', m[3] or '', ARGV[1], fmt('%d', tonumber(m[4] or 0) - tonumber(m[5] or 0)), tostring(lots) }
for j = 1, lots do
  local f = call('HGETALL', KEYS[2 + 3 * j])
  reply[#reply + 1] = tostring(#f)
  for _, v in ipairs(f) do reply[#reply + 1] = v end
  reply[#reply + 1] = #f > 0 and fmt('%d', due_units(2 + 3 * j, tonumber(ARGV[4]))) or '0'
end
return reply
