--@define push()
-- Push a message to a channel. In a Cluster the channel lies in the slot of the name.
local function push(to, message)
    if to == '' then return true end
    return call(publish, @channel_of(to), message) > 0
end

--@define queue()
-- The queue of one name: its waiters, and the grants to them.
local head_before

local function waiter(request)
    local packed = call('HGET', K, 'w' .. request)
    return packed and cmsgpack.unpack(packed)
end

local function store_waiter(request, it)
    call('HSET', K, 'w' .. request, cmsgpack.pack(it))
end

-- Add `more` (1 or -1) to the count of a value in a list {value, count, value, ...}; return the list, false if empty.
local function counted(list, value, more)
    list = list or {}
    for at = 1, #list, 2 do
        if list[at] == value then
            list[at + 1] = list[at + 1] + more
            if list[at + 1] < 1 then
                table.remove(list, at)
                table.remove(list, at)
            end
            return list[1] and list or false
        end
    end
    if more > 0 then list[#list + 1], list[#list + 2] = value, more end
    return list[1] and list or false
end

-- Add `more` (1 or -1) to the number of waiters with a weight.
local function weigh(weighs, more)
    if weighs ~= 1 then heavy = counted(heavy, weighs, more) end
end

-- Add `more` (1 or -1) to the number of waiters that may be passed for so long.
local function allow(bound, more)
    if bound == 0 then return end
    local bounds = counted(barging and barging[4], bound, more)
    if not bounds then barging = false
    elseif barging then barging[4] = bounds
    else barging = { 0, 0, 0, bounds } end
end

-- Return the shortest time for which a waiter may be passed: 0 if one of them never may.
local function shortest_bound()
    local least, never = nil, queued
    for at = 1, #barging[4], 2 do
        least, never = math.min(least or barging[4][at], barging[4][at]), never - barging[4][at + 1]
    end
    return never > 0 and 0 or least
end

-- Whether requests may pass the waiters: the head, which has waited longest, has not waited for the shortest bound.
local function passable(it)
    return barging and now - it[W_JOINED] < shortest_bound()
end

-- Note until when the waiters may be passed and the head is certainly alive, and from when on it is not notified.
function note_head()
    local it, bound = head and waiter(head), shortest_bound()
    barging[1] = it and @passed_until(it, bound) or 0
    barging[3] = it and @told_until(it, bound) or 0
end

-- Return the smallest weight of all waiters.
local function lightest()
    local least, light = nil, queued
    for at = 1, #(heavy or {}), 2 do
        least, light = math.min(least or heavy[at], heavy[at]), light - heavy[at + 1]
    end
    return light > 0 and 1 or least
end

local function dequeue(request)
    if call('ZREM', Q, request) == 1 then
        queued = queued - 1
        local it = (heavy or barging) and waiter(request)
        if it then
            weigh(it[W_WEIGHT], -1)
            allow(it[W_FAIR_AFTER], -1)
        end
        call('HDEL', K, 'w' .. request)
        if request == head then
            head = call('ZRANGE', Q, 0, 0)[1]
            if barging then barging[2] = 0 end
        end
    end
end

-- Remember the head of the queue. If the clock stepped back, shorten what that has stretched, so that dead waiters do
-- not stay.
local function begin_queue()
    for _, request in ipairs(lapsed) do dequeue(request) end
    head_before = head
    if not head or now >= used then return end
    if barging then barging[2] = 0 end
    for _, request in ipairs(call('ZRANGE', Q, 0, -1)) do
        local it = waiter(request)
        if it and (it[W_FRESH] > now + it[W_WAITER_TTL] or it[W_JOINED] > now) then
            it[W_FRESH], it[W_JOINED] = math.min(it[W_FRESH], now + it[W_WAITER_TTL]), math.min(it[W_JOINED], now)
            store_waiter(request, it)
        end
    end
end

-- Return the time until the first lease, or a lock delay or quarantine, ends by itself.
local function frees_in()
    local closed = closed_until()
    if closed > now then return closed - now end
    local first
    for _, holder in ipairs(holders) do
        if not first or holder[EXPIRES] < first then first = holder[EXPIRES] end
    end
    return math.max(0, (first or 0) - now)
end

local function quarantined_for()
    return math.max(0, quarantine(0) - now)
end

local function listening(to)
    if to == '' then return true end
    return call('PUBSUB', publish == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB', @channel_of(to))[2] > 0
end

-- Whether a head has expired; or cannot be notified and is too heavy for now, while a lighter waiter fits.
local function dead_weight(it)
    if it[W_FRESH] < now then return true end
    return it[W_WEIGHT] > 1 and not fits(it[W_WEIGHT]) and fits(lightest()) and not listening(it[W_CHANNEL])
end

local function live_head(caller)
    while head do
        local it = waiter(head)
        if it and (head == caller or not dead_weight(it)) then return it end
        dequeue(head)
    end
end

local function hold_for(request, it, token)
    hold(request, it[W_CHANNEL], it[W_OWNER], token, it[W_WEIGHT], it[W_TTL], it[W_DELAY], it[W_SPAN] > 1)
end

-- Grant the heads of the queue while they fit and may not be passed; return the token of the request `caller`, and push
-- the others.
local function advance(caller)
    if not fits(1) then return end
    local answer
    local it = live_head(caller)
    while it and fits(it[W_WEIGHT]) do
        if it[W_VOTES] == 1 and listening(it[W_CHANNEL]) then break end -- it waits for a vote: it asks when notified
        if passable(it) then
            it = waiter(caller) -- it passes the others, if it allows barging
            if it and it[W_FAIR_AFTER] > 0 then
                dequeue(caller)
                answer = new_token(it[W_PROPOSAL]) + it[W_SPAN] - 1
                hold_for(caller, it, answer)
            end
            break
        end
        local request, token = head, new_token(it[W_PROPOSAL]) + it[W_SPAN] - 1
        dequeue(request)
        if request == caller then
            hold_for(request, it, token)
            answer = token
        elseif push(it[W_CHANNEL], @grant_message(request, token, head)) then
            hold_for(request, it, token)
        end
        it = live_head(caller)
    end
    return answer
end

-- Notify the head that the name is free. Drop heads that do not listen. A head that comes too late is notified again only
-- after as long as it has waited by now, and after half its bound not any more: then it asks by itself.
local function tell_that_free()
    local it = live_head('')
    while it and barging[2] <= now and now < @told_until(it, shortest_bound()) do
        if push(it[W_CHANNEL], 'H 0 ' .. head) then
            barging[2] = @quiet_until(it)
            return
        end
        dequeue(head)
        it = live_head('')
    end
end

-- Notify a new head when to send its request, if its own next request may come after the name becomes free. A head that
-- may be passed is notified when the name is free.
local function tell_new_head(caller)
    local it = head and waiter(head)
    if it and it[W_VOTES] == 1 then
        if fits(1) then -- notify the head that the vote is free, and take the room for it
            push(it[W_CHANNEL], string.format('H %.0f %s', RETRY, head))
            hold(PLACEHOLDER .. head, '', it[W_OWNER], counter, 1, VOTE_OFFER, 0, false)
        end
    elseif it and passable(it) and fits(it[W_WEIGHT]) then
        tell_that_free()
    elseif it and head ~= head_before and head ~= caller then
        local frees = frees_in()
        @tell_head(it, head, frees)
    end
end

local function serve_queue()
    if head then
        advance('')
        tell_new_head('')
    end
end

local function bury(request)
    @bury_request()
end

-- Return the leases that were revoked in the last TOMBSTONE: the request id of each, and until when it is remembered.
local function revocations()
    local noted = call('HGET', K, 'r')
    local all, recent = noted and cmsgpack.unpack(noted) or {}, {}
    for i = 1, #all, 2 do
        if all[i + 1] > now and all[i + 1] <= now + TOMBSTONE then
            recent[#recent + 1], recent[#recent + 2] = all[i], all[i + 1]
        end
    end
    return recent
end

-- Remember that leases are revoked.
local function note_revoked(leases)
    local revoked = revocations()
    for _, holder in ipairs(leases) do
        revoked[#revoked + 1], revoked[#revoked + 2] = holder[REQUEST], now + TOMBSTONE
    end
    call('HSET', K, 'r', cmsgpack.pack(revoked))
end

local function was_revoked(request)
    local all = revocations()
    for i = 1, #all, 2 do
        if all[i] == request then return true end
    end
    return false
end

local function add_owners(reply)
    for _, holder in ipairs(holders) do reply[#reply + 1] = holder[OWNER] end
    return reply
end

--@define table()
@start()
@push()
@state()
@queue()

--@define operation()
@fields()
@table()
