-- Shared by every script: the loader puts this file behind the shebang line of each.
--
-- KEYS of a gated script: 1 meta, 2 outbox, 3 next, 4 wake, then three for each lot: lot, res, due.
-- ARGV of a gated script: 1 run id of the server as this connection saw it, 2 owner (installation/P),
--      3 key_retention in ms; the rest is the script's own.
-- Replies start with a status: `ok`, or an error code followed by its detail. Unless it is `ok` or `again`, nothing was
-- written but what is always true: due holds taken back, a freeze because of the clock.
--
-- A script has no rollback, so no write may fail after one that counts. Reading a key proves its type; save() begins
-- with the writes to keys that were not read (a stray due entry means nothing); prove() reads them all where a script
-- must write before it has read everything.
--
-- Fields of `lot`, values separated by tabs (no text may contain a control character):
--   live: available held seq mark due                    due: the earliest due time known, 0 for none
--   totals: sold capacity                                 name
--   rule: epoch status limit hold max_hold window late    window: '' or "opens/closes", each may be empty
-- Few fields, because reading and writing a field costs more than parsing it.
--
-- Records in `res`, by attempt:
--   h user asked qty n deadline created [last]          a hold; last is missing while it equals n
--   c user asked qty n last rest refunded from ref late confirmed
--   r asked qty n last ended late                       released
--   x asked qty n last ended user late                  expired; the user is needed to take it anew
--   f asked qty n last ended total late from paid       refunded in full
-- `late` is the digest of the payment reference for which paid_late was written, `paid` that of the one confirmed with,
-- `from` the n of the expired hold that a late confirm took anew (0: none).
-- Also in `res`, by "@" and the user: held, bought, attempt of the live hold. One hash, so that a hold is one write.
local KEYS, ARGV = KEYS, ARGV -- a local is read faster than a global
local call, fmt, match, sub, concat = redis.call, string.format, string.match, string.sub, table.concat
local ATTEMPT = 26

-- The time of the call, in ms: the server's clock, but never before the mark of a lot the call works on. So it is one
-- time for all its events, and final once every lot has been read.
local clock = call('TIME')
local clock_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now, now_s = clock_ms, fmt('%d', clock_ms)

local retention = tonumber(ARGV[3])
local meta_bytes, meta_trimmed = 0, 0

-- door: why this shard takes no call, or nil.
local function door()
  local m = call('HMGET', KEYS[1], 'owner', 'run', 'frozen', 'bytes', 'trimmed')
  if not m[1] then return { 'lot_not_loaded', 'emptied' } end
  if m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  if m[3] and m[3] ~= '' then return { 'lot_frozen', m[3] } end
  if m[2] ~= ARGV[1] then return { 'lot_frozen', 'closed_door' } end
  meta_bytes, meta_trimmed = tonumber(m[4]), tonumber(m[5])
  if not meta_bytes or not meta_trimmed then return { 'corrupt', 'meta' } end
  if not (retention and retention >= 0 and retention <= 1e13) then return { 'invalid', 'retention' } end
end

local proven = false

-- prove: reads every key that save() writes, so that none of its writes can fail.
local function prove()
  if proven then return end
  call('XLEN', KEYS[2])
  call('ZCARD', KEYS[3])
  for k = 5, #KEYS, 3 do
    call('HLEN', KEYS[k + 1])
    call('ZCARD', KEYS[k + 2])
  end
  proven = true
end

-- Events of this call, as pieces of text in the order of their seqs.
local ev, evn = {}, 0
local function emit(text)
  evn = evn + 1
  ev[evn] = text
end

-- read_lot: the lot behind KEYS[k], or nil and why. Changes stay in the table until save().
local function read_lot(id, k)
  local f = call('HMGET', KEYS[k], 'live', 'rule')
  if not f[1] or not f[2] then return nil, 'lot_not_loaded' end
  local available, held, seq, mark, due = match(f[1], '^(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)$')
  local epoch, status, limit, hold, max_hold, window, late = match(f[2], '^(%d+)\t(%a+)\t(%d+)\t(%d+)\t(%d+)\t([%d/]*)\t(%a+)$')
  if not available or not epoch then return nil, 'corrupt' end
  mark = tonumber(mark)
  if mark - clock_ms > 2000 then
    call('HSET', KEYS[1], 'frozen', 'clock')
    return nil, 'lot_frozen', 'clock'
  end
  if mark > now then now, now_s = mark, fmt('%d', mark) end
  return { id = id, k = k, available = tonumber(available), held = tonumber(held), seq = tonumber(seq), due = tonumber(due), epoch = epoch, status = status,
    limit = tonumber(limit), hold = hold, max_hold = max_hold, window = window, late = late, res = {}, dues = {} }
