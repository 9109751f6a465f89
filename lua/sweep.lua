#!lua flags=allow-oom
-- sweep: expires due holds of lots of one shard, and forgets tombstones past their retention.
--
-- KEYS  gated, see common.lua
-- ARGV  4 how many attempts may be looked at in all, then the lots' ids
-- Reply ok, detail, now, number of holds expired, whether due entries are left (0|1), the shard's earliest due time in ms or ''

local function run()
  local shut = door()
  if shut then return shut end
  prove()
  file_unfiled()
  local lots, strays, expired, more, budget = {}, {}, 0, 0, tonumber(ARGV[4])
  for j = 5, #ARGV do
    local L, code, detail = read_lot(ARGV[j], FIRST_LOT + j - 5)
    if code == 'lot_frozen' and call('HGET', KEYS[1], 'frozen') ~= '' then return { code, detail } end -- the clock froze the shard
    -- Whoever thaws a frozen lot puts it back into `next`.
    if L then lots[#lots + 1] = L else strays[#strays + 1] = ARGV[j] end
  end
  if #strays > 0 then call('ZREM', KEYS[3], unpack(strays)) end
  for _, L in ipairs(lots) do
    local before, n, rest = duen, nil, nil
    n, rest, budget = take_back(L, math.huge, budget)
    expired, more = expired + n, rest and 1 or more
    -- The lot's next due time is known only when its entries are: those of this call are not stored yet.
    look_first(L, first_due(L.id), before + 2)
  end
  save(lots)
  local first = call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  return { 'ok', '', now_s, tostring(expired), tostring(more), first[2] or '' }
end
