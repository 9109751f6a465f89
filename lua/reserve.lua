#!lua
-- reserve: many holds, for any number of lots of one shard, in one call.
--
-- KEYS  gated, see common.lua
-- ARGV  4 outbox ceiling in bytes, 5 how many due attempts may be looked at for each lot, 6 the requests, packed with
--       MessagePack because thousands of small arguments cost more. For each lot its id, the number n of its requests,
--       the quantity and hold (ms, 0: the lot's own) that all of them ask for, or -1 and -1 where they differ, and a
--       batch, or '' for none; then columns of n values: attempt, "@user", record, "qty 0 attempt" (the counters of a
--       user who had none), where record is
--         of a batch: "b user asked qty index batch"; then one text with a line "attempt user key actor" for each
--         of no batch: "h user asked qty ", its constant part; then a column "\tkey\tactor\t0\n" (the event's tail) and,
--           where they differ, quantity and hold
--       Attempts and users are distinct within a lot; a batch is a name its lot has never had.
-- Reply ok, detail, now, then for each lot a head and lines:
--       "!" and "code detail"                                the lot takes no calls
--       "left deadline created base" and lines "index answer"   a batch; who has no line is held, n as the batch's field says
--       "left deadline created" or "" and a line a request:
--       n                      held; the head says the rest
--       + left n deadline created
--       = left record          the key is known: its reservation as it is now
--       ! code a b             refused; hold_exists: left, attempt, record; customer_limit: left; sold_out: left, available; invalid: max_hold
--       again                  due holds are left, repeat
-- Flags none: refused when Redis is out of memory.

local shut = door()
if shut then return shut end
local full = meta_bytes - meta_trimmed >= tonumber(ARGV[4]) and 'backpressure'
local budget = tonumber(ARGV[5])
local A = { cmsgpack.unpack(ARGV[6]) }

local function valid(qty, hold)
  return type(qty) == 'number' and qty >= 1 and qty <= 1e9 and qty % 1 == 0 and type(hold) == 'number' and hold >= 0 and hold < 1e11 and hold % 1 == 0
end

-- wanted: how many units the n requests of a lot ask for, whose columns start at A[at], and where they end; nil if a
-- request is not what the contract says.
local function wanted(n, qty, hold, batch, at)
  if not (type(n) == 'number' and n >= 1 and n <= 1e4 and n % 1 == 0 and type(batch) == 'string') then return nil end
  local stop = at + 4 * n + (batch ~= '' and 1 or qty == -1 and 3 * n or n)
  for i = at + n, stop - 1 do
    if not A[i] then return nil end
  end
  for i = at, at + n - 1 do
    if #A[i] ~= ATTEMPT then return nil end
  end
  if qty ~= -1 then return valid(qty, hold) and n * qty, stop end
  local sum = 0
  for i = at + 5 * n, at + 6 * n - 1 do
    if batch ~= '' or not valid(A[i], A[i + n]) then return nil end
    sum = sum + A[i]
  end
  return sum, stop
end

-- What is asked of a lot, in L.asked: n, at (where its columns start), qty, hold, batch, units, slot (its place in the
-- reply), known (the records of its attempts and users).

-- read_known: the records of a lot's requests behind its own fields.
local function read_known(k, n, at)
  return call('HMGET', KEYS[k], 'live', 'rule', unpack(A, at, at + 2 * n - 1))
end

-- closed: why the lot takes no new hold, or nil.
local function closed(L)
  if L.status ~= 'open' then return L.status == 'paused' and 'lot_paused' or 'sale_closed' end
  if L.closes > 0 and now >= L.closes then return 'sale_closed' end
  if now < L.opens then return 'sale_not_open' end
  return full
end

-- end_hold: expires a hold whose deadline has passed; returns its tombstone.
local function end_hold(L, attempt, user, asked, qty, n, u)
  local tomb = expire(L, attempt, user, asked, qty, n, u)
  put_record(L, attempt, tomb)
  put_user(L, user, u)
  file_due(L, now + retention, attempt)
  return tomb
end

-- replay: the answer for a known key. Its hold is ended first if it is due.
local function replay(L, attempt, record, constant, u)
  record = explicit(L, record)
  local user, asked, qty, n, deadline = parse_hold(record)
  if user and deadline <= now then record = end_hold(L, attempt, user, asked, qty, n, u) end
  local was = match(record, '^[hc]\t[^\t]*\t([^\t]*)') or match(record, '^[rxf]\t([^\t]*)')
  if was ~= match(constant, '^%l\t[^\t]*\t([^\t]*)') then return '!\tkey_reused' end
  return '=\t' .. left(L, u) .. '\t' .. record
end

-- live_hold: the record of the user's hold if it still runs; one that is due is ended.
local function live_hold(L, u)
  if u.live == '' then return nil end
  local record = explicit(L, call('HGET', KEYS[L.k], u.live))
  local user, asked, qty, n, deadline = parse_hold(record)
  if not user then
    u.live = ''
  elseif deadline > now then
    return record
  else
    end_hold(L, u.live, user, asked, qty, n, u)
  end
end

-- refuse: why a request that is no replay is refused, in the decided order, or nil.
local function refuse(L, u, live, qty, hold)
  if L.shut_by then return '!\t' .. L.shut_by end
  local may = left(L, u)
  if live then return '!\thold_exists\t' .. may .. '\t' .. u.live .. '\t' .. live end
  if may >= 0 and qty > may then return '!\tcustomer_limit\t' .. may end
  if hold > L.max_hold then return '!\tinvalid\t' .. fmt('%d', L.max_hold) end
  if qty > L.available then return L.more and 'again' or '!\tsold_out\t' .. may .. '\t' .. fmt('%d', L.available) end
end

-- term: when holds of a lot that ask for a time end, and the variable end of their records. The last one is kept: it is
-- mostly the next one too.
local term_at, term_text
local function term(L, hold)
  local at = now + (hold == 0 and L.hold or hold)
  if at ~= term_at then term_at, term_text = at, '\t' .. fmt('%d', at) .. '\t' .. now_s end
  return at, term_text
end

-- tail_of: the end of request i's event.
local function tail_of(q, i)
  if q.batch == '' then return A[q.at + 4 * q.n + i] end
  if not q.tails then
    q.tails = {}
    for key, actor in string.gmatch(A[q.at + 4 * q.n], '[^\n\t]*\t[^\n\t]*\t([^\n\t]*)\t([^\n\t]*)\n') do
      q.tails[#q.tails + 1] = '\t' .. key .. '\t' .. actor .. '\t0\n'
    end
  end
  return q.tails[i + 1]
end

-- hold: writes down request i of a lot as held, by itself; u is its user's counters, nil for one who has none. Returns
-- its seq and the end of its record.
local function hold_one(L, q, i, qty, hold, u)
  local n, at = q.n, q.at
  local attempt, record = A[at + i], A[at + 2 * n + i]
  if q.batch ~= '' then record = 'h' .. match(record, '^b(\t[^\t]*\t[^\t]*\t%d+\t)') end
  local deadline, ending = term(L, hold)
  local seq = next_seq(L)
  record = record .. seq .. ending
  L.available, L.held = L.available - qty, L.held + qty
  local counters = A[at + 3 * n + i]
  if u then
    u.held, u.live = u.held + qty, attempt
    counters = fmt('%d\t%d\t%s', u.held, u.bought, attempt)
  end
  local res = L.res or {}
  local k = #res
  L.res, res[k + 1], res[k + 2], res[k + 3], res[k + 4] = res, attempt, record, A[at + n + i], counters
  ev[evn + 1], ev[evn + 2], ev[evn + 3], ev[evn + 4] = attempt, '\t', record, tail_of(q, i)
  evn = evn + 4
  return seq, ending, deadline
end

-- answer_one: holds request i of a lot, or says why not.
local function answer_one(L, q, i, dues)
  local n, at = q.n, q.at
  local qty, hold, known, u = q.qty, q.hold, q.known[3 + i], parse_user(q.known[3 + n + i])
  if qty == -1 then qty, hold = A[at + 5 * n + i], A[at + 6 * n + i] end
  if known then return replay(L, A[at + i], known, A[at + 2 * n + i], u) end
  local refusal = refuse(L, u, live_hold(L, u), qty, hold)
  if refusal then return refusal end
  local seq, ending, deadline = hold_one(L, q, i, qty, hold, u)
  dues[deadline] = (dues[deadline] or '') .. A[at + i]
  return fmt('+\t%d\t%s', left(L, u), seq) .. ending
end

local function file_dues(L, dues)
  for at, attempts in pairs(dues) do file_due(L, at, attempts) end
end

-- one_by_one: the answers of a lot about which nothing is certain.
local function one_by_one(L, q)
  local out, dues = {}, {}
  for i = 0, q.n - 1 do out[i + 1] = answer_one(L, q, i, dues) end
  file_dues(L, dues)
  return '', concat(out, '\n')
end

-- head: what all holds of a lot that ask for the same share in the reply.
local function head(L, q, ending)
  return fmt('%d', L.limit == 0 and -1 or L.limit - q.qty) .. ending
end

-- all_new: the answers of a lot that has enough for all, where nobody is known.
local function all_new(L, q)
  local out, attempts, ending, deadline = {}, A[q.at], nil, nil
  for i = 0, q.n - 1 do
    out[i + 1], ending, deadline = hold_one(L, q, i, q.qty, q.hold)
    if i > 0 then attempts = attempts .. A[q.at + i] end
  end
  file_due(L, deadline, attempts)
  return head(L, q, ending), concat(out, '\n')
end

-- hold_batch: holds all of a batch but the odd ones, who are known and answered one by one. Nothing of a hold is put
-- together here: its record names the batch, which has what all of them share.
local function hold_batch(L, q, odd)
  local n, at, out, dues, by_itself, attempts = q.n, q.at, {}, {}, {}, {}
  for j, i in ipairs(odd) do
    out[j] = fmt('%d', i) .. '\t' .. answer_one(L, q, i - 1, dues)
    by_itself[i] = true
  end
  file_dues(L, dues)
  local res = L.res or {}
  local k, m = #res, 0
  for i = 0, n - 1 do
    if not by_itself[i + 1] then
      local attempt = A[at + i]
      res[k + 1], res[k + 2], res[k + 3], res[k + 4] = attempt, A[at + 2 * n + i], A[at + n + i], A[at + 3 * n + i]
      k, m = k + 4, m + 1
      attempts[m] = attempt
    end
  end
  L.res = res
  local base, skipped, deadline, ending = fmt('%d', L.seq), concat(odd, ','), term(L, q.hold)
  put_record(L, '#' .. q.batch, base .. ending .. '\t' .. skipped)
  name_lot(L)
  emit(concat({ '+', n, base, q.qty, q.qty .. '/' .. q.hold, fmt('%d', deadline), now_s, skipped }, '\t') .. '\n' .. A[at + 4 * n])
  file_due(L, deadline, concat(attempts), q.batch)
  L.seq, L.available, L.held = L.seq + m, L.available - m * q.qty, L.held + m * q.qty
  return head(L, q, ending) .. '\t' .. base, concat(out, '\n')
end

-- answer: the answers of a lot. The usual requests ask for the same, nobody in them is known and there is enough for
-- all; a batch may have some who are known.
local function answer(L, q)
  local n, known = q.n, q.known
  if q.qty == -1 or q.units > L.available or L.shut_by or L.limit > 0 and q.qty > L.limit or q.hold > L.max_hold then return one_by_one(L, q) end
  local odd = {}
  for i = 3, 2 + n do
    if known[i] or known[i + n] then
      odd[#odd + 1] = i - 2
      if #odd > n / 4 then return one_by_one(L, q) end
    end
  end
  if q.batch == '' then return all_new(L, q) end
  return hold_batch(L, q, odd)
end

-- Look at every lot before the first write.
local lots, reply, k, at = {}, { 'ok', '' }, FIRST_LOT, 1
while A[at] do
  local id, n, qty, hold, batch = A[at], A[at + 1], A[at + 2], A[at + 3], A[at + 4]
  local units, stop = wanted(n, qty, hold, batch, at + 5)
  if not units or not KEYS[k] then return { 'invalid', tostring(id) } end
  local known = read_known(k, n, at + 5)
  local L, code, detail = open_lot(id, k, known[1], known[2])
  local slot = 4 + 2 * (k - FIRST_LOT)
  if L then
    L.asked = { n = n, at = at + 5, qty = qty, hold = hold, batch = batch, units = units, slot = slot, known = known, tails = false }
    lots[#lots + 1] = L
  else
    reply[slot], reply[slot + 1] = '!', code .. '\t' .. (detail or '')
  end
  k, at = k + 1, stop
end

-- Take back what the requests of a lot may need; what was read of it may have changed then.
for _, L in ipairs(lots) do
  local q, _ = L.asked, nil
  L.shut_by = closed(L)
  if q.units > L.available and not L.shut_by then
    _, L.more = take_back(L, q.units, budget)
    q.known = read_known(L.k, q.n, q.at)
  end
end
for _, L in ipairs(lots) do
  local q = L.asked
  reply[q.slot], reply[q.slot + 1] = answer(L, q)
end
save(lots)
reply[3] = now_s
return reply
