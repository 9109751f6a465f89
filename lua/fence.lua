#!lua flags=allow-oom
-- fence: the least write there is, for a wait for disk or replicas to stand behind. Nobody reads what it writes.
--
-- Gated like all that it stands behind, but without common.lua, which would cost more than the rest of it.
-- KEYS  1 meta
-- ARGV  1 run id, 2 owner, 3 -
-- Reply ok | lot_not_loaded | foreign_installation, owner | lot_frozen, reason

local m = redis.call('HMGET', KEYS[1], 'owner', 'run', 'frozen')
if not m[1] then return { 'lot_not_loaded', 'emptied' } end
if m[1] ~= ARGV[2] then return { 'foreign_installation', m[1] } end
if m[3] and m[3] ~= '' then return { 'lot_frozen', m[3] } end
if m[2] ~= ARGV[1] then return { 'lot_frozen', 'closed_door' } end
redis.call('HSET', KEYS[1], 'fence', '')
return { 'ok', '' }
