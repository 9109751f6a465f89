#!lua
-- file: files what waits in `unfiled`, as the caller has read and grouped it. Who reserves is told when much waits there, see
-- common.lua; a caller that fails, or finds damage, does no harm: whoever finds far too much files it.
--
-- KEYS  gated, see common.lua, no lot
-- ARGV  4 number of elements read, from the first on, 5 the second of them, then members of `due` that file all they have, each behind its
--       score, 0
-- Reply ok, detail, now | conflict if the list does not begin with these elements: others have filed them
-- Flags none: refused when Redis is out of memory.

local function run()
  local shut = door()
  if shut then return shut end
  local n = tonumber(ARGV[4])
  if not (n and n >= 2 and n % 2 == 0 and #ARGV > 5 and #ARGV % 2 == 1) then return { 'invalid', 'elements' } end
  for i = 6, #ARGV, 2 do
    local at = match(ARGV[i + 1], '^[^\t\n]+\t%d+\t\t()')
    if ARGV[i] ~= '0' or not at or (#ARGV[i + 1] + 1 - at) % ATTEMPT ~= 0 then return { 'invalid', 'entries' } end
  end
  -- An attempt is held, and so waits here, once: whoever removes elements removes all there are then, or the first ones.
  if call('LINDEX', KEYS[6], 1) ~= ARGV[5] or call('LLEN', KEYS[6]) < n then return { 'conflict', '' } end
  for i = 6, #ARGV, 4000 do call('ZADD', KEYS[4], unpack(ARGV, i, math.min(#ARGV, i + 3999))) end
  call('LTRIM', KEYS[6], n, -1)
  return { 'ok', '', now_s }
end
