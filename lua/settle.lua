#!lua flags=allow-oom
-- settle: confirms, releases, extends and refunds reservations of lots of one shard.
--
-- KEYS  gated, see common.lua
-- ARGV  4 how many due attempts may be looked at in all, 5 number of lots; for each lot its id, the number n of
--       its requests, then for each request seven values:
--       attempt, n (the seq that held it), action (c|r|e|f), number (confirm: units, 0 all; release: units that stay held;
--       extend: ms; refund: units in all, -1 all), payment reference (refund: "1" restock, "0" not), late ('' the lot's),
--       "actor\treason".
--       Attempts are distinct within a lot.
-- Reply ok, detail, now, then for each lot "" (or "!" and "code detail") and one line a request:
--       + left record | = left record (already so) | ! code a b c | again
--       refusals: hold_exists: left, attempt, record; customer_limit: left; sold_out: left, available; others: left, record
-- Flags allow-oom: giving units back must work when memory is full.

-- Which fields of a record are numbers, and how many fields it has at least.
local NUMBERS = { h = { 4, 5, 6, 7 }, c = { 4, 5, 6, 7, 8, 9 }, r = { 3, 4, 5, 6 }, x = { 3, 4, 5, 6 }, f = { 3, 4, 5, 6, 7, 9 } }
local FIELDS = { h = 7, c = 12, r = 7, x = 8, f = 10 }

-- parse: a record as a table; s is its letter. Numbers stay text where only copied. A damaged record is none: an error
-- in the middle of a call would leave half of it written.
local function parse(record)
  local f = {}
  for field in string.gmatch(record .. '\t', '([^\t]*)\t') do f[#f + 1] = field end
  if #f < (FIELDS[f[1]] or math.huge) then return nil end
  for _, i in ipairs(NUMBERS[f[1]]) do
    if not tonumber(f[i]) then return nil end
  end
  if f[1] == 'h' then
    return { s = 'h', user = f[2], asked = f[3], qty = tonumber(f[4]), n = f[5], deadline = tonumber(f[6]), created = tonumber(f[7]), last = f[8] or '' }
  elseif f[1] == 'c' then
    return { s = 'c', user = f[2], asked = f[3], qty = tonumber(f[4]), n = f[5], last = f[6], rest = tonumber(f[7]), refunded = tonumber(f[8]), from = f[9], ref = f[10], late = f[11], at = f[12] }
  elseif f[1] == 'r' then
    return { s = 'r', asked = f[2], qty = tonumber(f[3]), n = f[4], last = f[5], ended = f[6], late = f[7] }
  elseif f[1] == 'x' then
    return { s = 'x', asked = f[2], qty = tonumber(f[3]), n = f[4], last = f[5], ended = f[6], user = f[7], late = f[8] }
  elseif f[1] == 'f' then
    return { s = 'f', asked = f[2], qty = tonumber(f[3]), n = f[4], last = f[5], ended = f[6], total = tonumber(f[7]), late = f[8], from = f[9], paid = f[10] }
  end
end

-- text: the record as stored.
local function text(r)
  local f
  if r.s == 'h' then
    f = { 'h', r.user, r.asked, r.qty, r.n, fmt('%d', r.deadline), fmt('%d', r.created), r.last ~= '' and r.last or nil }
  elseif r.s == 'c' then
    f = { 'c', r.user, r.asked, r.qty, r.n, r.last, r.rest, r.refunded, r.from, r.ref, r.late, r.at }
  elseif r.s == 'r' then
    f = { 'r', r.asked, r.qty, r.n, r.last, r.ended, r.late }
  elseif r.s == 'x' then
    f = { 'x', r.asked, r.qty, r.n, r.last, r.ended, r.user, r.late }
  else
    f = { 'f', r.asked, r.qty, r.n, r.last, r.ended, r.total, r.late, r.from, r.paid }
  end
  return concat(f, '\t')
end

-- A request in work: q has attempt, n, number, ref, late, who; r is its record, u its user's counters.

local function event(q, letter, seq, r, user, qty, extra)
  emit(q.attempt .. '\t' .. letter .. '\t' .. seq .. '\t' .. r.n .. '\t' .. user .. '\t' .. qty .. '\t' .. q.who .. extra .. '\n')
end

local function done(L, q, mark)
  return mark .. '\t' .. (q.u and left(L, q.u) or -1) .. '\t' .. text(q.r)
end

local function changed(L, q, r)
  q.r = r
  if q.u then unfold(L, q.u, q.attempt) end
  put_record(L, q.attempt, text(r))
  return done(L, q, '+')
end

-- digest: by what a record remembers a payment reference; '' for none.
local function digest(ref)
  return ref == '' and '' or sub(redis.sha1hex(ref), 1, 10)
end

-- unknown_money: whether a refused confirm brings a payment that belongs to no units and was not written down yet.
local function unknown_money(q, r)
  if q.action ~= 'c' or q.ref == '' or r.s == 'h' then return false end
  local d = digest(q.ref)
  return r.late ~= d and r.paid ~= d and not (r.s == 'c' and r.ref == q.ref)
end

-- refused: the answer to another wish. A confirm that brings money nobody has units for writes paid_late once.
local function refused(L, q, code, extra)
  local r = q.r
  if unknown_money(q, r) then
    r.late = digest(q.ref)
    r.last = next_seq(L)
    event(q, 'p', r.last, r, r.user or '', r.qty, '\t' .. q.ref)
    changed(L, q, r)
  end
  return '!\t' .. code .. '\t' .. (extra or ((q.u and left(L, q.u) or -1) .. '\t' .. text(r)))
end

-- tomb: files a terminal record for the end of its retention.
local function tomb(L, q, r)
  file_again(L, now + retention, q.attempt)
  return changed(L, q, r)
end

local function expire_due(L, q)
  local r = q.r
  if r.s ~= 'h' or r.deadline > now then return end
  q.r = parse(expire(L, q.attempt, r.user, r.asked, r.qty, r.n, q.u))
  tomb(L, q, q.r)
end

-- live_hold: the record of the user's live hold; one that is due is ended, also where another request of this call is about it.
local function live_hold(L, u)
  local other = L.by[u.live]
  local record = other and other.r and text(other.r) or (u.live ~= '' and explicit(L, u.record or call('HGET', KEYS[L.k], u.live))) or ''
  local hold = parse(record)
  if not hold or hold.s ~= 'h' then return nil end
  if hold.deadline > now then return record end
  other = other or { attempt = u.live, r = hold }
  other.u = u
  expire_due(L, other)
end

-- reclaim: takes the units of an expired hold anew and confirms them: stock, limit and other holds are checked.
local function reclaim(L, q)
  local r, u = q.r, q.u
  local qty = q.number == 0 and r.qty or q.number
  if qty > r.qty or (u.user or r.user) ~= r.user then return refused(L, q, 'conflict') end -- of two users one mark: see reserve
  local live = live_hold(L, u)
  local may = left(L, u)
  if live then return refused(L, q, 'hold_exists', may .. '\t' .. u.live .. '\t' .. live) end
  if may >= 0 and qty > may then return refused(L, q, 'customer_limit', tostring(may)) end
  if qty > L.available then
    if L.more then return 'again' end
    return refused(L, q, 'sold_out', may .. '\t' .. fmt('%d', L.available))
  end
  local n = next_seq(L)
  emit(q.attempt .. '\th\t' .. r.user .. '\t' .. r.asked .. '\t' .. qty .. '\t' .. n .. '\t' .. now_s .. '\t' .. now_s .. '\t\t' .. match(q.who, '^[^\t]*') .. '\t' .. r.n .. '\n')
  local c = { s = 'c', user = r.user, asked = r.asked, qty = qty, n = n, last = next_seq(L), rest = 0, refunded = 0, from = r.n, ref = q.ref, late = r.late, at = now_s }
  event(q, 'c', c.last, c, c.user, qty, '\t0\t' .. q.ref)
  L.available, L.sold = L.available - qty, L.sold + qty
  u.bought = u.bought + qty
  return changed(L, q, c)
end

local function confirm(L, q)
  local r, u = q.r, q.u
  if r.s == 'h' then
    local qty = q.number == 0 and r.qty or q.number
    if qty > r.qty then return refused(L, q, 'conflict') end
    unfold(L, u, q.attempt)
    local c = { s = 'c', user = r.user, asked = r.asked, qty = qty, n = r.n, last = next_seq(L), rest = r.qty - qty, refunded = 0, from = '0', ref = q.ref, late = '', at = now_s }
    event(q, 'c', c.last, c, c.user, qty, '\t' .. c.rest .. '\t' .. q.ref)
    L.held, L.sold, L.available = L.held - r.qty, L.sold + qty, L.available + c.rest
    u.held, u.bought = math.max(0, u.held - r.qty), u.bought + qty
    if u.live == q.attempt then u.live = '' end
    return changed(L, q, c)
  elseif r.s == 'c' then
    local was = r.qty + r.refunded
    local same = (q.number == was or (q.number == 0 and r.rest == 0)) and (q.ref == '' or q.ref == r.ref)
    if same then return done(L, q, '=') end
    return refused(L, q, 'already_confirmed')
  elseif r.s == 'r' then
    return refused(L, q, 'already_released')
  elseif r.s == 'f' then
    return refused(L, q, 'already_refunded')
  end
  if (q.late ~= '' and q.late or L.rule.late) == 'reclaim' then return reclaim(L, q) end
  return refused(L, q, 'hold_expired')
end

local function release(L, q)
  local r, u, keep = q.r, q.u, q.number
  if r.s == 'r' then
    if keep == 0 then return done(L, q, '=') end
    return refused(L, q, 'already_released')
  elseif r.s == 'c' then
    if keep > 0 and keep == r.qty + r.refunded then return done(L, q, '=') end
    return refused(L, q, 'already_confirmed')
  elseif r.s == 'f' then
    return refused(L, q, 'already_refunded')
  elseif r.s == 'x' then
    return refused(L, q, 'hold_expired')
  end
  if keep == r.qty then return done(L, q, '=') end
  if keep > r.qty then return refused(L, q, 'conflict') end
  unfold(L, u, q.attempt)
  local back, seq = r.qty - keep, next_seq(L)
  event(q, 'r', seq, r, r.user, back, '\t' .. keep)
  L.held, L.available = L.held - back, L.available + back
  u.held = math.max(0, u.held - back)
  r.last, r.qty = seq, keep
  if keep > 0 then return changed(L, q, r) end
  if u.live == q.attempt then u.live = '' end
  return tomb(L, q, { s = 'r', asked = r.asked, qty = back, n = r.n, last = seq, ended = now_s, late = '' })
end

local function extend(L, q)
  local r = q.r
  if r.s ~= 'h' then
    local codes = { c = 'already_confirmed', r = 'already_released', f = 'already_refunded', x = 'hold_expired' }
    return refused(L, q, codes[r.s])
  end
  local deadline = math.max(r.deadline, math.min(now + q.number, r.created + L.rule.max_hold))
  if deadline == r.deadline then return done(L, q, '=') end
  r.deadline, r.last = deadline, next_seq(L)
  event(q, 'e', r.last, r, r.user, r.qty, '\t' .. fmt('%d', deadline))
  file_again(L, deadline, q.attempt)
  return changed(L, q, r)
end

local function refund(L, q)
  local r, u = q.r, q.u
  if r.s == 'f' then
    if q.number == -1 or q.number == r.total then return done(L, q, '=') end
    return refused(L, q, 'already_refunded')
  elseif r.s ~= 'c' then
    return refused(L, q, 'not_confirmed')
  end
  local bought = r.qty + r.refunded
  local total = q.number == -1 and bought or q.number
  if total == r.refunded then return done(L, q, '=') end
  if total < r.refunded then return refused(L, q, 'already_refunded') end
  if total > bought then return refused(L, q, 'conflict') end
  local back, seq = total - r.refunded, next_seq(L)
  event(q, 'f', seq, r, r.user, back, '\t' .. total .. '\t' .. q.ref)
  L.sold = L.sold - back
  if q.ref == '1' then L.available = L.available + back else L.capacity = L.capacity - back end
  u.bought = math.max(0, u.bought - back)
  r.qty, r.refunded, r.last = r.qty - back, total, seq
  if r.qty > 0 then return changed(L, q, r) end
  return tomb(L, q, { s = 'f', asked = r.asked, qty = 0, n = r.n, last = seq, ended = now_s, total = total, late = r.late, from = r.from, paid = digest(r.ref) })
end

local actions = { c = confirm, r = release, e = extend, f = refund }

-- requests: the lot's requests as tables, or nil if they are not what the contract says.
local function requests(n, at)
  local qs = {}
  if not (n and n <= MOST_REQUESTS) then return nil end
  for i = 0, n - 1 do
    local b = at + 7 * i
    local q = { attempt = ARGV[b], n = ARGV[b + 1], action = ARGV[b + 2], number = tonumber(ARGV[b + 3]), ref = ARGV[b + 4], late = ARGV[b + 5], who = ARGV[b + 6] }
    local least = q.action == 'f' and -1 or 0
    if not match(q.who or '', '^%C*\t%C*$') or #q.attempt ~= ATTEMPT or not actions[q.action] or not tonumber(q.n) or match(q.ref, '%c') then return nil end
    if not (q.number and q.number >= least and q.number <= 1e11 and q.number % 1 == 0) then return nil end
    qs[#qs + 1] = q
  end
  return qs
end

-- needs: units that late confirms may want to take anew.
local function needs(L)
  local units = 0
  for _, q in ipairs(L.qs) do
    local r = q.action == 'c' and (q.late ~= '' and q.late or L.rule.late) == 'reclaim' and q.r
    if r and (r.s == 'x' or (r.s == 'h' and r.deadline <= now)) then units = units + r.qty end
  end
  return units
end

-- read_records: what the lot has of its requests' reservations, and what counts for their users: shared by all requests of one.
local function read_records(L)
  local attempts = {}
  for i, q in ipairs(L.qs) do attempts[i] = q.attempt end
  local records, users = read_attempts(L, attempts)
  L.by, L.counters = {}, {}
  for i, q in ipairs(L.qs) do
    local record, mark = explicit(L, records[i]), mark_of(q.attempt)
    q.r = record and parse(record) or nil
    L.by[q.attempt] = q
    if q.r and q.r.user then
      local u = users[i]
      q.u, L.counters[mark], u.user = u, u, u.user or q.r.user
    end
  end
end

-- named: whether the request's id names this record: by the seq that held it, or by the hold it was taken anew from.
local function named(q, r)
  return q.n == r.n or ((r.s == 'c' or r.s == 'f') and q.n == r.from)
end

local function settle_lot(L, qs)
  local out = {}
  for i, q in ipairs(qs) do
    if not q.r then
      out[i] = '!\tnot_found'
    elseif not named(q, q.r) then
      out[i] = tonumber(q.n) < tonumber(q.r.n) and '!\thold_expired' or '!\tnot_found'
    else
      expire_due(L, q)
      out[i] = actions[q.action](L, q)
    end
  end
  if L.named then
    for mark, u in pairs(L.counters) do put_user(L, mark, u) end
  end
  return concat(out, '\n')
end

local function run()
  local shut = door()
  if shut then return shut end
  local budget = tonumber(ARGV[4])

  -- Look at every lot before the first write.
  local lots, reply, at = {}, { 'ok', '' }, 6
  for j = 1, tonumber(ARGV[5]) do
    local n = tonumber(ARGV[at + 1])
    local qs = requests(n, at + 2)
    if not qs then return { 'invalid', ARGV[at] } end
    local L, code, detail = read_lot(ARGV[at], FIRST_LOT + j - 1)
    if L and not read_totals(L) then L, code = nil, 'corrupt' end
    if L then
      L.qs, L.slot = qs, 2 + 2 * j
      lots[#lots + 1] = L
    else
      reply[2 + 2 * j], reply[3 + 2 * j] = '!', code .. '\t' .. (detail or '')
    end
    at = at + 2 + 7 * n
  end

  for _, L in ipairs(lots) do
    read_records(L)
    local units = needs(L)
    if units > L.available then
      local _
      _, L.more, budget = take_back(L, units, budget)
      read_records(L)
    end
  end
  for _, L in ipairs(lots) do
    reply[L.slot], reply[L.slot + 1] = '', settle_lot(L, L.qs)
  end
  save(lots)
  reply[3] = now_s
  return reply
end
