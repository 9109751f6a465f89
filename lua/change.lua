#!lua flags=allow-oom
-- change: sets fields of a lot's definition, or its capacity. One event, `adjusted` for a capacity and `changed` for the rest.
--
-- KEYS  gated, see common.lua, one lot
-- ARGV  4 lot id, 5 actor, 6 reason, 7 how many due attempts may be looked at, 8 '1' for a trial that changes nothing, then either
--       'to' or 'by', number, expected capacity; or pairs of field and value (status limit hold max_hold opens closes late name)
-- Reply ok, detail, now, 'changed' | 'same', then the lot's fields and values
--       conflict, 'expect', capacity | conflict, 'units', least capacity | conflict, 'rule', field | again

-- The fields that may be set, and of which kind they are.
local FIELDS = { status = 'text', limit = 'number', hold = 'number', max_hold = 'number', opens = 'number', closes = 'number', late = 'text', name = 'text' }

-- The lot that is changed and its rules as they will be; how many due attempts may be looked at; whether it is a trial.
local L, R, budget, trial

-- emit_picture: the event that carries the lot as it now stands.
local function emit_picture(letter)
  local seq = next_seq(L)
  local f = { '*', letter, seq, ARGV[5], ARGV[6], fmt('%d\t%d\t%d', L.capacity, L.held, L.sold), R.status, fmt('%d\t%d\t%d', R.limit, R.hold, R.max_hold), time_text(R.opens), time_text(R.closes), R.late, R.name }
  emit(concat(f, '\t') .. '\n')
end

-- adjust: sets the capacity. What it already is needs no change: the call was repeated.
local function adjust(mode, number, expect)
  local target = mode == 'to' and number or expect + number
  if L.capacity == target then return 'same' end
  if L.capacity ~= expect then return 'conflict', { 'conflict', 'expect', fmt('%d', L.capacity) } end
  if target > 1e9 then return 'conflict', { 'invalid', 'capacity' } end
  local short = L.held + L.sold - target
  if short > 0 and trial then
    L.held = L.held - due_units(L, budget)
  elseif short > 0 then
    local _, more = take_back(L, L.available + short, budget)
    if L.held + L.sold > target and more then return 'conflict', { 'again', '' } end
  end
  if target < 0 or L.held + L.sold > target then return 'conflict', { 'conflict', 'units', fmt('%d', L.held + L.sold) } end
  L.available, L.capacity = target - L.held - L.sold, target
  if not trial then emit_picture('a') end
  return 'changed'
end

-- change: sets the fields that differ.
local function change()
  local differs = false
  for i = 9, #ARGV, 2 do
    local field, value = ARGV[i], ARGV[i + 1]
    if FIELDS[field] == 'number' then value = tonumber(value == '' and '0' or value) end
    if R[field] ~= value then
      R[field], differs = value, true
    end
  end
  if not differs then return 'same' end
  -- Checked here as well as by the caller: another change may have come between its look and this call.
  if R.hold > R.max_hold then return 'conflict', { 'conflict', 'rule', 'max_hold' } end
  if R.opens > 0 and R.closes > 0 and R.closes <= R.opens then return 'conflict', { 'conflict', 'rule', 'closes' } end
  if not trial then
    emit_picture('g')
    local rule_field = pack_rule(R, R.status)
    L.rule = rule_of(rule_field)
    put_record(L, 'rule', rule_field)
    put_record(L, 'name', R.name)
  end
  return 'changed'
end

local function run()
  local shut = door()
  if shut then return shut end
  local code, detail
  L, code, detail = read_lot(ARGV[4], FIRST_LOT)
  if not L then return { code, detail or '' } end
  if not read_totals(L) then return { 'corrupt', L.id } end
  R = { name = call('HGET', KEYS[FIRST_LOT], 'name') or '' }
  for field, value in pairs(L.rule) do R[field] = value end
  budget, trial = tonumber(ARGV[7]), ARGV[8] == '1'

  local outcome, refusal
  if ARGV[9] == 'to' or ARGV[9] == 'by' then
    local number, expect = tonumber(ARGV[10]), tonumber(ARGV[11])
    if not number or not expect or number % 1 ~= 0 or expect % 1 ~= 0 then return { 'invalid', 'capacity' } end
    outcome, refusal = adjust(ARGV[9], number, expect)
  else
    for i = 9, #ARGV, 2 do
      local kind, value = FIELDS[ARGV[i]], ARGV[i + 1]
      local n = tonumber(value == '' and '0' or value)
      if not kind or not value or kind == 'number' and not (n and n >= 0 and n <= 1e13 and n % 1 == 0) then return { 'invalid', ARGV[i] } end
    end
    outcome, refusal = change()
  end
  save({ L })
  if refusal then return refusal end
  local reply = { 'ok', '', now_s, outcome }
  local rule_field = pack_rule(R, R.status)
  L.rule = rule_of(rule_field)
  for _, v in ipairs(picture(pack_live(L, now), pack(TOTALS, L.sold, L.capacity), rule_field, R.name)) do reply[#reply + 1] = v end
  return reply
end
