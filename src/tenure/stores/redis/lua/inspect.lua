-- Return who holds the name and a page of those who wait for it, without serving the queue.
--
-- ARGV  3 the score after which the page begins, -inf for the first  4 how many waiters a page has
-- Returns  {capacity, counter, blocked_for, {holder...}, {waiter...}, quarantined_for, quarantined_since, next}, a holder
--          being {owner, token, weight, held_for, expires_in, ttl, released}, a waiter {owner, weight, waited_for, alive},
--          next the score after which the next page begins, or "" after the last. Waiters of one score are in one page
@operation()
@views()

begin()
local waiters = {}
local after = '(' .. ARGV[3]
local last = call('ZRANGE', Q, after, '+inf', 'BYSCORE', 'LIMIT', ARGV[4] - 1, 1, 'WITHSCORES')[2]
for _, request in ipairs(call('ZRANGE', Q, after, last or '+inf', 'BYSCORE')) do
    local it = waiter(request)
    if it and not lapsed[request] then
        local alive = math.min(it[W_FRESH], now + it[W_WAITER_TTL]) >= now and listening(it[W_CHANNEL])
        waiters[#waiters + 1] = { it[W_OWNER], it[W_WEIGHT], math.max(0, now - it[W_JOINED]), alive and 1 or 0 }
    end
end
local quarantined_for = math.max(0, quarantine(0, true) - now)
local since = quarantined_for > 0 and math.max(0, now - marker[2]) or 0
return told({ capacity, counter, math.max(0, blocked - now), shown_holders(), waiters, quarantined_for, since,
    last or '' })
