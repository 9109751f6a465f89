-- Shared by every script: the loader puts this file behind the shebang line of each.
--
-- KEYS of a gated script: 1 meta, 2 outbox, 3 next, 4 wake, then four for each lot: lot, res, user, due.
-- ARGV of a gated script: 1 run id of the server as this connection saw it, 2 owner (installation/P),
--      3 key_retention in ms; the rest is the script's own.
-- Replies start with a status: `ok`, or an error code followed by its detail. Nothing was written unless `ok`.
--
-- Records in `res`, fields separated by tabs (no text may contain a control character):
--   h user asked qty n deadline created [last]          a hold; last is missing while it equals n
--   c user asked qty n last rest refunded from ref late confirmed
--   r asked qty n last ended late                       released
--   x asked qty n last ended user late                  expired; the user is needed to take it anew
--   f asked qty n last ended total late                 refunded in full
-- `late` is the digest of the payment reference for which paid_late was written.
-- A record in `user` is: held, bought, attempt of the live hold.
local call, fmt, match, sub, concat = redis.call, string.format, string.match, string.sub, table.concat
local ATTEMPT = 26

local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_s = fmt('%.0f', now)

local meta_bytes, meta_trimmed = 0, 0

-- door: why this shard takes no call, or nil. It also proves that the shared keys have their types,
-- so that no write can fail half-way (there is no rollback).
local function door()
  local m = call('HMGET', KEYS[1], 'owner', 'run', 'frozen', 'bytes', 'trimmed')
  if not m[1] then return { 'lot_not_loaded', 'emptied' } end
  if m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  if m[3] and m[3] ~= '' then return { 'lot_frozen', m[3] } end
  if m[2] ~= ARGV[1] then return { 'lot_frozen', 'closed_door' } end
  meta_bytes, meta_trimmed = tonumber(m[4]), tonumber(m[5])
  if not meta_bytes or not meta_trimmed then return { 'corrupt', 'meta' } end
  call('XLEN', KEYS[2])
  call('ZCARD', KEYS[3])
end

-- Events of this call, as pieces of text in the order of their seqs.
local ev, evn = {}, 0
local function emit(text)
  evn = evn + 1
  ev[evn] = text
end

