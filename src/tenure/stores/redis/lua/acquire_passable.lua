-- The cases of a request that may be passed, among waiters that all may be passed for as long as it: it joins them, or
-- asks again and stays, or asks again and takes the free name. Each returns before the script builds anything that it does
-- not need.
--
-- Needs: request, wait, vote, usual, proposal, quarantine_ends

local free = h_request == ''
if usual and fair_after > 0 and wait and not vote and capacity == 1 and weight == 1 and requested_capacity == 1
    and (free and barging and now < barging[1]
        or not free and h_request ~= request and h_expires > now and h_expires <= now + h_ttl)
    and expires >= now + RETENTION * 3 / 4
    and (queued == 0 and not barging or barging and #barging[4] == 2 and barging[4][1] == fair_after
        and barging[4][2] == queued) then
    local field = 'w' .. request
    local waiter = call('HGET', K, field)
    local before = waiter and cmsgpack.unpack(waiter)
    local place = not free and queued
    if before then place = call('ZRANK', Q, request) end
    if place and free then
        call('ZREM', Q, request)
        call('HDEL', K, field)
        queued, used = queued - 1, now
        counter = math.max(counter + 1, stamp, math.min(proposal, farthest)) + span - 1
        h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay = request, channel, owner, counter, 1, ttl, delay
        h_granted, h_expires, h_told = now, now + ttl, span > 1
        barging[4][2] = queued
        if place == 0 then
            local first = call('ZRANGE', Q, 0, 0)[1]
            waiter = first and call('HGET', K, 'w' .. first)
            local it = waiter and cmsgpack.unpack(waiter)
            barging = it and { math.min(it[W_JOINED] + fair_after, it[W_FRESH]), 0,
                it[W_JOINED] + math.floor(fair_after / 2), barging[4] } or false
            if it and now + ttl < it[W_FRESH] - it[W_WAITER_TTL] + 2 * it[W_INTERVAL] + MARGIN then
                push(it[W_CHANNEL], string.format('H %.0f %s', math.max(ttl, RETRY), first))
            end
        end
        local late = expires < h_expires + delay + RETENTION / 2
        --@include write_grant
        return { 1, counter, ttl, queued > 0 and 1 or 0 }
    elseif place then
        local joined = before and before[W_JOINED] or now
        call('HSET', K, field, cmsgpack.pack({ channel, owner, ttl, interval, waiter_ttl, weight, delay, proposal, span,
            votes, joined, now + waiter_ttl, fair_after }))
        used = now
        if not before then
            queued, last_place = place + 1, last_place + 1
            slowest = place == 0 and interval or math.max(slowest, interval)
            call('ZADD', Q, last_place, request)
            if place == 0 then
                barging = { 0, 0, now + math.floor(fair_after / 2), { fair_after, 1 } }
                call('PEXPIREAT', Q, math.ceil(expires / 1000))
            end
            barging[4][2] = queued
        end
        if place == 0 then barging[1] = math.min(joined + fair_after, now + waiter_ttl) end
        if h_told and (before or place == 0) then push(h_channel, 'W 0 ' .. h_request) end
        --@include write_state
        local slow = interval + math.floor(interval * math.min(place, 10) / 10)
        local retry_in, bound_in = math.min(slow, h_expires - now + place * STAGGER), joined + fair_after - now
        local early = math.floor(bound_in * 3 / 4)
        if early < GRACE then early = bound_in > 0 and bound_in + (place + 1) * GRACE or retry_in end
        retry_in = math.min(retry_in, early)
        if place == 0 and barging[2] > now then retry_in = math.min(retry_in, barging[2] - now) end
        return { 2, math.max(counter, quarantine_ends - 1), math.max(retry_in, RETRY), place, 0 }
    end
end
