-- Let go, and pass the name on in the same step. A release that is asked again is no error.
--
-- ARGV  5 request  6 token  7 unsure (1: an ask may still be under way, so leave a tombstone)
-- Returns  1 released  2 the lease had run out  3 it had, and another holder followed
--@include state

local request, token, unsure = ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'

open()
if remove_holder(request) then released = request end
if not head and not unsure then
    save()
    return released == request and 1 or fate(token)
end
--@include queue

look()
if unsure then
    bury(request)
    dequeue(request) -- an ask that came late, after the lease had run out
end
pass_on()
save()
return released == request and 1 or fate(token)
