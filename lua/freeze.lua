#!lua flags=allow-oom
-- freeze: freezes one lot, or thaws it, if it still is as it was seen; to freeze it, only run id and epoch need to be: a lot
-- that sells fast moves on with every call. Nothing else of the lot changes, and no event is written: what the ledger knows
-- of it stays true.
--
-- Not gated: it runs on a frozen shard too.
-- KEYS  as in common.lua, one lot
-- ARGV  1 run id, 2 owner, 3 -, 4 lot id, 5 freeze|thaw, 6 reason, 7 the lot as it was seen: 'damaged' or 'run epoch seq' (tabs
--       between)
-- Reply ok, detail, now, why the lot is frozen now ('': it is not) | conflict, what is there now | lot_not_loaded | foreign_installation, owner
-- A lot that is frozen keeps its reason, and is thawed only for the reason it was frozen for.

local function run()
  local freeze, reason = ARGV[5] == 'freeze', ARGV[6]
  if not (freeze or ARGV[5] == 'thaw') or reason == '' or not ARGV[7] then return { 'invalid', ARGV[5] } end
  local m = call('HMGET', KEYS[1], 'owner', 'run')
  if not m[1] then return { 'lot_not_loaded', 'emptied' } end
  if m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  local there = found(FIRST_LOT, m[2])
  if there == 'absent' then return { 'lot_not_loaded', '' } end
  local from = freeze and '\t%d+$' or '^$'
  if string.gsub(there, from, '') ~= string.gsub(ARGV[7], from, '') then return { 'conflict', there } end

  local f = redis.pcall('HMGET', KEYS[FIRST_LOT], 'live', 'rule', 'frozen')
  local ok, L, mark = pcall(decode, ARGV[4], FIRST_LOT, f[1], f[2])
  if not ok then return { 'ok', '', now_s, '' } end -- so damaged that every script refuses it anyway
  local frozen = L.rule.status == 'frozen' and (f[3] or '') or nil
  if freeze and frozen then return { 'ok', '', now_s, frozen } end
  if not freeze and frozen ~= reason then return { 'ok', '', now_s, frozen or '' } end

  call('ZCARD', KEYS[4])
  call('ZCARD', KEYS[3])
  call('LLEN', KEYS[6])
  local was = L.rule.status
  local rule_field = pack_rule(L.rule, freeze and 'frozen' or call('HGET', KEYS[FIRST_LOT], 'was') or 'closed')
  L.rule = rule_of(rule_field)
  call('HSET', KEYS[FIRST_LOT], 'live', pack_live(L, mark), 'rule', rule_field)
  if freeze then
    call('HSET', KEYS[FIRST_LOT], 'was', was, 'frozen', reason)
    call('ZREM', KEYS[3], L.id) -- or the sweeper would come for it again and again
    return { 'ok', '', now_s, reason }
  end
  call('HDEL', KEYS[FIRST_LOT], 'was', 'frozen')
  file_unfiled()
  local due = first_due(L.id)
  if due > 0 then call('ZADD', KEYS[3], fmt('%d', due), L.id) end
  return { 'ok', '', now_s, '' }
end
