#!lua
-- reserve: many holds, for any number of lots of one shard, in one call.
--
-- KEYS  gated, see common.lua
-- ARGV  4 outbox ceiling in bytes, 5 how many due attempts may be looked at for each lot, 6 number of lots;
--       for each lot its id, the number n of its requests, and the quantity and hold (ms, 0: the lot's own) that all of
--       them ask for, or '' and '' where they differ; then columns of n values:
--       attempt, "@user", "h user asked qty " (the constant part of the record), "\tkey\tactor\t0\n" (the event's tail),
--       and where they differ, quantity and hold.
--       Attempts and users are distinct within a lot.
-- Reply ok, detail, now, then for each lot "left deadline created" or "" (or "!" and "code detail") and one line a request:
--       n                      held; the lot's line says the rest
--       + left n deadline created
--       = left record          the key is known: its reservation as it is now
--       ! code a b             refused; hold_exists: left, attempt, record; customer_limit: left; sold_out: left, available; invalid: max_hold
--       again                  due holds are left, repeat
-- Flags none: refused when Redis is out of memory.

local shut = door()
if shut then return shut end
local full = meta_bytes - meta_trimmed >= tonumber(ARGV[4]) and 'backpressure'
local budget = tonumber(ARGV[5])

local function valid(qty, hold)
  qty = tonumber(qty)
  return qty and qty >= 1 and qty <= 1e9 and qty % 1 == 0 and match(hold or '', '^%d%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?$')
end

-- wanted: how many units the n requests of a lot ask for, whose columns start at ARGV[at]; nil if a request is not what
-- the contract says. qty is what each asks for, or '' if they differ.
local function wanted(n, qty, hold, at)
  if not (n and n >= 1 and n % 1 == 0 and ARGV[at + (qty == '' and 6 or 4) * n - 1]) then return nil end
  for i = at, at + n - 1 do
    if #ARGV[i] ~= ATTEMPT then return nil end
  end
  if qty ~= '' then return valid(qty, hold) and n * qty end
  local sum = 0
  for i = at + 4 * n, at + 5 * n - 1 do
    if not valid(ARGV[i], ARGV[i + n]) then return nil end
    sum = sum + ARGV[i]
  end
  return sum
end

-- closed: why the lot takes no new hold, or nil.
local function closed(L)
  if L.status == 'paused' then return 'lot_paused' end
  if L.status ~= 'open' then return 'sale_closed' end
  if L.window ~= '' then
    local opens, closes = match(L.window, '^(%d*)/(%d*)$')
    if closes ~= '' and now >= tonumber(closes) then return 'sale_closed' end
    if opens ~= '' and now < tonumber(opens) then return 'sale_not_open' end
  end
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
  local user, asked, qty, n, deadline = parse_hold(record)
  if user and deadline <= now then record = end_hold(L, attempt, user, asked, qty, n, u) end
  local was = match(record, '^[hc]\t[^\t]*\t([^\t]*)') or match(record, '^[rxf]\t([^\t]*)')
  if was ~= match(constant, '^h\t[^\t]*\t([^\t]*)') then return '!\tkey_reused' end
  return '=\t' .. left(L, u) .. '\t' .. record
end

-- live_hold: the record of the user's hold if it still runs; one that is due is ended.
local function live_hold(L, u)
  if u.live == '' then return nil end
  local record = call('HGET', KEYS[L.k + 1], u.live)
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
  if hold ~= '0' and tonumber(hold) > tonumber(L.max_hold) then return '!\tinvalid\t' .. L.max_hold end
  if qty > L.available then return L.more and 'again' or '!\tsold_out\t' .. may .. '\t' .. fmt('%d', L.available) end
end

-- term: of the holds of one call that ask for the same time: the deadline, the variable end of their records, and the
-- attempts held until then.
local function term(L, hold)
  local deadline = now + (hold == '0' and L.hold or hold)
  return { at = deadline, tail = '\t' .. fmt('%d', deadline) .. '\t' .. now_s, n = 0 }
end

-- Numbers as text, since the same few are written again and again.
local texts = {}
local function text_of(number)
  local t = texts[number]
  if not t then
    t = fmt('%d', number)
    texts[number] = t
  end
  return t
end

local function reserve_lot(L)
  local n, at, known, res, qty, hold = L.n, L.at, L.known, L.res, L.each, L.each_hold
  local a_user, a_const, a_tail, a_qty, a_hold = at + n, at + 2 * n, at + 3 * n, at + 4 * n, at + 5 * n
  local most = L.shut_by and 0 or L.limit == 0 and 1e9 or L.limit -- for a user of whom nothing is known
  local out, terms, head, k = {}, {}, nil, 0
  for i = 0, n - 1 do
    local attempt, record, counters = ARGV[at + i], known[i + 1], known[n + i + 1]
    local u, answer
    if not L.each then qty, hold = tonumber(ARGV[a_qty + i]), ARGV[a_hold + i] end
    if record then
      u = parse_user(counters)
      answer = replay(L, attempt, record, ARGV[a_const + i], u)
    elseif counters or qty > most or qty > L.available or hold ~= '0' then
      u = parse_user(counters)
      answer = refuse(L, u, live_hold(L, u), qty, hold)
    end
    if not answer then
      local t = terms[hold]
      if not t then
        t = term(L, hold)
        terms[hold] = t
      end
      local seq = next_seq(L)
      local held = ARGV[a_const + i] .. seq .. t.tail
      L.available, L.held = L.available - qty, L.held + qty
      local may = L.limit - qty
      if u then
        u.held, u.live = u.held + qty, attempt
        may, counters = left(L, u), fmt('%d\t%d\t%s', u.held, u.bought, attempt)
      else
        counters = text_of(qty) .. '\t0\t' .. attempt
      end
      k = #res
      res[k + 1], res[k + 2], res[k + 3], res[k + 4] = attempt, held, ARGV[a_user + i], counters
      ev[evn + 1], ev[evn + 2], ev[evn + 3], ev[evn + 4] = attempt, '\t', held, ARGV[a_tail + i]
      evn = evn + 4
      t.n = t.n + 1
      t[t.n] = attempt
      may = L.limit == 0 and '-1' or text_of(may)
      if u or not L.each then
        answer = '+\t' .. may .. '\t' .. seq .. t.tail
      else
        answer, head = seq, head or may .. t.tail
      end
    end
    out[i + 1] = answer
  end
  for _, t in pairs(terms) do file_due(L, t.at, concat(t)) end
  return head or '', concat(out, '\n')
end

-- Look at every lot before the first write.
local lots, reply, at = {}, { 'ok', '' }, 7
for j = 1, tonumber(ARGV[6]) do
  local n, qty, hold = tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local sum = wanted(n, qty, hold, at + 4)
  if not sum then return { 'invalid', ARGV[at] } end
  local L, code, detail = read_lot(ARGV[at], 2 + 3 * j)
  if L then
    L.n, L.at, L.slot, L.wanted, L.each, L.each_hold = n, at + 4, 2 + 2 * j, sum, tonumber(qty), hold
    lots[#lots + 1] = L
  else
    reply[2 + 2 * j], reply[3 + 2 * j] = '!', code .. '\t' .. (detail or '')
  end
  at = at + 4 + (qty == '' and 6 or 4) * n
end

-- Take back what the requests of a lot may need, then read the records of their attempts and users.
for _, L in ipairs(lots) do
  L.shut_by = closed(L)
  if L.wanted > L.available and not L.shut_by then
    local _
    _, L.more = take_back(L, L.wanted, budget)
  end
end
for _, L in ipairs(lots) do L.known = call('HMGET', KEYS[L.k + 1], unpack(ARGV, L.at, L.at + 2 * L.n - 1)) end
for _, L in ipairs(lots) do reply[L.slot], reply[L.slot + 1] = reserve_lot(L) end
save(lots)
reply[3] = now_s
return reply
