#!lua
-- stage: puts one slice of a lot's records beside the lot, in their final form, for a load that makes all of them appear at once.
--
-- Not gated: it runs on an emptied or frozen shard too, and nothing sells from what it writes.
-- KEYS  as in common.lua, one lot; then the lot's staging hash and the staging set of its due entries
-- ARGV  4 epoch the lot will be loaded under, 5 number of the slice, from 1, 6 number d of due entries, then d members of `due`
--       (see common.lua), then pairs of field and value of the lot's hash
-- Reply ok, detail, now | conflict, epoch and slices there are | foreign_installation, owner
-- In the hash, `staged` says "epoch slices" (tab between). The first slice throws away what is there; a slice that is there
-- already is written again, the same. Old due entries of a lot that sells nothing go slice by slice too, so that the load
-- finds few: it is loaded anew in any case, since its epoch is closed. They stay where the lot is of this epoch or a later
-- one: then a slice came late, and nothing is loaded for it.
-- Flags none: refused when Redis is out of memory.

local function run()
  local epoch, slice, dues = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  if not (epoch and slice and slice >= 1 and slice % 1 == 0 and dues and dues >= 0 and dues % 1 == 0) then return { 'invalid', 'slice' } end
  local first = 7 + dues
  if #ARGV < first - 1 or (#ARGV - first) % 2 ~= 1 or #KEYS ~= FIRST_LOT + 2 then return { 'invalid', 'pairs' } end
  local owner = call('HGET', KEYS[1], 'owner')
  if owner and owner ~= ARGV[2] then return { 'foreign_installation', owner } end
  local hash, due = KEYS[FIRST_LOT + 1], KEYS[FIRST_LOT + 2]
  if slice > 1 then
    local there = call('HGET', hash, 'staged') or ''
    local e, n = match(there, '^(%d+)\t(%d+)$')
    if tonumber(e) ~= epoch or tonumber(n) < slice - 1 then return { 'conflict', there } end
    slice = math.max(slice, tonumber(n))
    call('ZCARD', due)
  end
  local id, old = match(KEYS[FIRST_LOT], '}:lot:(.*)$'), {}
  local rule_field = redis.pcall('HGET', KEYS[FIRST_LOT], 'rule')
  local ok, R = pcall(rule_of, rule_field)
  if not rule_field or not ok or R.status == 'frozen' and R.epoch < epoch then
    old = call('ZRANGEBYLEX', KEYS[4], '[' .. id .. '\t', '(' .. id .. '\n', 'LIMIT', 0, 2000)
  end

  if tonumber(ARGV[5]) == 1 then call('UNLINK', hash, due) end
  for i = first, #ARGV, 4000 do call('HSET', hash, unpack(ARGV, i, math.min(#ARGV, i + 3999))) end
  for i = 7, first - 1 do call('ZADD', due, '0', ARGV[i]) end
  call('HSET', hash, 'staged', fmt('%d\t%d', epoch, slice))
  if #old > 0 then call('ZREM', KEYS[4], unpack(old)) end
  return { 'ok', '', now_s }
end
