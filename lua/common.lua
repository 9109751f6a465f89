-- Shared by every script. This file and all scripts make one library of Redis Functions (see lua.go), so what stands here
-- outside of functions runs once, when the library is loaded, and whatever changes in a call must be set anew for each: begin().
--
-- KEYS of a gated script: 1 meta, 2 outbox, 3 next, 4 due, 5 wake, 6 unfiled, then the lots.
-- ARGV of a gated script: 1 run id of the server as this connection saw it, with the history it followed if it was a replica
--      before (see life in pkg/stock/door.go), 2 owner (installation/P),
--      3 key_retention in ms; the rest is the script's own.
-- Replies start with a status: `ok`, or an error code followed by its detail. Unless it is `ok` or `again`, nothing was
-- written but what is always true: due holds taken back, a freeze because of the clock.
--
-- A script has no rollback, so no write may fail after one that counts. Reading a key proves its type; save() begins
-- with the writes to keys that were not read (a stray due entry means nothing); prove() reads them all where a script
-- must write before it has read everything.
--
-- A lot is one hash, so that a hold costs one read and one write. Its numbers are packed, which costs a tenth of parsing
-- text: LIVE, TOTALS and RULE below are the formats. Those of `live`, which every call writes, are doubles: whole numbers up to
-- 2^53, packed without a look at each byte.
--   live: available held seq mark due print                      due: the earliest due time known, 0 for none; print: of `rule`, by
--                                                                which a call knows rules that it has seen without reading them
--   totals: sold capacity                                         name: plain text
--   rule: epoch limit hold max_hold opens closes status late      opens, closes: 0 for none
--   was, frozen: plain text, of a lot whose status is `frozen`: the status it had, and why it is frozen
-- In the same hash are users and reservations. An attempt begins with its user's mark, MARK characters that all attempts of the
-- user have in common. Under the mark is what counts for the user, who is nearly always one of these:
--   one who bought nothing and has a hold: its record, as below, with the rest of its attempt behind the first letter
--   any other: held, bought, attempt of the live hold or '', user
-- A hold that is new is in no other field then, so that it costs one; once anything happens to it, or to its user, it has a
-- record like all the rest.
-- Those are by attempt, as text separated by tabs (no text may contain a control character):
--   h user asked qty n deadline created [last]          a hold; last is missing while it equals n
--   b user asked qty index batch                        a hold of a batch: n, deadline and created follow from "#batch"
--   c user asked qty n last rest refunded from ref late confirmed
--   r asked qty n last ended late                       released
--   x asked qty n last ended user late                  expired; the user is needed to take it anew
--   f asked qty n last ended total late from paid       refunded in full
-- `late` is the digest of the payment reference for which paid_late was written, `paid` that of the one confirmed with,
-- `from` the n of the expired hold that a late confirm took anew (0: none). Whatever happens to a hold of a batch, its
-- record is written in full from then on.
--   "#" and a batch: base deadline created skipped      n of index i is base + i, less the skipped indices before i;
--                                                       it goes with the due entry of its holds, when none is left
--
-- Members of `due`, all with score 0 and so in the order of their text: lot, time in 13 digits, batch or '', attempts.
-- A sorted set takes long for each member, so holds that are the only one of their lot in a call wait in `unfiled`, a list, until
-- there are many: then one entry files all of a lot. Two elements have those of a call that are due at the same time: that, in ms, then
-- a line of each, "lot attempt user key actor". Whoever looks for due holds files them first, or looks there too.
local LIVE, TOTALS, RULE = '<dddddd', '>i6i6', '>i6i6i6i6i6i6ss'
local LIVE_SIZE = 48 -- bytes
local FILLER = '.....................................................'
local ATTEMPT, MARK = 26, 16
local FIRST_LOT = 7 -- in KEYS
local MOST_REQUESTS = 700 -- of a lot in a call: each may store ten values, and Lua hands a command no more than 8,000
local MOST_RULES = 1000 -- kept from call to call, of less than 1 kB each
local MANY_UNFILED = 640 -- holds, about: then the caller is told, who groups them by lot quicker than a script does, see file.lua
local MOST_UNFILED = 2560 -- holds, about: more are filed by the call that brings them

local KEYS, ARGV
local call, pack, unpacked, fmt, match, sub, concat, unpack, tonumber, type -- of Redis and Lua; a library has them only while
-- one of its functions runs

