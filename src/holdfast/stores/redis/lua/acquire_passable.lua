-- The case of a newcomer that may be passed and must wait, behind waiters that all may be passed for as long as it: it
-- returns before the script builds anything that it does not need.
--
-- Needs: request, wait, vote, usual, proposal, quarantine_ends

if usual and fair_after > 0 and wait and not vote and h_request ~= '' and h_request ~= request and capacity == 1
    and weight == 1 and requested_capacity == 1
    and h_expires > now and h_expires <= now + h_ttl and expires >= now + RETENTION * 3 / 4
    and (queued == 0 and not barging or barging and #barging[4] == 2 and barging[4][1] == fair_after
        and barging[4][2] == queued) then
    local it = cmsgpack.pack({ channel, owner, ttl, interval, waiter_ttl, weight, delay, proposal, span, votes, now,
        now + waiter_ttl, fair_after })
    if call('HSETNX', K, 'w' .. request, it) == 1 then
        local place = queued
        queued, last_place, used = place + 1, last_place + 1, now
        slowest = place == 0 and interval or math.max(slowest, interval)
        call('ZADD', Q, last_place, request)
        if place == 0 then
            barging = { now + math.min(fair_after, waiter_ttl), 0, now + math.floor(fair_after / 2), { fair_after, 1 } }
            call('PEXPIREAT', Q, math.ceil(expires / 1000))
            if h_told then push(h_channel, 'W 0 ' .. h_request) end
        else
            barging[4][2] = queued
        end
        --@include write_state
        local slow = interval + math.floor(interval * math.min(place, 10) / 10)
        local retry_in = math.min(slow, h_expires - now + place * STAGGER, fair_after + (place + 1) * GRACE)
        return { 2, math.max(counter, quarantine_ends - 1), math.max(retry_in, RETRY), place, 0 }
    end
end
