#!lua flags=allow-oom
-- renew: begins a new epoch of a lot that equals the ledger, and tells so with a `loaded` event. Records and counters stay
-- as they are. Whatever a lost server still had to tell of the old epoch comes too late from then on.
--
-- Not gated: it runs on a shut shard, and leaves it shut.
-- KEYS  as in common.lua, one lot
-- ARGV  1 run id, 2 owner, 3 -, 4 lot id, 5 run id of the server that was looked at, 6 the lot as it was seen: 'run epoch seq'
--       (tabs between), 7 epoch, 8 actor, 9 reason
-- Reply ok, detail, now, seq of the loaded event | conflict, what is there now | lot_frozen, clock | lot_not_loaded | foreign_installation, owner

local function run()
  local epoch = tonumber(ARGV[7])
  if not (epoch and epoch >= 1 and epoch <= 99999999999999 and epoch % 1 == 0) or not ARGV[9] then return { 'invalid', '' } end
  local m = call('HMGET', KEYS[1], 'owner', 'run', 'bytes')
  if not m[1] then return { 'lot_not_loaded', 'emptied' } end
  if m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  meta_bytes, bytes_s = tonumber(m[3]), m[3]
  if not meta_bytes then return { 'corrupt', 'meta' } end
  prove()
  local there = found(FIRST_LOT, m[2])
  if there ~= ARGV[6] or ARGV[1] ~= ARGV[5] then return { 'conflict', there } end

  local f = call('HMGET', KEYS[FIRST_LOT], 'live', 'rule', 'name', 'was')
  local L, mark = decode(ARGV[4], FIRST_LOT, f[1], f[2])
  local R = L.rule
  if epoch <= R.epoch then return { 'conflict', there } end
  if mark - clock_ms > 2000 then return { 'lot_frozen', 'clock' } end
  if mark > now then now, now_s = mark, fmt('%d', mark) end
  read_totals(L)
  local closing = fmt('%d\t%d', R.epoch, L.seq)
  local rule_field = pack_rule({ epoch = epoch, limit = R.limit, hold = R.hold, max_hold = R.max_hold, opens = R.opens, closes = R.closes, late = R.late }, R.status)
  L.rule = rule_of(rule_field)
  put_record(L, 'rule', rule_field)
  local seq = next_seq(L)
  emit('*\tl\t' .. seq .. '\t' .. concat({ ARGV[8], ARGV[9], fmt('%d\t%d\t%d', L.capacity, L.held, L.sold),
    R.status == 'frozen' and f[4] or R.status, fmt('%d\t%d\t%d', R.limit, R.hold, R.max_hold), time_text(R.opens), time_text(R.closes), R.late, f[3] or '', closing }, '\t') .. '\n')
  save({ L })
  return { 'ok', '', now_s, seq }
end
