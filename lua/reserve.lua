#!lua
-- reserve: many holds, for any number of lots of one shard, in one call.
--
-- KEYS  gated, see common.lua
-- ARGV  4 outbox ceiling in bytes, 5 how many due attempts may be looked at in all, 6 the requests, packed with
--       MessagePack because thousands of small arguments cost more. First the number m of lots with one request; unless
--       it is 0, the quantity and hold (ms, 0: the lot's own) that all of these ask for, and for each its attempt, its user's mark,
--       and the constant part of what is stored under it: "h", the rest of the attempt and " user asked qty ".
--       Then for each other lot its id, the number n of its requests, the quantity and hold that all of them ask for, or -1 and
--       -1 where they differ, and a batch, or '' for none; then columns of n values: attempt, mark, what is stored, which is
--         of a batch: "b", the rest of the attempt and " user asked qty index batch"; then one text with a line "attempt user key actor" for each
--         of no batch: as above; then a column of tails of events, "\tkey\tactor\t0\n", and, where they differ, quantity, hold, and 1
--         to replace the user's live hold or 0
--       Attempts and marks are distinct within a lot; a batch is a name its lot has never had.
--       7 for each of the m lots, in the same order, a line "lot attempt user key actor"
-- Reply ok, "unfiled" if the caller is to file what waits for that (see file.lua) or '', now, a head, then for each of the m lots a line, "!! code detail" if the lot takes no calls; then for each
--       other lot a head and lines:
--       "!" and "code detail"                                the lot takes no calls
--       "left deadline created base" and lines "index answer"   a batch; who has no line is held, n as the batch's field says
--       "left deadline created" or "" and a line a request:
--       n                      held; the head says the rest
--       + left n deadline created
--       = left record          the key is known: its reservation as it is now
--       ! code a b             refused; hold_exists: left, attempt, record; customer_limit: left; sold_out: left, available; invalid: left, max_hold; others: left
--       again                  due holds are left, repeat
-- Flags none: refused when Redis is out of memory.

local LONE_SLOT = 5 -- where in the reply the lots with one request begin

-- The values of the call, as they come unpacked, and why no new hold is taken, or nil; the tails of the lots with one request, once
-- they are needed.
local A, full, lone_tails

local function valid(qty, hold)
  return type(qty) == 'number' and qty >= 1 and qty <= 1e9 and qty % 1 == 0 and type(hold) == 'number' and hold >= 0 and hold < 1e11 and hold % 1 == 0
end

-- wanted: how many units the n requests of a lot ask for, whose columns start at A[at], and where they end; nil if a
-- request is not what the contract says.
local function wanted(n, qty, hold, batch, at)
  if not (type(n) == 'number' and n >= 1 and n <= MOST_REQUESTS and n % 1 == 0 and type(batch) == 'string') then return nil end
  local stop = at + 3 * n + (batch ~= '' and 1 or qty == -1 and 4 * n or n)
  for i = at + n, stop - 1 do
    if not A[i] then return nil end
  end
  for i = at, at + n - 1 do
    if #A[i] ~= ATTEMPT then return nil end
  end
  if qty ~= -1 then return valid(qty, hold) and n * qty, stop end
  local sum = 0
  for i = at + 4 * n, at + 5 * n - 1 do
    if batch ~= '' or not valid(A[i], A[i + n]) or type(A[i + 2 * n]) ~= 'number' then return nil end
    sum = sum + A[i]
  end
  return sum, stop
end

-- What is asked of a lot: L.n requests, whose columns start at A[L.at], for L.qty and L.hold each, or -1, as the batch
-- L.batch, or ''; L.known are the records of their attempts and users.

-- read_known: the records of a lot's requests, behind its own fields.
local function read_known(k, n, at)
  return call('HMGET', KEYS[k], 'live', 'rule', unpack(A, at, at + 2 * n - 1))
end

-- closed: why the lot takes no new hold, or nil.
local function closed(R)
  if R.status ~= 'open' then return R.status == 'paused' and 'lot_paused' or 'sale_closed' end
  if R.closes > 0 and now >= R.closes then return 'sale_closed' end
  if now < R.opens then return 'sale_not_open' end
  return full
end

-- end_hold: expires a hold whose deadline has passed; returns its tombstone.
local function end_hold(L, attempt, user, asked, qty, n, u)
  local tomb = expire(L, attempt, user, asked, qty, n, u)
  put_record(L, attempt, tomb)
  put_user(L, mark_of(attempt), u)
  file_again(L, now + retention, attempt)
  return tomb
end

-- replay: the answer for a known key. Its hold is ended first if it is due.
local function replay(L, attempt, record, constant, u)
  record = explicit(L, record)
  local user, asked, qty, n, deadline = parse_hold(record)
  if user and deadline <= now then record = end_hold(L, attempt, user, asked, qty, n, u) end
  local was = match(record, '^[hc]\t[^\t]*\t([^\t]*)') or match(record, '^[rxf]\t([^\t]*)')
  if was ~= match(constant, '^[^\t]*\t[^\t]*\t([^\t]*)') then return '!\tkey_reused\t' .. left(L, u) end
  return '=\t' .. left(L, u) .. '\t' .. record
end

-- live_hold: the record of the user's hold if it still runs; one that is due is ended.
local function live_hold(L, u)
  if u.live == '' then return nil end
  local record = explicit(L, u.record or call('HGET', KEYS[L.k], u.live))
  local user, asked, qty, n, deadline = parse_hold(record)
  if user and deadline > now then return record end
  if user then end_hold(L, u.live, user, asked, qty, n, u) end
end

-- refuse: why a request that is no replay is refused, in the decided order, or nil. back: units of the live hold that it
-- replaces, nil if it replaces none.
local function refuse(L, u, live, back, qty, hold)
  local may, limit = left(L, u), L.rule.limit
  if L.shut_by then return '!\t' .. L.shut_by .. '\t' .. may end
  if live and not back then return '!\thold_exists\t' .. may .. '\t' .. u.live .. '\t' .. live end
  back = back or 0
  if limit > 0 and u.held - back + u.bought + qty > limit then return '!\tcustomer_limit\t' .. may end
  if hold > L.rule.max_hold then return '!\tinvalid\t' .. may .. '\t' .. fmt('%d', L.rule.max_hold) end
  if qty > L.available + back then return L.more and 'again' or '!\tsold_out\t' .. may .. '\t' .. fmt('%d', L.available) end
end

-- term: when a hold for a time ends, as a number and as text, and the variable end of its record. The last one is kept:
-- it is mostly the next one too.
local term_at, term_text, term_end
local function term(L, hold)
  local at = now + (hold == 0 and L.rule.hold or hold)
  if at ~= term_at then
    term_at, term_text = at, fmt('%013d', at)
    term_end = fmt('\t%d\t', at) .. now_s
  end
  return at, term_text, term_end
end

-- tails_in: the ends of the events that lines ending in key and actor are about.
local function tails_in(lines)
  local tails = {}
  for key, actor in string.gmatch(lines, '\t([^\n\t]*)\t([^\n\t]*)\n') do tails[#tails + 1] = '\t' .. key .. '\t' .. actor .. '\t0\n' end
  return tails
end

-- tail_of: the end of the event of request i.
local function tail_of(L, i)
  if L.lone then
    lone_tails = lone_tails or tails_in(ARGV[7])
    return lone_tails[L.slot - LONE_SLOT + 1]
  end
  if L.batch == '' then return A[L.at + 3 * L.n + i] end
  L.tails = L.tails or tails_in(A[L.at + 3 * L.n])
  return L.tails[i + 1]
end

-- give_back: releases the user's live hold, which the request with this tail replaces.
local function give_back(L, u, live, tail)
  local user, asked, qty, n = parse_hold(live)
  local seq = next_seq(L)
  L.available, L.held, u.held = L.available + qty, L.held - qty, math.max(0, u.held - qty)
  emit(concat({ u.live, 'r', seq, n, user, qty, match(tail, '^\t[^\t]*\t([^\t]*)') or '', 'replaced', '0\n' }, '\t'))
  put_record(L, u.live, concat({ 'r', asked, qty, n, seq, now_s, '' }, '\t'))
  u.record = nil
  file_again(L, now + retention, u.live)
end

-- answer_one: holds request i of a lot, or says why not. Attempts held are added to `held`, by their deadline.
local function answer_one(L, i, held)
  local n, at = L.n, L.at
  local attempt, mark, constant = A[at + i], A[at + n + i], A[at + 2 * n + i]
  local u = parse_user(L.known[3 + n + i], mark)
  local known, user, asked = record_of(L.known[3 + i], u, attempt), match(constant, '^[^\t]*\t([^\t]*)(\t[^\t]*\t%d+\t)')
  if (u.user or user) ~= user then return '!\tconflict\t' .. left(L, u) end -- of two users one mark
  u.user = user
  local qty, hold, replaces = L.qty, L.hold, false
  if qty == -1 then qty, hold, replaces = A[at + 4 * n + i], A[at + 5 * n + i], A[at + 6 * n + i] == 1 end
  if known then return replay(L, attempt, known, constant, u) end
  local live, tail = live_hold(L, u), tail_of(L, i)
  local back = live and replaces and select(3, parse_hold(live)) or nil
  local refusal = refuse(L, u, live, back, qty, hold)
  if refusal then return refusal end
  if back then give_back(L, u, live, tail) end
  unfold(L, u, attempt) -- where nobody can read it
  local deadline, _, ending = term(L, hold)
  local seq = next_seq(L)
  local record, only = '\t' .. user .. asked .. seq .. ending, u.held == 0 and u.bought == 0
  L.available, L.held = L.available - qty, L.held + qty
  u.held, u.live = u.held + qty, attempt
  if only then
    put_record(L, mark, only_hold(attempt, record))
  else
    put_record(L, attempt, 'h' .. record)
    put_record(L, mark, user_text(u))
  end
  emit(attempt .. '\th' .. record .. tail)
  local same = held[deadline] or {}
  held[deadline], same[#same + 1] = same, attempt
  return fmt('+\t%d\t%s', left(L, u), seq) .. ending
end

local function file_held(L, held)
  for at, attempts in pairs(held) do file_again(L, at, concat(attempts)) end
end

-- one_by_one: the answers of a lot about which nothing is certain.
local function one_by_one(L)
  local out, held = {}, {}
  for i = 0, L.n - 1 do out[i + 1] = answer_one(L, i, held) end
  file_held(L, held)
  return '', concat(out, '\n')
end

-- head: what all holds of a lot that ask for the same share in the reply.
local function head(L, ending)
  return fmt('%d', L.rule.limit == 0 and -1 or L.rule.limit - L.qty) .. ending
end

-- all_new: the answers of a lot that has enough for all, where nobody is known.
local function all_new(L)
  local n, at, seq, res, attempts, lines = L.n, L.at, L.seq, {}, A[L.at], nil
  local deadline, deadline_text, ending = term(L, L.hold)
  name_lot(L)
  for i = 0, n - 1 do
    local attempt, constant, number = A[at + i], A[at + 2 * n + i], fmt('%d', seq + i + 1)
    res[2 * i + 1], res[2 * i + 2] = A[at + n + i], constant .. number .. ending
    emit(attempt .. '\th' .. match(constant, '\t.*') .. number .. ending .. A[at + 3 * n + i])
    lines = lines and lines .. '\n' .. number or number
    if i > 0 then attempts = attempts .. attempt end
  end
  file_due(L, deadline, deadline_text, attempts, '')
  L.res, L.seq, L.available, L.held = res, seq + n, L.available - n * L.qty, L.held + n * L.qty
  return head(L, ending), lines
end

-- hold_batch: holds all of a batch but the odd ones, who are known and answered one by one. Nothing of a hold is put
-- together here: its record names the batch, which has what all of them share.
local function hold_batch(L, odd)
  local n, at, out, held, by_itself, attempts = L.n, L.at, {}, {}, {}, {}
  for j, i in ipairs(odd) do
    out[j] = fmt('%d', i) .. '\t' .. answer_one(L, i - 1, held)
    by_itself[i] = true
  end
  file_held(L, held)
  local deadline, deadline_text, ending = term(L, L.hold)
  local base, skipped = fmt('%d', L.seq), concat(odd, ',')
  put_record(L, '#' .. L.batch, base .. ending .. '\t' .. skipped)
  local res, m = L.res, n - #odd
  local k = #res
  if m == n then -- the usual case, and the hot loop
    for i = at + n, at + 2 * n - 1 do
      res[k + 1], res[k + 2] = A[i], A[i + n]
      k = k + 2
    end
    attempts = concat(A, '', at, at + n - 1)
  else
    for i = at, at + n - 1 do
      if not by_itself[i - at + 1] then
        res[k + 1], res[k + 2] = A[i + n], A[i + 2 * n]
        k = k + 2
        attempts[#attempts + 1] = A[i]
      end
    end
    attempts = concat(attempts)
  end
  name_lot(L)
  emit(concat({ '+', n, base, L.qty, L.qty .. '/' .. L.hold, fmt('%d', deadline), now_s, skipped }, '\t') .. '\n' .. A[at + 3 * n])
  file_due(L, deadline, deadline_text, attempts, L.batch)
  L.seq, L.available, L.held = L.seq + m, L.available - m * L.qty, L.held + m * L.qty
  return head(L, ending) .. '\t' .. base, concat(out, '\n')
end

-- answer: the answers of a lot. Usually all ask for the same, nobody is known and there is enough for all; in a batch
-- some may be known.
local function answer(L)
  local n, qty, known, R = L.n, L.qty, L.known, L.rule
  if qty == -1 or n * qty > L.available or L.shut_by or R.limit > 0 and qty > R.limit or L.hold > R.max_hold then return one_by_one(L) end
  local odd, most = {}, L.batch ~= '' and n / 4 or 0
  for i = 3, 2 + n do
    if known[i] or known[i + n] then
      odd[#odd + 1] = i - 2
      if #odd > most then return one_by_one(L) end
    end
  end
  if L.batch == '' then return all_new(L) end
  return hold_batch(L, odd)
end

-- look: a lot about which more must be known goes into lots, or into the reply why it takes no calls. q is what is asked of
-- it: the lot's id, where that begins in A, n, qty, hold, batch, units in all; whether it is one of the lots with one request, slot of its answer.
local function look(lots, reply, k, known, q)
  local L, code, detail = open_lot(q.id, k, known[1], known[2])
  if L then
    L.n, L.at, L.qty, L.hold, L.batch, L.lone, L.slot, L.known = q.n, q.at, q.qty, q.hold, q.batch, q.lone, q.slot, known
    if q.units > L.available then L.wanted = q.units end
    lots[#lots + 1] = L
  elseif q.lone then
    reply[q.slot] = '!!\t' .. code .. '\t' .. (detail or '')
  else
    reply[q.slot], reply[q.slot + 1] = '!', code .. '\t' .. (detail or '')
  end
end

-- With many lots on sale nearly all requests are the only ones of their lots, of new users, with nothing that speaks against
-- them. Such a lot, the j-th of the m with one request, is fresh, and passes through no table of its own: lives[j] and records[j] are stored
-- for it; where it is not, lives[j] is false. There are freshn. The events
-- of all such holds are one group, whose lines come as they are stored; only their numbers are put together here: for each of the m lots
-- "seq", or "seq/epoch/deadline" where these are not as before, or '' if it is not fresh. due_at: when they are due, 0 where that differs.
local lives, records, freshn, numbers, due_at = {}, {}, 0, {}, nil

-- terms: what the lone requests of lots with the rules of this print have in common; nil if the rules speak against them, or are
-- not known yet. The last ones are kept: calls come faster than a ms passes.
local last_terms
local function terms(print, qty, hold)
  local R = rules[print]
  if not R or closed(R) or hold > R.max_hold or R.limit > 0 and qty > R.limit then return nil end
  local T = last_terms
  if not (T and T.rule == R and T.qty == qty and T.hold == hold and T.now == now) then
    local deadline = now + (hold == 0 and R.hold or hold)
    local text = fmt('%d', deadline)
    local ending = '\t' .. text .. '\t' .. now_s
    T = { rule = R, qty = qty, hold = hold, now = now, deadline = deadline, text = text, ending = ending, said = R.said .. text,
      head = digits(R.limit == 0 and -1 or R.limit - qty) .. ending }
    last_terms = T
  end
  return T.deadline, T.ending, T.said, T.head
end

local function lot_of(key) return match(key, '}:lot:(.*)$') end

-- look_at_lone: holds the requests of the m lots with one, but for writing them, as far as nothing speaks against them;
-- a lot about which more must be known goes into lots. Returns where the other lots begin in A, or nil if a value is not
-- what the contract says.
local function look_at_lone(lots, reply, m)
  if m == 0 then return 2 end
  local qty, hold, at = A[2], A[3], 4
  if not valid(qty, hold) or not A[3 + 3 * m] or not KEYS[FIRST_LOT + m - 1] or sub(ARGV[7] or '', -1) ~= '\n' then return nil end
  local A, KEYS, call, pack, unpacked, digits, lives, records, numbers, now = A, KEYS, call, pack, unpacked, digits, lives, records, numbers, now -- quicker
  local n, all_at = 0, nil -- how many are fresh; when they are due
  local print, deadline, ending, said, head -- of the lot before, whose rules are mostly the same
  local told -- what the last number says
  for j = 1, m do
    local k = FIRST_LOT + j - 1
    local key, attempt, mark, fresh, number = KEYS[k], A[at], A[at + 1], false, ''
    if #attempt ~= ATTEMPT then return nil end
    local known = call('HMGET', key, 'live', attempt, mark)
    local live = known[1]
    if live and #live == LIVE_SIZE and not known[2] and not known[3] then
      local available, held, seq, stamp, due, of = unpacked(LIVE, live)
      if of ~= print then
        print, deadline, ending, said, head = of, terms(of, qty, hold)
        if reply[4] == '' then reply[4] = head or '' end
      end
      if deadline and qty <= available and stamp <= now then
        number = digits(seq + 1)
        if due == 0 or deadline < due then
          due = deadline
          look_at(lot_of(key), due)
        end
        if deadline ~= all_at then all_at = all_at and 0 or deadline end
        fresh = pack(LIVE, available - qty, held + qty, seq + 1, now, due, of)
        records[j] = A[at + 2] .. number .. ending
        n = n + 1
        reply[j + LONE_SLOT - 1] = head == reply[4] and number or '+\t' .. match(head, '^-?%d+\t') .. number .. ending
        if told ~= said then number, told = number .. said, said end
      end
    end
    lives[j], numbers[j] = fresh, number
    if not fresh then
      known = { live, call('HGET', key, 'rule'), known[2], known[3] }
      look(lots, reply, k, known, { id = lot_of(key), at = at, n = 1, qty = qty, hold = hold, batch = '', units = qty, lone = true, slot = j + LONE_SLOT - 1 })
    end
    at = at + 3
  end
  freshn, due_at = n, all_at
  return at
end

-- tell_fresh: the events of the fresh holds among the m lots, and what of them is to be filed.
local function tell_fresh(m)
  local n, lines, said = freshn, ARGV[7], concat(numbers, ',', 1, m)
  if n == 0 then return end
  unfiled, unfiledn = { last_terms.text, lines }, n -- of all, if these are all and due at once
  if n < m or due_at == 0 then
    local i, at, kept, times, named = 0, nil, {}, {}, {}
    for line in string.gmatch(lines, '[^\n]*\n') do
      i = i + 1
      if numbers[i] ~= '' then
        at = match(numbers[i], '/(%d+)$') or at
        local of = named[at] or {}
        if not named[at] then times[#times + 1], named[at] = at, of end
        kept[#kept + 1], of[#of + 1] = line, line
      end
    end
    lines, said = concat(kept), string.gsub(match(said, '^,*(.-),*$'), ',,+', ',')
    for j, time in ipairs(times) do unfiled[2 * j - 1], unfiled[2 * j] = time, concat(named[time]) end
  end
  local qty = digits(A[2])
  emit(concat({ '-', digits(n), qty, qty .. '/' .. digits(A[3]), now_s, said .. '\n' }, '\t'))
  emit(lines)
end

-- look_at_others: reads the lots whose values begin at A[at]; returns false if a value is not what the contract says.
local function look_at_others(lots, reply, m, at)
  local k, slot = FIRST_LOT + m, LONE_SLOT + m
  while A[at] do
    local n, qty, hold, batch = A[at + 1], A[at + 2], A[at + 3], A[at + 4]
    local units, stop = wanted(n, qty, hold, batch, at + 5)
    if not units or not KEYS[k] then return false end
    look(lots, reply, k, read_known(k, n, at + 5), { id = A[at], at = at + 5, n = n, qty = qty, hold = hold, batch = batch, units = units, lone = false, slot = slot })
    k, at, slot = k + 1, stop, slot + 2
  end
  return true
end

-- look_at_all: everything the call reads before it writes; returns the lots about which more must be known and the reply
-- so far, or nil if a value is not what the contract says. A lot whose mark is ahead of the clock moves the time of the
-- call, and all begins anew.
local function look_at_all()
  local m, began, lots, reply = A[1], nil, nil, nil
  if not (type(m) == 'number' and m >= 0 and m <= 2000 and m % 1 == 0) then return nil end
  repeat
    began, lots, reply = now, {}, { 'ok', '', now_s, '' }
    evn, duen, firstn, freshn, due_at = 0, 0, 0, 0, nil
    local at = look_at_lone(lots, reply, m)
    if not at or not look_at_others(lots, reply, m, at) then return nil end
  until now == began
  return lots, reply
end

local function save_fresh()
  local A, KEYS, call, lives, records = A, KEYS, call, lives, records
  for j = 1, A[1] do
    if lives[j] then call('HSET', KEYS[FIRST_LOT + j - 1], 'live', lives[j], A[3 * j + 2], records[j]) end
  end
end

local function run()
  local shut = door()
  if shut then return shut end
  full = meta_bytes - meta_trimmed >= number(ARGV[4]) and 'backpressure' or nil
  local budget = number(ARGV[5])
  A, term_at, lone_tails = { cmsgpack.unpack(ARGV[6]) }, nil, nil
  local lots, reply = look_at_all()
  if not lots then return { 'invalid', 'requests' } end

  -- Take back what the requests of a lot may need; what was read of it may have changed then.
  for _, L in ipairs(lots) do
    L.shut_by = closed(L.rule)
    if L.wanted and not L.shut_by then
      local _
      _, L.more, budget = take_back(L, L.wanted, budget)
      L.known = read_known(L.k, L.n, L.at)
    end
  end
  for _, L in ipairs(lots) do
    local slot = L.slot
    if L.lone then
      local _
      _, reply[slot] = one_by_one(L)
    else
      reply[slot], reply[slot + 1] = answer(L)
    end
  end
  tell_fresh(A[1])
  save(lots, save_fresh)
  reply[2], reply[3] = many_unfiled and 'unfiled' or '', now_s
  return reply
end
