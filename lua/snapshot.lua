#!lua flags=no-writes
-- snapshot: one atomic look at lots of one shard. Not gated: it is how a frozen shard is judged.
--
-- KEYS  as in common.lua
-- ARGV  1 run id, 2 -, 3 -, 4 how many due attempts may be looked at for each lot
-- Reply ok, '', now, then six values: owner, run id the shard is open on, freeze reason, run id asked with, outbox bytes, number of lots;
--       then for each lot the number of its fields and values (0: no such lot), those (damaged: why it cannot be read), and the
--       units of due holds not taken back yet

local m = call('HMGET', KEYS[1], 'owner', 'run', 'frozen', 'bytes', 'trimmed')
local lots = (#KEYS - 4) / 3

-- look: a lot's fields and values and its due units. A key of another type is the lot's damage, not the look's.
local function look(k)
  local f = redis.pcall('HGETALL', KEYS[k])
  if f.err then return { 'damaged', f.err }, '0' end
  if #f == 0 then return f, '0' end
  local ok, due = pcall(due_units, k, tonumber(ARGV[4]))
  if ok then return f, fmt('%d', due) end
  return { 'damaged', 'its records or due entries cannot be read' }, '0'
end

local reply = { 'ok', '', now_s, m[1] or '', m[2] or '', m[3] or '', ARGV[1], fmt('%d', tonumber(m[4] or 0) - tonumber(m[5] or 0)), tostring(lots) }
for j = 1, lots do
  local f, due = look(2 + 3 * j)
  reply[#reply + 1] = tostring(#f)
  for _, v in ipairs(f) do reply[#reply + 1] = v end
  reply[#reply + 1] = due
end
return reply
