#!lua
-- reserve: many holds, for any number of lots of one shard, in one call.
--
-- KEYS  gated, see common.lua
-- ARGV  4 outbox ceiling in bytes, 5 how many due attempts may be looked at for each lot, 6 number of lots;
--       for each lot its id, the number n of its requests, then seven columns of n values:
--       attempt, "@user", "h user asked qty " (the constant part of the record), "\tkey\tactor\t0\n" (the event's tail),
--       "qty 0 attempt" (the user record of one who has nothing yet), qty, hold in ms (0: the lot's own).
--       Attempts and users are distinct within a lot.
-- Reply ok, detail, now, then for each lot "" (or "!" and "code detail") and one line a request:
--       + left n deadline      held
--       = left record          the key is known: its reservation as it is now
--       ! code a b             refused; hold_exists: left, attempt, record; customer_limit: left; sold_out: left, available; invalid: max_hold
--       again                  due holds are left, repeat
-- Flags none: refused when Redis is out of memory.

local shut = door()
if shut then return shut end
local full = meta_bytes - meta_trimmed >= tonumber(ARGV[4]) and 'backpressure'
local budget = tonumber(ARGV[5])

-- quantities: the quantities of a lot's requests, which start at ARGV[at], and their sum; nil if a request is not what
-- the contract says.
local function quantities(n, at)
  local qtys, sum = {}, 0
  for i = at, at + n - 1 do
    local qty, hold = tonumber(ARGV[i + 5 * n]), ARGV[i + 6 * n]
    if #ARGV[i] ~= ATTEMPT or not qty or not (qty >= 1 and qty <= 1e9 and qty % 1 == 0) or not match(hold or '', '^%d%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?$') then return nil end
    qtys[#qtys + 1] = qty
    sum = sum + qty
  end
  return qtys, sum
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

-- hold_tail: the variable end of a record held now, the same for all that ask for the same hold.
local function hold_tail(L, hold, tails, dues)
  local deadline = now + (hold == '0' and L.hold or hold)
  local due = { at = deadline }
  tails[hold], dues[hold] = '\t' .. fmt('%d', deadline) .. '\t' .. now_s, due
  return tails[hold], due
end

local function reserve_lot(L)
  local n, at, known = L.n, L.at, L.known
  local a_user, a_const, a_tail, a_fresh, a_hold = at + n, at + 2 * n, at + 3 * n, at + 4 * n, at + 6 * n
  local res, out, tails, dues = L.res, {}, {}, {}
  for i = 0, n - 1 do
    local attempt, record, text, qty, hold = ARGV[at + i], known[i + 1], known[n + i + 1], L.qtys[i + 1], ARGV[a_hold + i]
    local u = (text or record) and parse_user(text)
    local answer
    if record then
      answer = replay(L, attempt, record, ARGV[a_const + i], u)
    else
      answer = refuse(L, u, u and live_hold(L, u), qty, hold)
    end
    if not answer then
      local tail, due = tails[hold], dues[hold]
      if not tail then tail, due = hold_tail(L, hold, tails, dues) end
      local seq, k = next_seq(L), #res
      local held = ARGV[a_const + i] .. seq .. tail
      L.available, L.held = L.available - qty, L.held + qty
      local may, counters = L.limit == 0 and -1 or L.limit - qty, ARGV[a_fresh + i]
      if u then
        u.held, u.live = u.held + qty, attempt
        may, counters = left(L, u), fmt('%d\t%d\t%s', u.held, u.bought, attempt)
      end
      res[k + 1], res[k + 2], res[k + 3], res[k + 4] = attempt, held, ARGV[a_user + i], counters
      ev[evn + 1], ev[evn + 2], ev[evn + 3], ev[evn + 4] = attempt, '\t', held, ARGV[a_tail + i]
      evn = evn + 4
      due[#due + 1] = attempt
      answer = '+\t' .. may .. '\t' .. seq .. tail
    end
    out[i + 1] = answer
  end
  for _, due in pairs(dues) do file_due(L, due.at, concat(due)) end
  return concat(out, '\n')
end

-- Look at every lot before the first write.
local lots, reply, at = {}, { 'ok', '' }, 7
for j = 1, tonumber(ARGV[6]) do
  local n = tonumber(ARGV[at + 1])
  local qtys, wanted = quantities(n, at + 2)
  if not qtys then return { 'invalid', ARGV[at] } end
  local L, code, detail = read_lot(ARGV[at], 2 + 3 * j)
  if L then
    L.n, L.at, L.slot, L.qtys, L.wanted = n, at + 2, 2 + 2 * j, qtys, wanted
    lots[#lots + 1] = L
  else
    reply[2 + 2 * j], reply[3 + 2 * j] = '!', code .. '\t' .. (detail or '')
  end
  at = at + 2 + 7 * n
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
for _, L in ipairs(lots) do reply[L.slot], reply[L.slot + 1] = '', reserve_lot(L) end
save(lots)
reply[3] = now_s
return reply
