#!lua
-- reserve: many holds, for any number of lots of one shard, in one call.
--
-- KEYS  gated, see common.lua
-- ARGV  4 outbox ceiling in bytes, 5 how many due attempts may be looked at for each lot, 6 number of lots;
--       for each lot its id, the number n of its requests, then seven columns of n values:
--       attempt, user, "h user asked qty " (the constant part of the record), "\tkey\tactor\t0\n" (the event's tail),
--       "qty 0 attempt" (the user record of one who has nothing yet), qty, hold in ms (0: the lot's own).
--       Attempts and users are distinct within a lot.
-- Reply ok, detail, now, then for each lot "epoch available limit" (or "!" and "code detail") and one line a request:
--       + left n deadline      held
--       = left record          the key is known: its reservation as it is now
--       ! code a b             refused; hold_exists: left, attempt, record; customer_limit: left; sold_out: left, available; invalid: max_hold
--       again                  due holds are left, repeat
-- Flags none: refused when Redis is out of memory.

local shut = door()
if shut then return shut end
local full = meta_bytes - meta_trimmed >= tonumber(ARGV[4]) and 'backpressure'
local budget = tonumber(ARGV[5])

-- malformed: whether the requests of a lot, which start at ARGV[at], are not what the contract says.
local function malformed(n, at)
  for i = at, at + n - 1 do
    local qty, hold = tonumber(ARGV[i + 5 * n]), tonumber(ARGV[i + 6 * n])
    if #ARGV[i] ~= ATTEMPT or not qty or not hold or not (qty >= 1 and qty <= 1e9 and qty % 1 == 0 and hold >= 0 and hold <= 1e11) then return true end
  end
end

-- closed: why the lot takes no new hold, or nil.
local function closed(L)
  if L.status == 'paused' then return 'lot_paused' end
  if L.status ~= 'open' or (L.closes and L.now >= L.closes) then return 'sale_closed' end
  if L.opens and L.now < L.opens then return 'sale_not_open' end
  return full
end

-- end_hold: expires a due hold; its tombstone is stored with the other records of the call.
local function end_hold(L, res, dead, attempt, user, asked, qty, n, u)
  local tomb = expire(L, attempt, user, asked, qty, n, u)
  res[#res + 1] = attempt
  res[#res + 1] = tomb
  dead[#dead + 1] = attempt
  save_user(L, user, u)
  return tomb
end

-- replay: the answer for a known key. Its hold is ended first if it is due.
local function replay(L, res, dead, attempt, record, constant, u)
  local user, asked, qty, n, deadline = parse_hold(record)
  if user and deadline <= L.now then record = end_hold(L, res, dead, attempt, user, asked, qty, n, u) end
  local was = match(record, '^[hc]\t[^\t]*\t([^\t]*)') or match(record, '^[rxf]\t([^\t]*)')
  if was ~= match(constant, '^h\t[^\t]*\t([^\t]*)') then return '!\tkey_reused' end
  return '=\t' .. left(L, u) .. '\t' .. record
end

-- live_hold: the record of the user's hold if it still runs; one that is due is ended.
local function live_hold(L, res, dead, u)
  if u.live == '' then return nil end
  local record = call('HGET', KEYS[L.k + 1], u.live)
  local user, asked, qty, n, deadline = parse_hold(record or '')
  if not user then
    u.live = ''
  elseif deadline > L.now then
    return record
  else
    end_hold(L, res, dead, u.live, user, asked, qty, n, u)
  end
end

-- refuse: why a request that is no replay is refused, in the decided order, or nil.
local function refuse(L, shut_by, u, live, qty, hold, more)
  if shut_by then return '!\t' .. shut_by end
  local may = u and left(L, u) or (L.limit == 0 and -1 or L.limit)
  if live then return '!\thold_exists\t' .. may .. '\t' .. u.live .. '\t' .. live end
  if may >= 0 and qty > may then return '!\tcustomer_limit\t' .. may end
  if hold > L.max_hold then return '!\tinvalid\t' .. L.max_hold end
  if qty > L.available then return more and 'again' or '!\tsold_out\t' .. may .. '\t' .. fmt('%.0f', L.available) end
end

local function reserve_lot(L, n, at)
  local a_user, a_const, a_tail, a_fresh, a_qty, a_hold = at + n, at + 2 * n, at + 3 * n, at + 4 * n, at + 5 * n, at + 6 * n
  local shut_by, wanted, more = closed(L), 0, false
  for i = a_qty, a_hold - 1 do wanted = wanted + ARGV[i] end
  if wanted > L.available and not shut_by then
    local _
    _, _, more = take_back(L, wanted, budget)
  end
  local records = call('HMGET', KEYS[L.k + 1], unpack(ARGV, at, a_user - 1))
  local users = call('HMGET', KEYS[L.k + 2], unpack(ARGV, a_user, a_const - 1))
  local res, us, dead, out = {}, {}, {}, {}
  local ends, tails, dues = {}, {}, {} -- by the hold asked for: deadline, the record's variable tail, attempts
  for i = 0, n - 1 do
    local attempt, record, text, qty, hold = ARGV[at + i], records[i + 1], users[i + 1], tonumber(ARGV[a_qty + i]), ARGV[a_hold + i]
    local u = (text or record) and parse_user(text)
    local answer
    if record then
      answer = replay(L, res, dead, attempt, record, ARGV[a_const + i], u)
    else
      answer = refuse(L, shut_by, u, u and live_hold(L, res, dead, u), qty, tonumber(hold), more)
    end
    if not answer then
      if not tails[hold] then
        local deadline = L.now + (hold == '0' and L.hold or tonumber(hold))
        ends[hold], tails[hold], dues[hold] = deadline, '\t' .. fmt('%.0f', deadline) .. '\t' .. L.now_s, {}
      end
      local seq = next_seq(L)
      local held = ARGV[a_const + i] .. seq .. tails[hold]
      L.available, L.held = L.available - qty, L.held + qty
      res[#res + 1] = attempt
      res[#res + 1] = held
      us[#us + 1] = ARGV[a_user + i]
      if u then
        u.held, u.live = u.held + qty, attempt
        us[#us + 1] = fmt('%.0f\t%.0f\t%s', u.held, u.bought, attempt)
      else
        us[#us + 1] = ARGV[a_fresh + i]
      end
      ev[evn + 1], ev[evn + 2], ev[evn + 3], ev[evn + 4] = attempt, '\t', held, ARGV[a_tail + i]
      evn = evn + 4
      local due = dues[hold]
      due[#due + 1] = attempt
      answer = '+\t' .. (L.limit == 0 and -1 or (u and left(L, u) or L.limit - qty)) .. '\t' .. seq .. tails[hold]
    end
    out[i + 1] = answer
  end
  if #res > 0 then call('HSET', KEYS[L.k + 1], unpack(res)) end
  if #us > 0 then call('HSET', KEYS[L.k + 2], unpack(us)) end
  for hold, attempts in pairs(dues) do file_due(L, ends[hold], concat(attempts)) end
  if #dead > 0 then file_due(L, L.now + tonumber(ARGV[3]), concat(dead)) end
  if L.named then save_lot(L) end
  return L.epoch .. '\t' .. fmt('%.0f', L.available) .. '\t' .. L.limit, concat(out, '\n')
end

-- Look at every lot first, so that nothing is written if any of them is malformed.
local lots, at = {}, 7
for j = 1, tonumber(ARGV[6]) do
  local n = tonumber(ARGV[at + 1])
  if malformed(n, at + 2) then return { 'invalid', ARGV[at] } end
  local L, code, detail = read_lot(ARGV[at], 1 + 4 * j)
  lots[j] = { L, n, at + 2, code, detail or '' }
  at = at + 2 + 7 * n
end

local reply = { 'ok', '', now_s }
for _, lot in ipairs(lots) do
  local head, lines = '!', (lot[4] or '') .. '\t' .. lot[5]
  if lot[1] then head, lines = reserve_lot(lot[1], lot[2], lot[3]) end
  reply[#reply + 1] = head
  reply[#reply + 1] = lines
end
flush()
return reply