-- Writes the events and nothing else; called once, after all changes.
local function flush()
  if evn == 0 then return end
  local body = concat(ev, '', 1, evn)
  call('XADD', KEYS[2], '*', 'v', '1', 'i', match(ARGV[2], '^[^/]*'), 't', now_s, 'o', fmt('%.0f', meta_bytes), 'd', body)
  call('HSET', KEYS[1], 'bytes', fmt('%.0f', meta_bytes + #body))
end

-- read_lot: the lot behind KEYS[k], or nil and why. Changes stay in the table until save_lot. Like door, it proves
-- the types of the lot's keys; a call for several lots reads all of them before it writes to the first.
local function read_lot(id, k)
  local f = call('HMGET', KEYS[k], 'available', 'held', 'seq', 'mark', 'due', 'epoch', 'status', 'limit', 'hold', 'max_hold', 'opens', 'closes', 'late', 'sold', 'capacity', 'frozen')
  if not f[1] then return nil, 'lot_not_loaded' end
  local L = { id = id, k = k, available = tonumber(f[1]), held = tonumber(f[2]), seq = tonumber(f[3]), mark = tonumber(f[4]), due = tonumber(f[5]), epoch = f[6],
    status = f[7], limit = tonumber(f[8]), hold = tonumber(f[9]), max_hold = tonumber(f[10]), opens = tonumber(f[11]), closes = tonumber(f[12]), late = f[13],
    sold = tonumber(f[14]), capacity = tonumber(f[15]) }
  if not (L.available and L.held and L.seq and L.mark and L.epoch and L.status and L.limit and L.hold and L.max_hold and L.sold and L.capacity) then return nil, 'corrupt' end
  if f[16] and f[16] ~= '' then return nil, 'lot_frozen', f[16] end
  L.now, L.now_s = now, now_s
  if now < L.mark then
    if L.mark - now > 2000 then
      call('HSET', KEYS[1], 'frozen', 'clock')
      return nil, 'lot_frozen', 'clock'
    end
    L.now, L.now_s = L.mark, fmt('%.0f', L.mark)
  end
  call('HLEN', KEYS[k + 1])
  call('HLEN', KEYS[k + 2])
  call('ZCARD', KEYS[k + 3])
  return L
end

-- next_seq: the seq of the lot's next event. The first one of a call writes the line that names the lot.
local function next_seq(L)
  if not L.named then
    emit('@\t' .. L.id .. '\t' .. L.epoch .. '\n')
    L.named = true
  end
  L.seq = L.seq + 1
  return fmt('%.0f', L.seq)
end

-- parse_user: the counters of a user; zeroes for one who has nothing (or a damaged record: reconcile finds those).
local function parse_user(text)
  local held, bought, live = match(text or '', '^(%d+)\t(%d+)\t(.*)$')
  return { held = tonumber(held or 0), bought = tonumber(bought or 0), live = live or '' }
end

local function save_user(L, user, u)
  if u.held == 0 and u.bought == 0 then
    call('HDEL', KEYS[L.k + 2], user)
  else
    call('HSET', KEYS[L.k + 2], user, fmt('%.0f\t%.0f\t%s', u.held, u.bought, u.live))
  end
end

-- file_due: look at these attempts again at a time (ms). Their records decide what happens then.
local function file_due(L, at, attempts)
  call('ZADD', KEYS[L.k + 3], fmt('%.0f', at), attempts)
  if not L.due or at < L.due then
    L.due, L.due_moved = at, true
  end
end

local function save_lot(L)
  call('HSET', KEYS[L.k], 'available', fmt('%.0f', L.available), 'held', fmt('%.0f', L.held), 'seq', fmt('%.0f', L.seq), 'mark', L.now_s, 'due', L.due and fmt('%.0f', L.due) or '')
  if L.counted then
    call('HSET', KEYS[L.k], 'sold', fmt('%.0f', L.sold), 'capacity', fmt('%.0f', L.capacity))
  end
  if L.due_moved then
    if L.due then call('ZADD', KEYS[3], fmt('%.0f', L.due), L.id) else call('ZREM', KEYS[3], L.id) end
    local first = call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    if first[1] then call('SET', KEYS[4], '1', 'PX', fmt('%.0f', math.max(1, first[2] - now))) end
  end
end

local HOLD = '^h\t([^\t]*)\t([^\t]*)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t?(%d*)$'

-- parse_hold: user, asked, qty, n, deadline, created of a hold, or nil for any other record.
local function parse_hold(record)
  local user, asked, qty, n, deadline, created = match(record, HOLD)
  if user then return user, asked, tonumber(qty), n, tonumber(deadline), created end
end

-- expire: the counters, the event and the tombstone of one hold whose deadline has passed.
-- The caller stores the tombstone, the user and a due entry for the end of its retention.
local function expire(L, attempt, user, asked, qty, n, u)
  local seq = next_seq(L)
  L.available, L.held = L.available + qty, L.held - qty
  u.held = math.max(0, u.held - qty)
  if u.live == attempt then u.live = '' end
  emit(attempt .. '\tx\t' .. seq .. '\t' .. n .. '\t' .. user .. '\t' .. qty .. '\t\t\n')
  return 'x\t' .. asked .. '\t' .. qty .. '\t' .. n .. '\t' .. seq .. '\t' .. L.now_s .. '\t' .. user .. '\t'
end

-- ended: when a tombstone's reservation ended (ms), or nil.
local function ended(record)
  local at = match(record, '^[rxf]\t[^\t]*\t%d+\t%d+\t%d+\t(%d+)\t')
  return at and tonumber(at)
end

-- take_back_entry: one due entry, at most `budget` of its attempts. Returns how many it looked at, how many expired.
local function take_back_entry(L, member, score, budget)
  local n = #member / ATTEMPT
  local take = math.min(n, budget)
  local attempts = {}
  for i = 1, take do attempts[i] = sub(member, (i - 1) * ATTEMPT + 1, i * ATTEMPT) end
  local records = call('HMGET', KEYS[L.k + 1], unpack(attempts))
  local holds, users = {}, {}
  for i = 1, take do
    local user, asked, qty, num, deadline = parse_hold(records[i] or '')
    if user and deadline <= L.now then
      holds[#holds + 1] = { attempts[i], user, asked, qty, num }
      users[#users + 1] = user
    end
  end
  local texts = #users > 0 and call('HMGET', KEYS[L.k + 2], unpack(users)) or {}
  local retention, tombs, gone = tonumber(ARGV[3]), {}, {}
  call('ZREM', KEYS[L.k + 3], member)
  if take < n then call('ZADD', KEYS[L.k + 3], score, sub(member, take * ATTEMPT + 1)) end
  for i, h in ipairs(holds) do
    local u = parse_user(texts[i])
    tombs[#tombs + 1] = h[1]
    tombs[#tombs + 1] = expire(L, h[1], h[2], h[3], h[4], h[5], u)
    save_user(L, h[2], u)
    gone[i] = h[1]
  end
  if #tombs > 0 then
    call('HSET', KEYS[L.k + 1], unpack(tombs))
    file_due(L, L.now + retention, concat(gone))
  end
  local forget = {}
  for i = 1, take do
    local at = ended(records[i] or '')
    if at and at + retention <= L.now then
      forget[#forget + 1] = attempts[i]
    elseif at then
      file_due(L, at + retention, attempts[i])
    end
  end
  if #forget > 0 then call('HDEL', KEYS[L.k + 1], unpack(forget)) end
  return take, #holds
end

-- take_back: expire due holds until `want` units are available, looking at no more than `budget` attempts.
-- Returns how many expired, how much budget is left and whether due entries are left.
local function take_back(L, want, budget)
  local expired = 0
  while L.available < want do
    local e = call('ZRANGEBYSCORE', KEYS[L.k + 3], '-inf', L.now_s, 'WITHSCORES', 'LIMIT', 0, 1)
    if not e[1] then return expired, budget, false end
    if budget <= 0 then return expired, budget, true end
    local looked, n = take_back_entry(L, e[1], e[2], budget)
    budget, expired = budget - looked, expired + n
  end
  return expired, budget, false
end

-- left: how many more units the user may take; -1 without a limit.
local function left(L, u)
  if L.limit == 0 then return -1 end
  return math.max(0, L.limit - u.held - u.bought)
end
