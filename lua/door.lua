#!lua flags=allow-oom
-- door: freezes a shard, or opens it on this server. Each acts only if the shard still is as it was seen.
--
-- Not gated.
-- KEYS  1 meta
-- ARGV  1 run id of this server, 2 owner, 3 -, 4 freeze|open, 5 reason to freeze for, 6 open run id as seen, 7 freeze reason as seen,
--       8 run id of the server that was looked at, 9 `opened` as seen, 10 what it becomes when the shard is opened: no two openings write
--       the same, so that who saw an earlier freeze for the same reason does not end a later one
-- Reply ok | conflict, open run id, freeze reason | lot_not_loaded | foreign_installation, owner

local function run()
  local m = call('HMGET', KEYS[1], 'owner', 'run', 'frozen', 'opened')
  if not m[1] then return { 'lot_not_loaded', 'emptied' } end
  if m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  if not ARGV[10] then return { 'invalid', '' } end
  if m[2] ~= ARGV[6] or (m[3] or '') ~= ARGV[7] or ARGV[1] ~= ARGV[8] or (m[4] or '') ~= ARGV[9] then return { 'conflict', m[2], m[3] or '' } end
  if ARGV[4] == 'freeze' then
    call('HSET', KEYS[1], 'frozen', ARGV[5])
  else
    call('HSET', KEYS[1], 'run', ARGV[1], 'frozen', '', 'opened', ARGV[10])
  end
  return { 'ok', '', now_s }
end
