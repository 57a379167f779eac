-- Change the capacity of the name if it is the one given, or if nobody uses it. Holders keep what they hold, and waiters
-- their places, but those that are too heavy now: they are sent away, told to ask again, and refused as they do.
--
-- ARGV  3 the capacity before  4 the capacity after
-- Returns  the capacity that it has now
--@include start
--@include state
--@include queue

local before, after = tonumber(ARGV[3]), tonumber(ARGV[4])

open()
look()
if capacity ~= before and head then advance('') end -- which drops the dead, if it is they who keep the name in use
if capacity == before or not (holders[1] or head) then
    capacity = after
    for _, request in ipairs(call('ZRANGE', Q, 0, -1)) do
        local it = waiter(request)
        if it and it[W_WEIGHT] > after then
            dequeue(request)
            push(it[W_CHANNEL], string.format('H %.0f %s', RETRY, request))
        end
    end
end
pass_on()
save()
return capacity
