-- Give up a place in the queue, or pass on a grant that crossed this on its way.
--
-- ARGV  3 request  4 unsure (1: a request may still be under way, so leave a tombstone)
-- Returns  {place, quarantine, owner...}: how many stood before it, and who holds
--@include start
--@include state
--@include queue

local request = ARGV[3]

open()
look()
if ARGV[4] == '1' then bury(request) end
local reply = add_owners({ call('ZRANK', Q, request) or call('ZCARD', Q), quarantined_for() })
remove_holder(request)
remove_holder(KEPT .. request)
dequeue(request)
pass_on()
save()
return reply
