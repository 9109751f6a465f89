#!lua flags=allow-oom
-- change: sets the fields that differ.
local function change()
  local differs = false
  for i = 9, #ARGV, 2 do
    local field, value = ARGV[i], ARGV[i + 1]
    if tostring(L[field]) ~= value then
      L[field], differs = value, true
    end
  end
  if not differs then return 'same' end
  if not trial then
    local rule = {}
    for i, field in ipairs(RULES) do rule[i] = L[field] end
    prove()
    emit_picture('g')
    call('HSET', KEYS[5], 'rule', concat(rule, '\t'), 'name', L.name)
  end
  return 'changed'
end

local outcome, refusal
if ARGV[9] == 'to' or ARGV[9] == 'by' then
  local number, expect = tonumber(ARGV[10]), tonumber(ARGV[11])
  if not number or not expect or number % 1 ~= 0 or expect % 1 ~= 0 then return { 'invalid', 'capacity' } end
  outcome, refusal = adjust(ARGV[9], number, expect)
else
  for i = 9, #ARGV, 2 do
    if not FIELDS[ARGV[i]] or not ARGV[i + 1] then return { 'invalid', ARGV[i] } end
  end
  outcome = change()
end
save({ L })
if refusal then return refusal end
local reply = { 'ok', '', now_s, outcome }
for _, v in ipairs(call('HGETALL', KEYS[5])) do reply[#reply + 1] = v end
if trial then
  for _, v in ipairs({ 'capacity', fmt('%d', L.capacity), 'available', fmt('%d', L.available) }) do reply[#reply + 1] = v end
end
return reply
