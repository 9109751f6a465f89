#!lua
-- file: files what waits in `unfiled`, as the caller has read and grouped it. Who reserves is told when much waits there, see
-- common.lua; a caller that fails, or finds damage, does no harm: whoever finds far too much files it.
--
-- KEYS  gated, see common.lua, no lot
-- ARGV  4 number of elements read, from the first on, 5 and 6 the first two of them, 7 and 8 the last two, then members of `due` that
--       file all they have, each behind its score, 0
-- Reply ok, detail, now | conflict if the list does not begin with these elements: others have filed them, or a failover lost some
-- Flags none: refused when Redis is out of memory.

local ENTRIES = 9 -- where in ARGV they begin

-- same: whether two elements from the i-th on are those in ARGV.
local function same(i, at)
  local f = call('LRANGE', KEYS[6], i, i + 1)
  return f[1] == ARGV[at] and f[2] == ARGV[at + 1]
end

local function run()
  local shut = door()
  if shut then return shut end
  local n = tonumber(ARGV[4])
  if not (n and n >= 2 and n % 2 == 0 and n < 1e9 and #ARGV > ENTRIES and #ARGV % 2 == 0) then return { 'invalid', 'elements' } end
  -- The list grows at its end and shrinks at its beginning, and a time and its lines come once: where both ends are the same, all is.
  if not (same(0, 5) and same(n - 2, 7)) then return { 'conflict', '' } end
  for i = ENTRIES, #ARGV, 2 do
    local at = match(ARGV[i + 1], '^[^\t\n]+\t%d+\t\t()')
    if ARGV[i] ~= '0' or not at or (#ARGV[i + 1] + 1 - at) % ATTEMPT ~= 0 then return { 'invalid', 'entries' } end
  end
  for i = ENTRIES, #ARGV, 4000 do call('ZADD', KEYS[4], unpack(ARGV, i, math.min(#ARGV, i + 3999))) end
  call('LTRIM', KEYS[6], n, -1)
  return { 'ok', '', now_s }
end
