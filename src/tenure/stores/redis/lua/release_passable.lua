-- The case of a release in front of waiters that all may be passed for the same time: it notifies the head that the name
-- is free, or grants the name to the head if that has waited for its bound. It returns before the script builds anything
-- that it does not need.
--
-- Needs: request, alone (the only holder releases, and this is not unsure)

if alone and barging and #barging[4] == 2 and barging[4][2] == queued and expires >= now + RETENTION * 3 / 4 then
    local allowed = barging[4][1]
    local first = guard == 0
    if guard > 0 then
        local quarantine_ends
        --@include may_grant
        first = may_grant
    end
    first = first and call('ZRANGE', Q, 0, 0)[1]
    local waiter = first and call('HGET', K, 'w' .. first)
    local it = waiter and cmsgpack.unpack(waiter)
    local impatient = it and now - it[W_JOINED] >= allowed
    local quiet = not impatient and (now < barging[2] or now >= barging[3])
    local last = it and math.max(counter + 1, stamp, math.min(it[W_PROPOSAL], farthest)) + it[W_SPAN] - 1
    local message = impatient and string.format('%s %.0f %s', queued > 1 and 'g' or 'G', last, first)
        or first and 'H 0 ' .. first
    if it and it[W_FRESH] >= now and (quiet or push(it[W_CHANNEL], message)) then
        local late = false
        released, used = request, now
        if impatient then
            call('ZREM', Q, first)
            call('HDEL', K, 'w' .. first)
            queued, counter = queued - 1, last
            h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay =
                first, it[W_CHANNEL], it[W_OWNER], last, it[W_WEIGHT], it[W_TTL], it[W_DELAY]
            h_granted, h_expires, h_told = now, now + h_ttl, it[W_SPAN] > 1
            late = expires < h_expires + h_delay + RETENTION / 2
            first = call('ZRANGE', Q, 0, 0)[1]
            waiter = first and call('HGET', K, 'w' .. first)
            it = waiter and cmsgpack.unpack(waiter)
            barging = it and { math.min(it[W_JOINED] + allowed, it[W_FRESH]), 0, it[W_JOINED] + math.floor(allowed / 2),
                { allowed, queued } } or false
            if it and now + h_ttl < it[W_FRESH] - it[W_WAITER_TTL] + 2 * it[W_INTERVAL] + MARGIN then
                push(it[W_CHANNEL], string.format('H %.0f %s', math.max(h_ttl, RETRY), first))
            end
        else
            h_request, h_channel, h_owner, h_told = '', '', '', false
            if not quiet then barging[2] = now + math.max(RETRY, now - it[W_JOINED]) end
        end
        --@include write_grant
        return 1
    end
end
