#!lua flags=no-writes
-- snapshot: one atomic look at lots of one shard. Not gated: it is how a frozen shard is judged.
--
-- KEYS  as in common.lua
-- ARGV  1 run id, 2 -, 3 -, 4 how many due attempts may be looked at for each lot
-- Reply ok, '', now, then seven values: owner, run id the shard is open on, freeze reason, run id asked with, outbox bytes, what its last
--       opening wrote (see door.lua), number of lots;
--       then for each lot the number of its fields and values (0: no such lot), those (damaged: why it cannot be read), and the
--       units of due holds not taken back yet

-- look: a lot's fields and values and its due units. A key of another type is the lot's damage, not the look's.
local function look(k)
  local f = redis.pcall('HMGET', KEYS[k], 'live', 'totals', 'rule', 'name', 'was', 'frozen')
  if f.err then return { 'damaged', f.err }, '0' end
  if not (f[1] or f[2] or f[3]) then return {}, '0' end
  local ok, fields = pcall(picture, f[1], f[2], f[3], f[4], f[5], f[6])
  if not ok then return { 'damaged', 'a field of it cannot be read' }, '0' end
  local due
  ok, due = pcall(due_units, decode(match(KEYS[k], '}:lot:(.*)$'), k, f[1], f[3]), tonumber(ARGV[4]))
  if ok then return fields, fmt('%d', due) end
  return { 'damaged', 'its records or due entries cannot be read' }, '0'
end

local function run()
  local m = call('HMGET', KEYS[1], 'owner', 'run', 'frozen', 'bytes', 'trimmed', 'opened')
  local lots = #KEYS - FIRST_LOT + 1

  local reply = { 'ok', '', now_s, m[1] or '', m[2] or '', m[3] or '', ARGV[1], fmt('%d', (tonumber(m[4]) or 0) - (tonumber(m[5]) or 0)), m[6] or '', tostring(lots) }
  for k = FIRST_LOT, #KEYS do
    local f, due = look(k)
    reply[#reply + 1] = tostring(#f)
    for _, v in ipairs(f) do reply[#reply + 1] = v end
    reply[#reply + 1] = due
  end
  return reply
end
