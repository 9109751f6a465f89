#!lua flags=allow-oom
-- leave: removes a reader of the outbox that has nothing in hand. One that has stays, so that others can take that over.
--
-- Not gated: it changes nothing that is sold.
-- KEYS  as in common.lua, no lot
-- ARGV  4 consumer group, 5 consumer
-- Reply ok, detail, now, 1 if the reader is gone, 0 if it has entries in hand

local function run()
  local held = redis.pcall('XPENDING', KEYS[2], ARGV[4], '-', '+', 1, ARGV[5])
  if held.err then return { 'ok', '', now_s, '1' } end -- neither stream nor group
  if #held > 0 then return { 'ok', '', now_s, '0' } end
  call('XGROUP', 'DELCONSUMER', KEYS[2], ARGV[4], ARGV[5])
  return { 'ok', '', now_s, '1' }
end