-- The time of the call, in ms: the server's clock, but never before the mark of a lot the call works on. So it is one
-- time for all its events, and final once every lot has been read.
local now, now_s, clock_ms, clock_s
local second, second_ms -- of the server's clock, as text and in ms: parsing it takes longer than a look at a key

local retention -- in ms
local meta_bytes, meta_trimmed, bytes_s -- the last as text
local proven -- see prove
local ev, evn = {}, 0 -- events of this call, as evn pieces of text in the order of their seqs
local emitting -- the lot of the newest event
local dues, duen = {}, 0 -- due entries of this call, as ZADD wants them: duen values
local unfiled, unfiledn = {}, 0 -- this call's elements of `unfiled`, and of how many holds
local many_unfiled -- whether the caller is to file them
local unfiled_seen -- the attempts of each lot in `unfiled`, once a call that only looks has read it
local firsts, firstn = {}, 0 -- when lots must be looked at first, as ZADD wants it: firstn values

-- number: what a text says, or nil. Those of the last calls are kept, for they come again: settings, and what a call has written.
local parsed, parsedn = {}, 0
local function keep_number(text, n)
  if parsedn == 100 then parsed, parsedn = {}, 0 end
  parsed[text], parsedn = n, parsedn + 1
  return n
end
local function number(text)
  local n = parsed[text or '']
  if n or not text then return n end
  n = tonumber(text)
  return n and keep_number(text, n)
end

-- begin: makes ready for a call. Whatever the last one left, also one that ended in an error, is gone.
local function begin(keys, argv)
  KEYS, ARGV = keys, argv
  if not call then
    call, pack, unpacked, unpack, tonumber, type = redis.call, struct.pack, struct.unpack, _G.unpack, _G.tonumber, _G.type
    fmt, match, sub, concat = string.format, string.match, string.sub, table.concat
  end
  local clock = call('TIME')
  if clock[1] ~= second then second, second_ms = clock[1], clock[1] * 1000 end
  local ms = second_ms + math.floor(clock[2] / 1000)
  if ms ~= clock_ms then clock_ms, clock_s = ms, fmt('%d', ms) end
  now, now_s = clock_ms, clock_s
  retention, meta_bytes, meta_trimmed, proven = number(argv[3]), 0, 0, false
  evn, emitting, duen, firstn, unfiledn, many_unfiled, unfiled_seen = 0, nil, 0, 0, 0, false, nil
end

-- digits: a whole number as text. Writing one takes as long as a look at a key, so small ones are kept: they are of many lots.
local small = {}
local function digits(n)
  local text = small[n]
  if text then return text end
  text = fmt('%d', n)
  if n >= 0 and n <= 2000 then small[n] = text end
  return text
end

-- door: why this shard takes no call, or nil.
local function door()
  local m = call('HMGET', KEYS[1], 'owner', 'run', 'frozen', 'bytes', 'trimmed')
  if not m[1] then return { 'lot_not_loaded', 'emptied' } end
  if m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  if m[3] and m[3] ~= '' then return { 'lot_frozen', m[3] } end
  if m[2] ~= ARGV[1] then return { 'lot_frozen', 'closed_door' } end
  meta_bytes, meta_trimmed, bytes_s = number(m[4]), number(m[5]), m[4]
  if not meta_bytes or not meta_trimmed then return { 'corrupt', 'meta' } end
  if not (retention and retention >= 0 and retention <= 1e13 and retention % 1 == 0) then return { 'invalid', 'retention' } end
end

-- prove: reads every key that save() writes, so that none of its writes can fail.
local function prove()
  if proven then return end
  call('XLEN', KEYS[2])
  call('ZCARD', KEYS[3])
  call('ZCARD', KEYS[4])
  call('LLEN', KEYS[6])
  for k = FIRST_LOT, #KEYS do call('HLEN', KEYS[k]) end
  proven = true
end

-- time_text: a time of the rules as events say it.
local function time_text(at) return at > 0 and fmt('%d', at) or '' end

local function emit(text)
  evn = evn + 1
  ev[evn] = text
end

-- print_of: a number by which rules are told apart, 52 bits of their hash.
local function print_of(text) return tonumber(sub(redis.sha1hex(text), 1, 13), 16) end

