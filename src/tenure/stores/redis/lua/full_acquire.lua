-- Process one acquire request for the current name, in all cases. table/step.py has the same rules.
--
-- Needs: request, proposal, wait, vote; refused (whether the request was withdrawn or released).

local seat -- its id in the queue: each attempt for a vote has another request id, which is base/round

local function granted_before(holder)
    holder[TTL] = math.max(holder[TTL], ttl)
    holder[EXPIRES] = math.max(holder[EXPIRES], now + ttl)
    return { 1, holder[TOKEN], ttl, head and 1 or 0 }
end

local function agree()
    if not holders[1] and not head then capacity = requested_capacity end
    return capacity == requested_capacity
end

-- Join the queue at its tail, or stay at the present place. Notify the holders if they may not know of a waiter.
local function join()
    local it = { channel, owner, ttl, interval, waiter_ttl, weight, delay, proposal, span, votes, now, now + waiter_ttl,
        fair_after }
    local before = waiter(seat)
    if before and call('ZRANK', Q, seat) then
        it[W_JOINED] = before[W_JOINED]
        weigh(before[W_WEIGHT], -1)
    else
        allow(fair_after, 1)
        last_place, queued = last_place + 1, queued + 1
        -- Votes are queued in the order of their first requests by the clients' clocks, within bounds.
        local since = vote and math.min(math.max(proposal, now - EARLIER), now)
        slowest = head and math.max(slowest, interval) or interval
        call('ZADD', Q, since or last_place, seat)
        if vote then head = call('ZRANGE', Q, 0, 0)[1] end
        if queued == 1 then
            head = seat
            call('PEXPIREAT', Q, math.ceil(math.max(expires, now + RETENTION) / 1000))
        end
    end
    weigh(weight, 1)
    store_waiter(seat, it)
    if before or queued == 1 then
        for _, holder in ipairs(holders) do
            if holder[TOLD] then push(holder[CHANNEL], 'W 0 ' .. holder[REQUEST]) end
        end
    end
end

-- Return when a waiter that may be passed asks again: shortly before its bound and soon after it, and when the time is
-- over in which it is not notified that the name is free.
local function retry_if_passed(retry_in, place)
    local bound_in = waiter(request)[W_JOINED] + fair_after - now
    local early = math.floor(bound_in * 3 / 4)
    if early >= GRACE then
        retry_in = math.min(retry_in, early)
    elseif bound_in > 0 then
        retry_in = math.min(retry_in, bound_in + (place + 1) * GRACE)
    end
    if request == head and barging[2] > now then retry_in = math.min(retry_in, barging[2] - now) end
    return retry_in
end

local function waiting()
    local place = call('ZRANK', Q, request)
    local slow = interval + math.floor(interval * math.min(place, 10) / 10)
    local retry_in = math.min(slow, frees_in() + place * STAGGER)
    if fair_after > 0 then retry_in = retry_if_passed(retry_in, place) end
    -- a push of a grant that was forgotten must not count
    return { 2, math.max(counter, quarantine(0) - 1), math.max(retry_in, RETRY), place, quarantined_for() }
end

local function busy()
    return add_owners({ 3, math.max(frees_in(), RETRY), quarantined_for() })
end

-- Grant a vote if the name is free, or offered to this waiter, which was notified and asks all stores again.
local function cast()
    remove_holder(PLACEHOLDER .. seat)
    if fits(weight) then
        dequeue(seat)
        hold(request, channel, owner, next_token(proposal, true) + span - 1, weight, ttl, delay, span > 1)
        return { 1, counter, ttl, head and 1 or 0 }
    end
    if wait then join() else dequeue(seat) end
    return busy()
end

-- Grant the request a free name before the live waiters; return nil if it or they do not allow that.
local function barge()
    if fair_after == 0 or not fits(weight) then return end
    local it = live_head(request)
    if it and not passable(it) then return end
    dequeue(request)
    hold(request, channel, owner, next_token(proposal) + span - 1, weight, ttl, delay, span > 1)
    tell_new_head(request)
    return { 1, counter, ttl, head and 1 or 0 }
end

local function acquire()
    seat = vote and string.match(request, '^(.*)/') or request
    if refused then
        serve_queue()
        return { 5 }
    end
    local holder = holder_of(request)
    if holder then
        serve_queue()
        return granted_before(holder)
    end
    if not agree() and not call('ZRANK', Q, seat) then
        serve_queue()
        if not agree() then return { 4, capacity } end
    end
    if vote then return cast() end
    if not head and fits(weight) then
        hold(request, channel, owner, next_token(proposal) + span - 1, weight, ttl, delay, span > 1)
        return { 1, counter, ttl, 0 }
    end
    local barged = barge()
    if barged then return barged end
    join()
    local token = advance(request)
    if not token and not wait then dequeue(request) end
    tell_new_head(request)
    if token then return { 1, token, ttl, head and 1 or 0 } end
    return wait and waiting() or busy()
end
