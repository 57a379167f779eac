-- Return who holds the name and who waits for it, without serving the queue.
--
-- Returns  {capacity, counter, blocked_for, {holder...}, {waiter...}, quarantined_for}, a holder being
--          {owner, token, weight, held_for, expires_in, ttl}, a waiter {owner, weight, waited_for, alive}
--@include fields
--@include start
--@include push
--@include state
--@include queue
--@include views

open()
local waiters = {}
for _, request in ipairs(call('ZRANGE', Q, 0, -1)) do
    local it = waiter(request)
    if it then
        local alive = math.min(it[W_FRESH], now + it[W_WAITER_TTL]) >= now and listening(it[W_CHANNEL])
        waiters[#waiters + 1] = { it[W_OWNER], it[W_WEIGHT], math.max(0, now - it[W_JOINED]), alive and 1 or 0 }
    end
end
local quarantined_for = math.max(0, quarantine(0, true) - now)
return told({ capacity, counter, math.max(0, blocked - now), shown_holders(), waiters, quarantined_for })