-- rule_of: a lot's rules from their field, not to be changed; an error if it has none. Some are kept from call to call, by field and by
-- print: lots are mostly alike, or have times of their own; one more forgets them all, and each is read once more.
local rules, kept = {}, 0
local function rule_of(text)
  local R = rules[text]
  if R then return R end
  local epoch, limit, hold, max_hold, opens, closes, status, late = unpacked(RULE, text)
  R = { epoch = epoch, limit = limit, hold = hold, max_hold = max_hold, opens = opens, closes = closes, status = status, late = late,
    print = print_of(text), naming = '\t' .. fmt('%d', epoch) .. '\n', said = '/' .. fmt('%d', epoch) .. '/' }
  if kept == MOST_RULES then rules, kept = {}, 0 end
  rules[text], rules[R.print], kept = R, R, kept + 1
  return R
end

local function pack_rule(R, status)
  return pack(RULE, R.epoch, R.limit, R.hold, R.max_hold, R.opens, R.closes, status, R.late)
end

-- pack_totals: the counters that only settling and adjusting change as their field, filled up beyond hash-max-listpack-value (64):
-- Redis would keep a small lot in one piece, through which every look at a record has to search.
local function pack_totals(sold, capacity) return pack(TOTALS, sold, capacity) .. FILLER end

-- pack_live: what of a lot every call writes as its field.
local function pack_live(L, mark) return pack(LIVE, L.available, L.held, L.seq, mark, L.due, L.rule.print) end

-- parse_live: the numbers of `live`. Doubles need not be whole, nor numbers at all, where somebody has damaged them: an error then, for no
-- comparison with what is no number holds, and none would refuse a hold.
local function parse_live(text)
  local available, held, seq, mark, due, print = unpacked(LIVE, text)
  if (available + held + seq + mark + due) % 1 ~= 0 then error('live') end
  return available, held, seq, mark, due, print
end

-- decode: a lot from its fields, and its time mark; an error if they are none, or are not of each other. What reserve writes into it is named here,
-- because a table that grows is built anew.
local function decode(id, k, live, rule_field)
  local available, held, seq, mark, due, print = parse_live(live)
  local R = rule_of(rule_field)
  if R.print ~= print then error('print') end
  return { id = id, k = k, available = available, held = held, seq = seq, due = due, rule = R, res = false, named = false, due_moved = false,
    n = 0, at = 0, qty = 0, hold = 0, batch = '', known = false, lone = false, slot = 0, shut_by = false }, mark
end

-- open_lot: the lot behind KEYS[k] from its fields, or nil and why. Changes stay in the table until save().
local function open_lot(id, k, live, rule_field)
  if not live or not rule_field then return nil, 'lot_not_loaded' end
  local ok, L, mark = pcall(decode, id, k, live, rule_field)
  if not ok then return nil, 'corrupt' end
  if L.rule.status == 'frozen' then return nil, 'lot_frozen', call('HGET', KEYS[k], 'frozen') or '' end
  if mark > now then
    if mark - clock_ms > 2000 then
      call('HSET', KEYS[1], 'frozen', 'clock')
      return nil, 'lot_frozen', 'clock'
    end
    now, now_s = mark, fmt('%d', mark)
  end
  return L
end

local function read_lot(id, k)
  local f = call('HMGET', KEYS[k], 'live', 'rule')
  return open_lot(id, k, f[1], f[2])
end

-- read_totals: the counters that only settling and adjusting change.
local function read_totals(L)
  local text = call('HGET', KEYS[L.k], 'totals')
  local ok, sold, capacity = pcall(unpacked, TOTALS, text)
  if not ok then return false end
  L.sold, L.capacity = sold, capacity
  return true
end

-- picture: a lot's fields as text, for who asked; an error if they cannot be read.
local function picture(live, totals, rule, name, was, frozen)
  local available, held, seq, mark, due, print = parse_live(live)
  local sold, capacity = unpacked(TOTALS, totals)
  if print_of(rule) ~= print then error('print') end
  local epoch, limit, hold, max_hold, opens, closes, status, late = unpacked(RULE, rule)
  local why = ''
  if status == 'frozen' then status, why = was .. '', frozen .. '' end
  return { 'live', fmt('%d\t%d\t%d\t%d\t%d', available, held, seq, mark, due), 'totals', fmt('%d\t%d', sold, capacity),
    'rule', fmt('%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s', epoch, limit, hold, max_hold, opens, closes, status, late), 'name', name or '', 'frozen', why }
