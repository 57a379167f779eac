-- Let go, and pass the name on in the same step. A release that is asked again is no error.
--
-- ARGV  5 request  6 token  7 unsure (1: an ask may still be under way, so leave a tombstone)
-- Returns  1 released  2 the lease had run out  3 it had, and another holder followed
--@include start

local request, token, unsure = ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'

-- The usual case, told apart before anything that it does not need is made: the only holder lets go, and nobody waits.
if state and not unsure and state[QUEUED] == 0 and state[BLOCKED] == 0 then
    local holder = state[HOLDERS][1]
    if holder and not state[HOLDERS][2] and holder[REQUEST] == request and holder[EXPIRES] > now then
        state[HOLDERS], state[RELEASED], state[USED] = {}, request, now
        call('HSET', K, '=', cmsgpack.pack(state))
        return 1
    end
end
--@include state
--@include queue

open()
look()
if unsure then
    bury(request)
    dequeue(request) -- an ask that came late, after the lease had run out
end
if remove_holder(request) then released = request end
pass_on()
save()
return released == request and 1 or fate(token)
