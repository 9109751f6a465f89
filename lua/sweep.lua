#!lua flags=allow-oom
-- sweep: expires due holds of lots of one shard, and forgets tombstones past their retention.
--
-- KEYS  gated, see common.lua
-- ARGV  4 how many attempts may be looked at for each lot, then the lots' ids
-- Reply ok, detail, now, number of holds expired, whether due entries are left (0|1), the shard's earliest due time in ms or ''

local shut = door()
if shut then return shut end
local lots = {}
for j = 5, #ARGV do lots[#lots + 1] = read_lot(ARGV[j], 1 + 4 * (j - 4)) or { gone = ARGV[j] } end

local expired, more = 0, 0
for _, L in ipairs(lots) do
  if L.gone then
    call('ZREM', KEYS[3], L.gone)
  else
    local n, _, rest = take_back(L, math.huge, tonumber(ARGV[4]))
    expired, more = expired + n, rest and 1 or more
    local first = call('ZRANGE', KEYS[L.k + 3], 0, 0, 'WITHSCORES')
    L.due, L.due_moved = first[1] and tonumber(first[2]), true
    save_lot(L)
  end
end
flush()
local first = call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
return { 'ok', '', now_s, tostring(expired), tostring(more), first[2] or '' }