end

-- found: what is there of a lot, as who plans on it says it: 'absent', 'damaged', or the run id its shard is open on,
-- epoch and seq (tabs between).
local function found(k, run)
  local f = redis.pcall('HMGET', KEYS[k], 'live', 'totals', 'rule', 'was', 'frozen')
  if f.err then return 'damaged' end
  if not (f[1] or f[2] or f[3]) then return 'absent' end
  if not pcall(picture, f[1], f[2], f[3], '', f[4], f[5]) then return 'damaged' end
  local L = decode('', k, f[1], f[3])
  return concat({ run or '', fmt('%d', L.rule.epoch), fmt('%d', L.seq) }, '\t')
end

-- name_lot: a line names the lot wherever another one's events come before: a call that works on several lots may come
-- back to one.
local function name_lot(L)
  if emitting ~= L then
    emit('@\t' .. L.id .. L.rule.naming)
    emitting, L.named = L, true
  end
end

local function next_seq(L)
  name_lot(L)
  L.seq = L.seq + 1
  return fmt('%d', L.seq)
end

local function mark_of(attempt) return sub(attempt, 1, MARK) end

-- parse_user: what counts for a user, by what is under the mark; zeroes for one who has nothing (or a damaged record: reconcile
-- finds those). Its `record` is that of the live hold where that is in no field of its own.
local function parse_user(text, mark)
  local letter, rest, record = match(text or '', '^([hb])([a-z2-7]+)(\t.*)$')
  if letter and #rest == ATTEMPT - MARK then
    local user, qty = match(record, '^\t([^\t]*)\t[^\t]*\t(%d+)\t')
    if user then return { held = tonumber(qty), bought = 0, live = mark .. rest, user = user, record = letter .. record } end
  end
  local held, bought, live, user = match(text or '', '^(%d+)\t(%d+)\t([^\t]*)\t(.*)$')
  return { held = tonumber(held or 0), bought = tonumber(bought or 0), live = live or '', user = user }
end

-- record_of: the record of an attempt, stored in its own field or with its user; nil without one.
local function record_of(stored, u, attempt)
  return stored or u.live == attempt and u.record or nil
end

-- only_hold: what is under the mark of a user who has nothing but this hold, whose record is `h` and this.
local function only_hold(attempt, record) return 'h' .. sub(attempt, MARK + 1) .. record end

-- user_text: a user's counters as stored.
local function user_text(u) return fmt('%d\t%d\t%s\t%s', u.held, u.bought, u.live, u.user) end

-- read_attempts: what the lot has of attempts: their records and what counts for their users, shared by all attempts of one.
local function read_attempts(L, attempts)
  local n, names = #attempts, {}
  for i, attempt in ipairs(attempts) do names[i], names[n + i] = attempt, mark_of(attempt) end
  local found = call('HMGET', KEYS[L.k], unpack(names, 1, 2 * n))
  local records, users, by = {}, {}, {}
  for i, attempt in ipairs(attempts) do
    local mark = names[n + i]
    by[mark] = by[mark] or parse_user(found[n + i], mark)
    users[i] = by[mark]
    records[i] = record_of(found[i], users[i], attempt) or false
  end
  return records, users
end

local function put_record(L, attempt, record)
  local res = L.res or {}
  local n = #res
  L.res, res[n + 1], res[n + 2] = res, attempt, record
end

