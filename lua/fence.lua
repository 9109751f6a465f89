#!lua flags=allow-oom
-- fence: the least write there is, for a wait for disk or replicas to stand behind. Nobody reads what it writes.
--
-- Not gated by freeze or run id: what it stands behind may be a freeze, or the load of a shard that is shut. It does
-- without common.lua, which would cost more than the rest of it.
-- KEYS  1 meta
-- ARGV  1 -, 2 owner, 3 -
-- Reply ok | lot_not_loaded | foreign_installation, owner

local owner = redis.call('HGET', KEYS[1], 'owner')
if not owner then return { 'lot_not_loaded', 'emptied' } end
if owner ~= ARGV[2] then return { 'foreign_installation', owner } end
redis.call('HSET', KEYS[1], 'fence', '')
return { 'ok', '' }
