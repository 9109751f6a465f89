#!lua flags=allow-oom
-- trim: removes outbox entries that the ledger has had for long enough, and counts the bytes they took as free again.
--
-- KEYS  gated, see common.lua, no lot
-- ARGV  4 the least stream id to keep
-- Reply ok, detail, now, number of entries removed

local function run()
  local shut = door()
  if shut then return shut end
  local removed = call('XTRIM', KEYS[2], 'MINID', '=', ARGV[4])
  local first = call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)
  local trimmed = meta_bytes
  if first[1] then
    local f = first[1][2]
    for i = 1, #f, 2 do
      if f[i] == 'o' then trimmed = tonumber(f[i + 1]) end
    end
  end
  call('HSET', KEYS[1], 'trimmed', fmt('%d', trimmed))
  return { 'ok', '', now_s, tostring(removed) }
end
