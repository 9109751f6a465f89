#!lua flags=allow-oom
-- repair: puts right what a lot keeps beside its totals and records: due entries, the time of its next look, user
-- counters, batches. It writes what the records say when it runs, and no event: nothing changes that the ledger knows.
--
-- KEYS  gated, see common.lua, one lot
-- ARGV  4 lot id; where the evidence was seen: 5 run id of the server, 6 epoch, 7 seq; 8 ms from now, later than which
--       nothing can be due; then the fixes:
--       due attempt last            the hold has no due entry at or before its deadline; last is the seq of its last change
--       user mark user seen n, then n times: attempt last
--                                   the counters, seen as "held bought attempt" or 'damaged', are not what these records,
--                                   all live ones of the user, add up to
--       stray member                a due entry that is damaged or comes too late for anything
--       batch name                  no record refers to the batch, so none ever will: a batch's name is new with its holds
--       next                        the lot's place in `next` is missing or comes after its first due entry
-- Reply ok, detail, now, then for each fix: done | same (nothing was to be done any more) | conflict (not as it was seen)
--       conflict, epoch and seq of the lot | conflict, run id
-- A busy lot's seq never stands still. So the lot must be of the epoch seen and at its seq or past it, and what a fix
-- follows from must be unchanged: every record by the seq of its last change, the counters by their value.

-- The lot that is repaired, later than when nothing of it can be due, and its due entries that must go.
local L, latest, strays

-- live_record: user, quantity, last seq and, of a hold, deadline of a held or confirmed record; nil for any other.
local function live_record(record)
  local user, _, qty, n, deadline, _, last = match(record or '', HOLD)
  if user then return user, tonumber(qty), last == '' and n or last, tonumber(deadline) end
  user, qty, last = match(record or '', '^c\t([^\t]*)\t[^\t]*\t(%d+)\t%d+\t(%d+)\t')
  return user, tonumber(qty), last
end

-- fix_due: files the hold for its deadline. Its record no longer leans on its batch then, which goes with the batch's own entry.
local function fix_due(attempt, last)
  local records, users = read_attempts(L, { attempt })
  local record, u = explicit(L, records[1]), users[1]
  local user, _, at, deadline = live_record(record)
  if not user or not deadline or at ~= last then return 'conflict' end
  if call('ZSCORE', KEYS[4], fmt('%s\t%013d\t\t%s', L.id, deadline, attempt)) then return 'same' end
  if record ~= records[1] and u.record == records[1] then
    put_record(L, mark_of(attempt), only_hold(attempt, sub(record, 2)))
  elseif record ~= records[1] then
    put_record(L, attempt, record)
  end
  file_again(L, deadline, attempt)
  return 'done'
end

-- add_up: what the records add up to whose attempts and last seqs are ARGV[from] to ARGV[to]; nil if one has changed.
local function add_up(user, from, to)
  local u = { held = 0, bought = 0, live = '', user = user }
  for i = from, to, 2 do
    local whose, qty, last, deadline = live_record(explicit(L, read_attempts(L, { ARGV[i] })[1]))
    if whose ~= user or last ~= ARGV[i + 1] then return nil end
    if deadline then
      u.held, u.live = u.held + qty, ARGV[i]
    else
      u.bought = u.bought + qty
    end
  end
  return u
end

local function counters(u) return fmt('%d\t%d\t%s', u.held, u.bought, u.live) end

-- seen_as: a user's counters as who asks for the fix saw them.
local function seen_as(stored, u)
  local held, bought = match(stored or '0\t0\t\t', '^(%d+)\t(%d+)\t[^\t]*\t')
  if not u.record and (not held or #held > 15 or #bought > 15) then return 'damaged' end
  return counters(u)
end

local function fix_user(mark, user, seen, from, to)
  local u = add_up(user, from, to)
  if not u then return 'conflict' end
  local stored = call('HGET', KEYS[L.k], mark)
  local was = parse_user(stored, mark)
  local found = seen_as(stored, was)
  if found == counters(u) and (was.user or user) == user then return 'same' end
  if found ~= seen then return 'conflict' end
  unfold(L, was)
  put_user(L, mark, u)
  return 'done'
end

local function fix_stray(member)
  if sub(member, 1, #L.id + 1) ~= L.id .. '\t' or not call('ZSCORE', KEYS[4], member) then return 'same' end
  local at, attempts = match(member, '^[^\t]*\t(%d+)\t[^\t]*\t(.*)$')
  if at and #at == 13 and #attempts >= ATTEMPT and tonumber(at) <= now + latest then return 'conflict' end
  strays[#strays + 1] = member
  return 'done'
end

local function fix_batch(name)
  if call('HEXISTS', KEYS[L.k], '#' .. name) == 0 then return 'same' end
  L.leave = L.leave or {}
  L.leave[#L.leave + 1] = '#' .. name
  return 'done'
end

-- first_stored: the time of the lot's first due entry; 0 without one. A damaged one may come before every time.
local function first_stored()
  local first = call('ZRANGEBYLEX', KEYS[4], '[' .. L.id .. '\t0', '(' .. L.id .. '\t:', 'LIMIT', 0, 1)
  return tonumber(match(first[1] or '', '^[^\t]*\t(%d+)\t') or 0)
end

-- fix_next: the other fixes bring it right too.
local function fix_next()
  local first, filed = first_stored(), call('ZSCORE', KEYS[3], L.id)
  if first == 0 or filed and tonumber(filed) <= first then return 'same' end
  return 'done'
end

-- one: carries out the fix at ARGV[i]; returns where the next one starts and how it went.
local function one(i)
  local what = ARGV[i]
  if what == 'due' and ARGV[i + 2] then return i + 3, fix_due(ARGV[i + 1], ARGV[i + 2]) end
  if what == 'stray' and ARGV[i + 1] then return i + 2, fix_stray(ARGV[i + 1]) end
  if what == 'batch' and ARGV[i + 1] then return i + 2, fix_batch(ARGV[i + 1]) end
  if what == 'next' then return i + 1, fix_next() end
  local n = what == 'user' and tonumber(ARGV[i + 4])
  local stop = n and i + 5 + 2 * n
  if stop and n % 1 == 0 and n >= 0 and (n == 0 or ARGV[stop - 1]) then return stop, fix_user(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], i + 5, stop - 1) end
end

local function run()
  local shut = door()
  if shut then return shut end
  local epoch, seq = tonumber(ARGV[6]), tonumber(ARGV[7])
  latest, strays = tonumber(ARGV[8]), {}
  if not (epoch and seq and latest and latest >= 0) then return { 'invalid', '6' } end
  if ARGV[5] ~= ARGV[1] then return { 'conflict', ARGV[1] } end
  local code, detail
  L, code, detail = read_lot(ARGV[4], FIRST_LOT)
  if not L then return { code, detail or '' } end
  if not (L.rule.epoch == epoch and L.seq >= seq) then return { 'conflict', fmt('%d %d', L.rule.epoch, L.seq) } end
  prove()
  file_unfiled()

  -- Nothing else is written before every fix has been looked at.
  local reply, i, any = { 'ok', '', '' }, 9, false
  while ARGV[i] do
    local stop, outcome = one(i)
    if not stop then return { 'invalid', tostring(i) } end
    i, reply[#reply + 1], any = stop, outcome, any or outcome == 'done'
  end
  if any then
    for from = 1, #strays, 1000 do call('ZREM', KEYS[4], unpack(strays, from, math.min(#strays, from + 999))) end
    look_first(L, first_stored(), 2)
    save({ L })
  end
  reply[3] = now_s
  return reply
end
