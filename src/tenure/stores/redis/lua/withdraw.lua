-- Remove a waiter from the queue. If the name was granted to it meanwhile, grant the name to the next waiter.
--
-- ARGV  3 request  4 unsure (1: a request may still be under way, so leave a tombstone) Returns  {place, quarantine,
-- owner...}: how many waiters stood before it, and the owners of the holders
@operation()

local request = ARGV[3]

begin()
begin_queue()
if ARGV[4] == '1' then bury(request) end
local reply = add_owners({ call('ZRANK', Q, request) or call('ZCARD', Q), quarantined_for() })
remove_holder(request)
remove_holder(PLACEHOLDER .. request)
dequeue(request)
serve_queue()
save()
return reply
