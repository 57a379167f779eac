-- Change the capacity of the name if it has the given one, or if nobody uses it. Leases stay, and so do the places of
-- waiters, except those that are too heavy now: they leave the queue, are told to ask again, and are then refused.
--
-- ARGV  3 the capacity before  4 the capacity after
-- Returns  the capacity afterwards
@operation()

local before, after = tonumber(ARGV[3]), tonumber(ARGV[4])

begin()
begin_queue()
if capacity ~= before and head then advance('') end -- drops dead waiters, which may be all that uses the name
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
serve_queue()
save()
return capacity