-- put_user: stores what counts for a user with the call; one who has nothing needs no field.
local function put_user(L, mark, u)
  if u.record then return end -- as it is stored
  if u.held == 0 and u.bought == 0 then
    L.leave = L.leave or {}
    L.leave[#L.leave + 1] = mark
  else
    put_record(L, mark, user_text(u))
  end
end

-- file_due: look at these attempts again at a time (ms, 13 digits until the year 2286). Their records decide what
-- happens then.
local function file_due(L, at, at_text, attempts, batch)
  dues[duen + 1], dues[duen + 2] = '0', L.id .. '\t' .. at_text .. '\t' .. batch .. '\t' .. attempts
  duen = duen + 2
  if L.due == 0 or at < L.due then
    L.due, L.due_moved = at, true
  end
end

-- file_again: looks at attempts that are in no batch at a time.
local function file_again(L, at, attempts)
  file_due(L, at, fmt('%013d', at), attempts, '')
end

-- take_unfiled: adds the holds of an element of `unfiled` to the attempts and earliest times of their lots.
local function take_unfiled(lots, attempts, at, time, element)
  for line in string.gmatch(element, '[^\n]*\n') do
    local id, attempt = match(line, '^([^\t]+)\t([^\t]*)\t[^\t]*\t[^\t]*\t[^\t]*$')
    if id and #attempt == ATTEMPT then
      local of = attempts[id]
      if not of then
        of = {}
        lots[#lots + 1], attempts[id], at[id] = id, of, time
      end
      of[#of + 1] = attempt
      if time < at[id] then at[id] = time end
    end
  end
end

-- read_unfiled: the lots of what is unfiled, in order, and of each the attempts and the earliest time. What is damaged is passed
-- over: nothing may fail here, and reconcile finds holds without a due entry.
local function read_unfiled()
  local lots, attempts, at, time = {}, {}, {}, nil
  for _, element in ipairs(call('LRANGE', KEYS[6], 0, -1)) do
    local before = time
    time = tonumber(match(element, '^%d+$') or '')
    if before and not time then take_unfiled(lots, attempts, at, before, element) end
  end
  return lots, attempts, at
end

-- file_unfiled: files all of them, at once: what is read behind it must see their entries.
local function file_unfiled()
  if call('LLEN', KEYS[6]) == 0 then return end
  local lots, attempts, at = read_unfiled()
  local entries, n = {}, 0
  for _, id in ipairs(lots) do
    entries[n + 1], entries[n + 2] = '0', id .. '\t' .. fmt('%013d', at[id]) .. '\t\t' .. concat(attempts[id])
    n = n + 2
  end
  for i = 1, n, 4000 do call('ZADD', KEYS[4], unpack(entries, i, math.min(n, i + 3999))) end
  call('DEL', KEYS[6])
end

-- keep_unfiled: adds the holds of this call that are to be filed later, and files all there are if these are many. Whoever holds
-- is told at once if they could not be filed then.
local function keep_unfiled()
  if unfiledn == 0 then return end
  call('ZCARD', KEYS[4])
  local holds = call('RPUSH', KEYS[6], unpack(unfiled)) * unfiledn / #unfiled -- if the calls before were like this one
  many_unfiled = holds >= MANY_UNFILED
  if holds >= MOST_UNFILED then file_unfiled() end
end

-- look_first: when the lot must be looked at first, where its stored entries begin at `due` (0: none) and the call's own
-- from dues[from] on.
local function look_first(L, due, from)
  for i = from, duen, 2 do
    local at = tonumber(match(dues[i], '^[^\t]*\t(%d+)\t'))
    if due == 0 or at < due then due = at end
  end
  L.due, L.due_moved = due, true
end

local function save_lot(L)
  if L.leave then call('HDEL', KEYS[L.k], unpack(L.leave)) end
  local live = pack_live(L, now)
  if L.sold then put_record(L, 'totals', pack_totals(L.sold, L.capacity)) end
  if L.res then
    call('HSET', KEYS[L.k], 'live', live, unpack(L.res))
  else
    call('HSET', KEYS[L.k], 'live', live)
  end
end

-- look_at: the time when a lot must be looked at first has moved.
local function look_at(id, due)
  firsts[firstn + 1], firsts[firstn + 2] = fmt('%d', due), id
  firstn = firstn + 2
end

-- file: writes the due entries, and when to look at each lot first. Returns whether any of those times has moved.
local function file(lots)
  keep_unfiled()
  for i = 1, duen, 4000 do call('ZADD', KEYS[4], unpack(dues, i, math.min(duen, i + 3999))) end
  local gone = {}
  for _, L in ipairs(lots) do
    if L.due_moved and L.due > 0 then
      look_at(L.id, L.due)
    elseif L.due_moved then
      gone[#gone + 1] = L.id
    end
  end
  if firstn > 0 then call('ZADD', KEYS[3], unpack(firsts, 1, firstn)) end
  if #gone > 0 then call('ZREM', KEYS[3], unpack(gone)) end
  return firstn + #gone > 0
end

local owner, installation -- of the last call, and mostly of every one

-- save: everything the call has changed. Called once, at the end, with the lots that were read; save_others writes lots that
-- are in no such table.
local function save(lots, save_others)
  local moved = file(lots)
  if evn > 0 then
    local body = concat(ev, '', 1, evn)
    if ARGV[2] ~= owner then owner, installation = ARGV[2], match(ARGV[2], '^[^/]*') end
    call('XADD', KEYS[2], '*', 'v', '1', 'i', installation, 't', now_s, 'o', bytes_s, 'd', body)
    local bytes = fmt('%d', meta_bytes + #body)
    keep_number(bytes, meta_bytes + #body)
    call('HSET', KEYS[1], 'bytes', bytes)
  end
  for _, L in ipairs(lots) do
    if L.named or L.due_moved then save_lot(L) end
  end
  if save_others then save_others() end
  if moved then
    local first = call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    if first[1] then call('SET', KEYS[5], '1', 'PX', fmt('%d', math.max(1, first[2] - now))) end
  end
end

-- explicit: a record in full. A hold of a batch leaves to the batch what all holds of its call share; one whose batch is
-- lost stays as it is, and nobody can read it.
local function explicit(L, record)
  if not record or sub(record, 1, 1) ~= 'b' then return record end
  local what, index, batch = match(record, '^b(\t[^\t]*\t[^\t]*\t%d+\t)(%d+)\t(.+)$')
  if not batch then return record end
  L.batches = L.batches or {}
  local shared = L.batches[batch] or call('HGET', KEYS[L.k], '#' .. batch)
  L.batches[batch] = shared
  local base, term, skipped = match(shared or '', '^(%d+)(\t%d+\t%d+)\t([%d,]*)$')
  if not base then return record end
  local n = base + index
  for i in string.gmatch(skipped, '%d+') do
    if tonumber(i) < tonumber(index) then n = n - 1 end
  end
  return 'h' .. what .. fmt('%d', n) .. term
end

-- unfold: gives the hold that is stored with its user a field of its own, in full, unless it is this attempt, whose record is about
-- to be written: what counts for the user changes.
local function unfold(L, u, attempt)
  if u.record and u.live ~= attempt then put_record(L, u.live, explicit(L, u.record)) end
  u.record = nil
end

local HOLD = '^h\t([^\t]*)\t([^\t]*)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t?(%d*)$'

-- parse_hold: user, asked, qty, n, deadline of a hold, or nil for any other record.
local function parse_hold(record)
  local user, asked, qty, n, deadline = match(record or '', HOLD)
  if user then return user, asked, tonumber(qty), n, tonumber(deadline) end
end

-- expire: the counters, the event and the tombstone of one hold whose deadline has passed. u is what counts for its user.
-- The caller stores the tombstone, the user and a due entry for the end of its retention.
local function expire(L, attempt, user, asked, qty, n, u)
  local seq = next_seq(L)
  unfold(L, u, attempt)
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

-- due_range: where in `due` the entries of a lot are whose time has passed.
local function due_range(id)
  return '[' .. id .. '\t', '(' .. id .. '\t' .. fmt('%013d', now + 1)
end

-- first_due: the time of the lot's earliest due entry; 0 without one.
local function first_due(id)
  local first = call('ZRANGEBYLEX', KEYS[4], '[' .. id .. '\t', '(' .. id .. '\n', 'LIMIT', 0, 1)
  return tonumber(match(first[1] or '', '^[^\t]*\t(%d+)\t') or 0)
end

-- file_rest: files anew what of an entry is not over yet, for the entry may have been the only one, and forgets what is; the entry's batch
-- too, unless it is still needed.
local function file_rest(L, attempts, records, batch, needed)
  local forget = {}
  for i, attempt in ipairs(attempts) do
    local over, user, _, _, _, deadline = ended(records[i]), parse_hold(records[i])
    if over and over + retention <= now then
      forget[#forget + 1] = attempt
    elseif over then
      file_again(L, over + retention, attempt)
    elseif user and deadline > now then
      file_due(L, deadline, fmt('%013d', deadline), attempt, batch)
      needed = true
    end
  end
  if batch ~= '' and not needed then forget[#forget + 1] = '#' .. batch end
  if #forget > 0 then call('HDEL', KEYS[L.k], unpack(forget)) end
end

-- take_back_entry: one due entry, at most `budget` of its attempts. Its writes are immediate: what is read behind it
-- must see them. Returns how many attempts it looked at and how many holds expired.
local function take_back_entry(L, member, budget)
  local at, batch, all = match(member, '^[^\t]*\t(%d+)\t([^\t]*)\t(.*)$')
  local attempts = attempts_of(all or '', budget)
  if #attempts == 0 then
    call('ZREM', KEYS[4], member)
    return 1, 0
  end
  local records, users = read_attempts(L, attempts)
  local holds, seen = {}, {}
  for i, attempt in ipairs(attempts) do
    records[i] = explicit(L, records[i])
    local user, asked, qty, n, deadline = parse_hold(records[i])
    if user and deadline <= now and not seen[attempt] then -- a damaged entry may name one twice
      seen[attempt] = true
      holds[#holds + 1] = { attempt, user, asked, qty, n, users[i] }
    end
  end
  call('ZREM', KEYS[4], member)
  local cut = #all > #attempts * ATTEMPT
  if cut then call('ZADD', KEYS[4], '0', concat({ L.id, at, batch, sub(all, #attempts * ATTEMPT + 1) }, '\t')) end
  local tombs, gone = {}, {}
  for i, h in ipairs(holds) do
    local u = h[6]
    u.user = u.user or h[2]
    if u.record and u.live ~= h[1] then -- where counters were lost
      tombs[#tombs + 1], tombs[#tombs + 2] = u.live, explicit(L, u.record)
      u.record = nil
    end
    tombs[#tombs + 1] = h[1]
    tombs[#tombs + 1] = expire(L, h[1], h[2], h[3], h[4], h[5], u)
    if u.held == 0 and u.bought == 0 then
      call('HDEL', KEYS[L.k], mark_of(h[1]))
    else
      call('HSET', KEYS[L.k], mark_of(h[1]), user_text(u))
    end
    gone[i] = h[1]
  end
  if #gone > 0 then
    call('HSET', KEYS[L.k], unpack(tombs))
    file_again(L, now + retention, concat(gone))
  end
  file_rest(L, attempts, records, batch, cut)
  return #attempts, #holds
end

-- take_back: expire due holds until `want` units are available, looking at no more than `budget` attempts.
-- Returns how many expired, whether due entries are left, and what is left of the budget.
local function take_back(L, want, budget)
  local expired = 0
  if L.available < want and L.due > 0 and L.due <= now then
    prove()
    file_unfiled()
  end
  while L.available < want do
    local from, to = due_range(L.id)
    local e = call('ZRANGEBYLEX', KEYS[4], from, to, 'LIMIT', 0, 1)
    if not e[1] then return expired, false, budget end
    if not (budget >= 1) then return expired, true, budget end
    prove()
    local looked, n = take_back_entry(L, e[1], budget)
    budget, expired = budget - looked, expired + n
  end
  return expired, false, budget
end

-- due_units: in a call that writes nothing, units of the lot's holds whose deadline has passed, as far as the budget of attempts reaches.
local function due_units(L, budget)
  local units, seen = 0, {}
  local from, to = due_range(L.id)
  local members = call('ZRANGEBYLEX', KEYS[4], from, to, 'LIMIT', 0, budget)
  if L.due > 0 and L.due <= now then
    if not unfiled_seen then
      local _
      _, unfiled_seen = read_unfiled()
    end
    members[#members + 1] = concat(unfiled_seen[L.id] or {})
  end
  for _, member in ipairs(members) do
    if not (budget >= 1) then return units end
    local attempts = attempts_of(match(member, '([^\t]*)$'), budget)
    budget = budget - #attempts
    for i, record in ipairs(#attempts > 0 and read_attempts(L, attempts) or {}) do -- none in a damaged entry
      local user, _, qty, _, deadline = parse_hold(explicit(L, record))
      if user and deadline <= now and not seen[attempts[i]] then units = units + qty end
      seen[attempts[i]] = true
    end
  end
  return units
end

-- left: how many more units the user may take; -1 without a limit.
local function left(L, u)
  local limit = L.rule.limit
  if limit == 0 then return -1 end
  return math.max(0, limit - (u and u.held + u.bought or 0))
end
