#!lua flags=allow-oom
-- fence: the least write there is, for a wait for disk or replicas to stand behind. Nobody reads what it writes.
--
-- KEYS  gated, see common.lua, no lot
-- ARGV  1 run id, 2 owner, 3 key_retention
-- Reply ok, detail, now

local function run()
  local shut = door()
  if shut then return shut end
  call('HSET', KEYS[1], 'fence', '')
  return { 'ok', '', now_s }
end
