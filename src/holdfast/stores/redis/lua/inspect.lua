-- Show who holds and who waits, without moving the queue.
--
-- Returns  {capacity, counter, blocked_for, {holder...}, {waiter...}}, a holder being
--          {owner, token, weight, held_for, expires_in, ttl, confirmed}, a waiter {owner, weight, waited_for, alive}
--@include start
--@include state
--@include queue
--@include views

open()
local waiters = {}
for i, request in ipairs(call('ZRANGE', Q, 0, -1)) do
    local it = waiter(request)
    local fresh = math.min(it[W_FRESH], now + it[W_PATIENCE]) >= now
    waiters[i] = { it[W_OWNER], it[W_WEIGHT], now - it[W_JOINED], fresh and listening(it[W_INBOX]) and 1 or 0 }
end
return { capacity, counter, math.max(0, blocked - now), shown_holders(), waiters }
