#!lua flags=allow-oom
-- remove: takes a lot out of Redis, if it still is as it was seen. Its events stay in the outbox.
--
-- Not gated: it runs on a frozen shard too.
-- KEYS  as in common.lua, one lot; then the lot's staging hash and the staging set of its due entries
-- ARGV  4 lot id, 5 the lot as it was seen: 'damaged' or 'run epoch seq' (tabs between)
-- Reply ok, detail, now; also if the lot is not there | conflict, what is there now | foreign_installation, owner

local function run()
  local m = call('HMGET', KEYS[1], 'owner', 'run')
  if m[1] and m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  local there = found(FIRST_LOT, m[2])
  if there == 'absent' then return { 'ok', '', now_s } end
  if there ~= ARGV[5] then return { 'conflict', there } end
  call('ZCARD', KEYS[3])
  call('ZCARD', KEYS[4])
  call('LLEN', KEYS[6])
  file_unfiled()
  call('UNLINK', KEYS[FIRST_LOT], KEYS[FIRST_LOT + 1], KEYS[FIRST_LOT + 2])
  call('ZREMRANGEBYLEX', KEYS[4], '[' .. ARGV[4] .. '\t', '(' .. ARGV[4] .. '\n')
  call('ZREM', KEYS[3], ARGV[4])
  return { 'ok', '', now_s }
end
