#!lua flags=allow-oom
-- load: puts a lot into Redis under a new epoch. The first load of a shard also opens its door.
--
-- Not gated: it runs on a frozen shard too, and leaves it frozen.
-- KEYS  as in common.lua, one lot
-- ARGV  1 run id, 2 owner, 3 -, 4 lot id, 5 what the load was planned on: 'absent' or 'run epoch seq' (tabs between),
--       6 epoch, 7 closing epoch, 8 closing seq, 9 capacity, 10 held, 11 sold, 12 status, 13 limit, 14 hold, 15 max_hold,
--       16 opens or '', 17 closes or '', 18 late, 19 name, 20 actor, 21 reason, 22 least time mark in ms
-- Reply ok, detail, now, seq of the loaded event | conflict, what is there now | foreign_installation, owner

for i = 6, 11 do
  local n = tonumber(ARGV[i])
  if not (n and n >= 0 and n <= 99999999999999 and n % 1 == 0) then return { 'invalid', tostring(i) } end
end
if tonumber(ARGV[9]) < ARGV[10] + ARGV[11] then return { 'invalid', '9' } end
local least_mark = tonumber(ARGV[22])
if not (least_mark and least_mark >= 0 and least_mark <= 1e13 and least_mark % 1 == 0) then return { 'invalid', '22' } end

local m = call('HMGET', KEYS[1], 'owner', 'run', 'bytes')
if m[1] and m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
meta_bytes = tonumber(m[3] or 0)
if not meta_bytes then return { 'corrupt', 'meta' } end
prove()
local was = call('HMGET', KEYS[5], 'rule', 'live')
local present = 'absent'
if was[1] then present = concat({ m[2] or '', match(was[1], '^%d*'), match(was[2] or '', '^%d+\t%d+\t(%d+)') or '' }, '\t') end
if present ~= ARGV[5] then return { 'conflict', present } end

if not m[1] then call('HSET', KEYS[1], 'owner', ARGV[2], 'run', ARGV[1], 'frozen', '', 'bytes', '0', 'trimmed', '0') end
call('DEL', KEYS[5], KEYS[6], KEYS[7])
call('ZREM', KEYS[3], ARGV[4])
local L = { id = ARGV[4], k = 5, epoch = ARGV[6], seq = tonumber(ARGV[8]) }
local seq = next_seq(L)
local mark = math.max(now, least_mark)
local window = ARGV[16] .. ARGV[17] ~= '' and ARGV[16] .. '/' .. ARGV[17] or ''
call('HSET', KEYS[5], 'live', fmt('%d\t%s\t%s\t%d\t0', ARGV[9] - ARGV[10] - ARGV[11], ARGV[10], seq, mark), 'totals', ARGV[11] .. '\t' .. ARGV[9],
  'rule', concat({ ARGV[6], ARGV[12], ARGV[13], ARGV[14], ARGV[15], window, ARGV[18] }, '\t'), 'name', ARGV[19])
emit('*\tl\t' .. seq .. '\t' .. concat({ ARGV[20], ARGV[21], ARGV[9], ARGV[10], ARGV[11] }, '\t') .. '\t' .. concat(ARGV, '\t', 12, 19) .. '\t' .. ARGV[7] .. '\t' .. ARGV[8] .. '\n')
save({})
return { 'ok', '', now_s, seq }
