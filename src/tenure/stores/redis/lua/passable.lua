--@define acquire_passable()
-- The cases of a request that may be passed, among waiters that all may be passed for as long as it: it joins them, or
-- asks again and stays, or asks again and takes the free name. Each returns before the script builds anything that it does
-- not need.
--
-- Needs: request, wait, vote, usual, proposal, quarantine_ends

local free = h_request == ''
if usual and fair_after > 0 and wait and not vote and capacity == 1 and weight == 1 and requested_capacity == 1
    and (free and barging and now < barging[1]
        or not free and h_request ~= request and h_expires > now and h_expires <= now + h_ttl)
    and @keys_last()
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
        counter = @next_token(proposal, stamp) + span - 1
        @hold_alone(request, channel, owner, counter, 1, ttl, delay, span > 1)
        barging[4][2] = queued
        if place == 0 then
            local first, it
            @next_passable(fair_after)
        end
        @outlast(h_expires + delay, true)
        return { 1, counter, ttl, queued > 0 and 1 or 0 }
    elseif place then
        local joined = before and before[W_JOINED] or now
        local it = @waiter_from(joined)
        call('HSET', K, field, cmsgpack.pack(it))
        used = now
        if not before then
            queued, last_place = place + 1, last_place + 1
            slowest = place == 0 and interval or math.max(slowest, interval)
            call('ZADD', Q, last_place, request)
            if place == 0 then
                barging = { 0, 0, @told_until(it, fair_after), { fair_after, 1 } }
                call('PEXPIREAT', Q, math.ceil(expires / 1000))
            end
            barging[4][2] = queued
        end
        if place == 0 then barging[1] = @passed_until(it, fair_after) end
        if h_told and (before or place == 0) then push(h_channel, 'W 0 ' .. h_request) end
        @write_state()
        local retry_in, bound_in = @retry_in(place, h_expires - now), joined + fair_after - now
        local quiet_for = place == 0 and barging[2] - now or 0
        @retry_if_passed(place, bound_in, quiet_for)
        return { 2, math.max(counter, quarantine_ends - 1), math.max(retry_in, RETRY), place, 0 }
    end
end

--@define release_passable()
-- The case of a release in front of waiters that all may be passed for the same time: it notifies the head that the name
-- is free, or grants the name to the head if that has waited for its bound. It returns before the script builds anything
-- that it does not need.
--
-- Needs: request, alone (the only holder releases, and this is not unsure)

if alone and barging and #barging[4] == 2 and barging[4][2] == queued and @keys_last() then
    local allowed = barging[4][1]
    local first = guard == 0
    if guard > 0 then
        local quarantine_ends
        @may_grant()
        first = may_grant
    end
    local waiter, it
    if first then
        @first_waiter()
    end
    local impatient = it and now - it[W_JOINED] >= allowed
    local quiet = not impatient and @is_quiet()
    local last = it and @next_token(it[W_PROPOSAL], stamp) + it[W_SPAN] - 1
    local message = impatient and @grant_message(first, last, queued > 1)
        or first and 'H 0 ' .. first
    if it and it[W_FRESH] >= now and (quiet or push(it[W_CHANNEL], message)) then
        released, used = request, now
        if impatient then
            call('ZREM', Q, first)
            call('HDEL', K, 'w' .. first)
            queued, counter = queued - 1, last
            @hold_alone(first, it[W_CHANNEL], it[W_OWNER], last, it[W_WEIGHT], it[W_TTL], it[W_DELAY], it[W_SPAN] > 1)
            @next_passable(allowed)
        else
            h_request, h_channel, h_owner, h_told = '', '', '', false
            if not quiet then barging[2] = @quiet_until(it) end
        end
        @outlast(impatient and h_expires + h_delay or 0, true)
        return 1
    end
end