end

-- read_totals: the counters that only settling and adjusting change.
local function read_totals(L)
  local sold, capacity = match(call('HGET', KEYS[L.k], 'totals') or '', '^(%d+)\t(%d+)$')
  L.sold, L.capacity = tonumber(sold or 0), tonumber(capacity or 0)
  return capacity
end

local emitting -- the lot of the newest event

-- next_seq: the seq of the lot's next event. A line names the lot wherever another one's events come before: a call
-- that works on several lots may come back to one.
local function next_seq(L)
  if emitting ~= L then
    emit('@\t' .. L.id .. '\t' .. L.epoch .. '\n')
    emitting, L.named = L, true
  end
  L.seq = L.seq + 1
  return fmt('%d', L.seq)
end

-- parse_user: the counters of a user; zeroes for one who has nothing (or a damaged record: reconcile finds those).
local function parse_user(text)
  local held, bought, live = match(text or '', '^(%d+)\t(%d+)\t(.*)$')
  return { held = tonumber(held or 0), bought = tonumber(bought or 0), live = live or '' }
end

local function put_record(L, attempt, record)
  local n = #L.res
  L.res[n + 1], L.res[n + 2] = attempt, record
end

-- put_user: stores a user's counters with the call; one who has nothing needs no record.
local function put_user(L, user, u)
  if u.held == 0 and u.bought == 0 then
    L.leave = L.leave or {}
    L.leave[#L.leave + 1] = '@' .. user
  else
    put_record(L, '@' .. user, fmt('%d\t%d\t%s', u.held, u.bought, u.live))
  end
end

-- file_due: look at these attempts again at a time (ms). Their records decide what happens then.
local function file_due(L, at, attempts)
  local n = #L.dues
  L.dues[n + 1], L.dues[n + 2] = at, attempts
  if L.due == 0 or at < L.due then
    L.due, L.due_moved = at, true
  end
end

local function save_lot(L)
  if L.leave then call('HDEL', KEYS[L.k + 1], unpack(L.leave)) end
  if #L.res > 0 then call('HSET', KEYS[L.k + 1], unpack(L.res)) end
  local live = fmt('%d\t%d\t%d\t%s\t%d', L.available, L.held, L.seq, now_s, L.due)
  if L.sold then
    call('HSET', KEYS[L.k], 'live', live, 'totals', fmt('%d\t%d', L.sold, L.capacity))
  else
    call('HSET', KEYS[L.k], 'live', live)
  end
end

-- save: everything the call has changed. Called once, at the end, with the lots that were read.
local function save(lots)
  local moved = false
  for _, L in ipairs(lots) do
    for i = 1, #L.dues, 2 do call('ZADD', KEYS[L.k + 2], fmt('%d', L.dues[i]), L.dues[i + 1]) end
    if L.due_moved then
      moved = true
      if L.due > 0 then call('ZADD', KEYS[3], fmt('%d', L.due), L.id) else call('ZREM', KEYS[3], L.id) end
    end
  end
  if evn > 0 then
    local body = concat(ev, '', 1, evn)
    call('XADD', KEYS[2], '*', 'v', '1', 'i', match(ARGV[2], '^[^/]*'), 't', now_s, 'o', fmt('%d', meta_bytes), 'd', body)
    call('HSET', KEYS[1], 'bytes', fmt('%d', meta_bytes + #body))
  end
  for _, L in ipairs(lots) do
    if L.named or L.due_moved then save_lot(L) end
  end
  if moved then
    local first = call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    if first[1] then call('SET', KEYS[4], '1', 'PX', fmt('%d', math.max(1, first[2] - now))) end
  end
end

local HOLD = '^h\t([^\t]*)\t([^\t]*)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t?(%d*)$'

-- parse_hold: user, asked, qty, n, deadline of a hold, or nil for any other record.
local function parse_hold(record)
  local user, asked, qty, n, deadline = match(record or '', HOLD)
  if user then return user, asked, tonumber(qty), n, tonumber(deadline) end
end

-- expire: the counters, the event and the tombstone of one hold whose deadline has passed.
-- The caller stores the tombstone, the user and a due entry for the end of its retention.
local function expire(L, attempt, user, asked, qty, n, u)
  local seq = next_seq(L)
  L.available, L.held = L.available + qty, L.held - qty
  u.held = math.max(0, u.held - qty)
  if u.live == attempt then u.live = '' end
  emit(attempt .. '\tx\t' .. seq .. '\t' .. n .. '\t' .. user .. '\t' .. qty .. '\t\t\n')
  return 'x\t' .. asked .. '\t' .. qty .. '\t' .. n .. '\t' .. seq .. '\t' .. now_s .. '\t' .. user .. '\t'
end

-- ended: when a tombstone's reservation ended (ms), or nil.
local function ended(record)
  local at = match(record or '', '^[rxf]\t[^\t]*\t%d+\t%d+\t%d+\t(%d+)\t')
  return at and tonumber(at)
end

local function attempts_of(member, most)
  local attempts = {}
  for i = 1, math.min(#member / ATTEMPT, most) do attempts[i] = sub(member, (i - 1) * ATTEMPT + 1, i * ATTEMPT) end
  return attempts
end

-- take_back_entry: one due entry, at most `budget` of its attempts. Its writes are immediate: what is read behind it
-- must see them. Returns how many attempts it looked at and how many holds expired.
local function take_back_entry(L, member, score, budget)
  local attempts = attempts_of(member, budget)
  if #attempts == 0 then
    call('ZREM', KEYS[L.k + 2], member)
    return 1, 0
  end
  local records = call('HMGET', KEYS[L.k + 1], unpack(attempts))
  local holds, users = {}, {}
  for i, attempt in ipairs(attempts) do
    local user, asked, qty, n, deadline = parse_hold(records[i])
    if user and deadline <= now then
      holds[#holds + 1] = { attempt, user, asked, qty, n }
      users[#users + 1] = '@' .. user
    end
  end
  local texts = #users > 0 and call('HMGET', KEYS[L.k + 1], unpack(users)) or {}
  call('ZREM', KEYS[L.k + 2], member)
  if #member > #attempts * ATTEMPT then call('ZADD', KEYS[L.k + 2], score, sub(member, #attempts * ATTEMPT + 1)) end
  local tombs, gone, forget = {}, {}, {}
  for i, h in ipairs(holds) do
    local u = parse_user(texts[i])
    tombs[#tombs + 1] = h[1]
    tombs[#tombs + 1] = expire(L, h[1], h[2], h[3], h[4], h[5], u)
    if u.held == 0 and u.bought == 0 then
      call('HDEL', KEYS[L.k + 1], users[i])
    else
      call('HSET', KEYS[L.k + 1], users[i], fmt('%d\t%d\t%s', u.held, u.bought, u.live))
    end
    gone[i] = h[1]
  end
  if #gone > 0 then
    call('HSET', KEYS[L.k + 1], unpack(tombs))
    file_due(L, now + retention, concat(gone))
  end
  for i, attempt in ipairs(attempts) do
    -- What is not over yet is filed again: this entry may have been the only one.
    local at, user, _, _, _, deadline = ended(records[i]), parse_hold(records[i])
    if at and at + retention <= now then
      forget[#forget + 1] = attempt
    elseif at then
      file_due(L, at + retention, attempt)
    elseif user and deadline > now then
      file_due(L, deadline, attempt)
    end
  end
  if #forget > 0 then call('HDEL', KEYS[L.k + 1], unpack(forget)) end
  return #attempts, #holds
end

-- take_back: expire due holds until `want` units are available, looking at no more than `budget` attempts.
-- Returns how many expired, whether due entries are left, and what is left of the budget.
local function take_back(L, want, budget)
  local expired = 0
  while L.available < want do
    local e = call('ZRANGEBYSCORE', KEYS[L.k + 2], '-inf', now_s, 'WITHSCORES', 'LIMIT', 0, 1)
    if not e[1] then return expired, false, budget end
    if not (budget >= 1) then return expired, true, budget end
    prove()
    local looked, n = take_back_entry(L, e[1], e[2], budget)
    budget, expired = budget - looked, expired + n
  end
  return expired, false, budget
end

-- due_units: units of the lot's holds whose deadline has passed, as far as the budget of attempts reaches.
local function due_units(k, budget)
  local units, seen = 0, {}
  for _, member in ipairs(call('ZRANGEBYSCORE', KEYS[k + 2], '-inf', now_s, 'LIMIT', 0, budget)) do
    local attempts = attempts_of(member, budget)
    budget = budget - #attempts
    if #attempts == 0 then return units end
    for i, record in ipairs(call('HMGET', KEYS[k + 1], unpack(attempts))) do
      local user, _, qty, _, deadline = parse_hold(record)
      if user and deadline <= now and not seen[attempts[i]] then units = units + qty end
      seen[attempts[i]] = true
    end
  end
  return units
end

-- left: how many more units the user may take; -1 without a limit.
local function left(L, u)
  if L.limit == 0 then return -1 end
  return math.max(0, L.limit - (u and u.held + u.bought or 0))
end
