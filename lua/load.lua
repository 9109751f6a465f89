#!lua flags=allow-oom
-- load: puts a lot into Redis under a new epoch, with the records that were staged for it. The first load of a shard also
-- opens its door; but one that has lost nothing but its door stays frozen, until its other lots are compared.
--
-- Not gated: it runs on a frozen shard too, and leaves it frozen. A lot that was frozen sells again.
-- KEYS  as in common.lua, one lot; then the lot's staging hash and the staging set of its due entries
-- ARGV  1 run id, 2 owner, 3 -, 4 lot id, 5 what the load was planned on: 'absent', 'damaged' or 'run epoch seq' (tabs between),
--       6 epoch, 7 closing epoch, 8 closing seq, 9 capacity, 10 held, 11 sold, 12 status, 13 limit, 14 hold, 15 max_hold,
--       16 opens or '', 17 closes or '', 18 late, 19 name, 20 actor, 21 reason, 22 least time mark in ms,
--       23 how many slices were staged for this epoch, 0: none. A staging that is not this one is thrown away.
-- Reply ok, detail, now, seq of the loaded event, run id | conflict, what is there now | conflict, 'staged' | foreign_installation, owner

-- untouched: whether no event was ever written in this shard.
local function untouched()
  local info = redis.pcall('XINFO', 'STREAM', KEYS[2])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] == '0-0' end
  end
  return true
end

-- numbers: the arguments that are numbers, by their place; nil and which is wrong if the arguments are not what the contract says.
local function numbers()
  local n = {}
  for _, i in ipairs({ 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 22, 23 }) do
    n[i] = tonumber(ARGV[i] == '' and (i == 16 or i == 17) and '0' or ARGV[i])
    if not (n[i] and n[i] >= 0 and n[i] <= 99999999999999 and n[i] % 1 == 0) then return nil, tostring(i) end
  end
  if n[9] < n[10] + n[11] then return nil, '9' end
  if n[22] > 1e13 then return nil, '22' end
  if not ARGV[12] or not ARGV[18] or not ARGV[21] or #KEYS ~= FIRST_LOT + 2 then return nil, '' end
  return n
end

-- take_staged: puts what was staged in the lot's place, which is empty.
local function take_staged(lot, hash, due)
  call('RENAME', hash, lot)
  call('HDEL', lot, 'staged')
  for i = 0, call('ZCARD', due) - 1, 1000 do
    local entries = {}
    for _, member in ipairs(call('ZRANGE', due, i, i + 999)) do
      entries[#entries + 1] = '0'
      entries[#entries + 1] = member
    end
    call('ZADD', KEYS[4], unpack(entries))
  end
end

local function run()
  local n, wrong = numbers()
  if not n then return { 'invalid', wrong } end
  local id, lot, hash, due = ARGV[4], KEYS[FIRST_LOT], KEYS[FIRST_LOT + 1], KEYS[FIRST_LOT + 2]

  local m = call('HMGET', KEYS[1], 'owner', 'run', 'bytes')
  if m[1] and m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
  bytes_s = m[3] or '0'
  meta_bytes = tonumber(bytes_s)
  if not meta_bytes then return { 'corrupt', 'meta' } end
  call('XLEN', KEYS[2])
  call('ZCARD', KEYS[3])
  call('ZCARD', KEYS[4])
  call('LLEN', KEYS[6])
  local present = found(FIRST_LOT, m[2])
  -- Of a shard that has no door every lot is planned on without one; the first load makes another.
  local without_door = sub(ARGV[5], 1, 1) == '\t' and sub(present, -#ARGV[5]) == ARGV[5]
  if present ~= ARGV[5] and not without_door then return { 'conflict', present } end
  local staged = n[23] > 0
  if staged and call('HGET', hash, 'staged') ~= fmt('%d\t%d', n[6], n[23]) then return { 'conflict', 'staged' } end
  if staged then call('ZCARD', due) end

  -- What is unlinked is freed in the background, where a rename over it would free it here.
  file_unfiled()
  call('UNLINK', lot)
  call('ZREMRANGEBYLEX', KEYS[4], '[' .. id .. '\t', '(' .. id .. '\n')
  call('ZREM', KEYS[3], id)
  if not m[1] then call('HSET', KEYS[1], 'owner', ARGV[2], 'run', ARGV[1], 'frozen', untouched() and '' or 'emptied', 'bytes', '0', 'trimmed', '0') end
  if staged then take_staged(lot, hash, due) end
  call('UNLINK', hash, due)

  now = math.max(now, n[22])
  now_s = fmt('%d', now)
  local rule_field = pack_rule({ epoch = n[6], limit = n[13], hold = n[14], max_hold = n[15], opens = n[16], closes = n[17], late = ARGV[18] }, ARGV[12])
  local L = decode(id, FIRST_LOT, pack(LIVE, n[9] - n[10] - n[11], n[10], n[8], now, 0, print_of(rule_field)), rule_field)
  local seq = next_seq(L)
  L.sold, L.capacity = n[11], n[9]
  L.due = first_due(id)
  L.due_moved = L.due > 0
  put_record(L, 'rule', rule_field)
  put_record(L, 'name', ARGV[19])
  emit('*\tl\t' .. seq .. '\t' .. concat({ ARGV[20], ARGV[21], ARGV[9], ARGV[10], ARGV[11] }, '\t') .. '\t' .. concat(ARGV, '\t', 12, 19) .. '\t' .. ARGV[7] .. '\t' .. ARGV[8] .. '\n')
  save({ L })
  return { 'ok', '', now_s, seq, ARGV[1] }
end
