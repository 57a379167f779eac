--@define full_acquire()
-- Process one acquire request for the current name, in all cases. table/step.py has the same rules.
--
-- Needs: request, proposal, wait, vote; refused (whether the request was withdrawn or released).

local seat -- its id in the queue: each attempt for a vote has another request id, which is base/round

local function granted(token)
    return { 1, token, ttl, head and 1 or 0 }
end

local function take(voted)
    hold(request, channel, owner, new_token(proposal, voted) + span - 1, weight, ttl, delay, span > 1)
    return granted(counter)
end

local function granted_before(holder)
    holder[TTL] = math.max(holder[TTL], ttl)
    holder[EXPIRES] = math.max(holder[EXPIRES], now + ttl)
    return granted(holder[TOKEN])
end

local function agree()
    if not holders[1] and not head then capacity = requested_capacity end
    return capacity == requested_capacity
end

-- Join the queue at its tail, or stay at the present place. Notify the holders if they may not know of a waiter.
local function join()
    local it = @waiter_from(now)
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

local function waiting()
    local place = call('ZRANK', Q, request)
    local retry_in = @retry_in(place, frees_in())
    if fair_after > 0 then
        local bound_in = waiter(request)[W_JOINED] + fair_after - now
        local quiet_for = request == head and barging[2] - now or 0
        @retry_if_passed(place, bound_in, quiet_for)
    end
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
        return take(true)
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
    take()
    tell_new_head(request)
    return granted(counter)
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
    if not head and fits(weight) then return take() end
    local barged = barge()
    if barged then return barged end
    join()
    local token = advance(request)
    if not token and not wait then dequeue(request) end
    tell_new_head(request)
    if token then return granted(token) end
    return wait and waiting() or busy()
end
