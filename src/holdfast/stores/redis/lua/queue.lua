-- The queue of one name: who stands in it, and who of them is granted.

local head_before

local function waiter(request)
    local packed = call('HGET', K, 'w' .. request)
    return packed and cmsgpack.unpack(packed)
end

local function keep(request, it)
    call('HSET', K, 'w' .. request, cmsgpack.pack(it))
end

-- Count one more, or one less, who waits for a weight.
local function weigh(weighs, more)
    if weighs == 1 then return end
    heavy = heavy or {}
    for at = 1, #heavy, 2 do
        if heavy[at] == weighs then
            heavy[at + 1] = heavy[at + 1] + more
            if heavy[at + 1] < 1 then
                table.remove(heavy, at)
                table.remove(heavy, at)
                heavy = heavy[1] and heavy or false
            end
            return
        end
    end
    if more > 0 then heavy[#heavy + 1], heavy[#heavy + 2] = weighs, more end
end

-- The least weight that anybody in the queue waits for.
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
        local it = heavy and waiter(request)
        if it then weigh(it[W_WEIGHT], -1) end
        call('HDEL', K, 'w' .. request)
        if request == head then head = call('ZRANGE', Q, 0, 0)[1] end
    end
end

-- Note who was first. A clock that stepped back must not keep the dead in the queue for as long as it stepped.
local function look()
    for _, request in ipairs(lapsed) do dequeue(string.sub(request, 2)) end -- who was told, and did not come
    head_before = head
    if not head or now >= used then return end
    for _, request in ipairs(call('ZRANGE', Q, 0, -1)) do
        local it = waiter(request)
        if it and it[W_FRESH] > now + it[W_WAITER_TTL] then
            it[W_FRESH] = now + it[W_WAITER_TTL]
            keep(request, it)
        end
    end
end

-- How long until there may be room without anybody's doing.
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
    local sharded = publish == 'SPUBLISH'
    local channel = (sharded and K or 'holdfast') .. ':channel:' .. to
    return call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)[2] > 0
end

-- Whether a head fell silent; or cannot be told and is too heavy for now, while a lighter one fits.
local function dead_weight(it)
    if it[W_FRESH] < now then return true end
    return it[W_WEIGHT] > 1 and not fits(it[W_WEIGHT]) and fits(lightest()) and not listening(it[W_CHANNEL])
end

local function live_head(asking)
    while head do
        local it = waiter(head)
        if it and (head == asking or not dead_weight(it)) then return it end
        dequeue(head)
    end
end

local function hold_for(request, it, token)
    hold(request, it[W_CHANNEL], it[W_OWNER], token, it[W_WEIGHT], it[W_TTL], it[W_DELAY], it[W_SPAN] > 1)
end

-- Grant the heads of the queue while they fit; return the token of `asking`, the others are pushed.
local function advance(asking)
    if not fits(1) then return end
    local answer
    local it = live_head(asking)
    while it and fits(it[W_WEIGHT]) do
        if it[W_VOTES] == 1 and listening(it[W_CHANNEL]) then break end -- it waits for a vote: it asks when told
        local request, token = head, next_token(it[W_PROPOSAL]) + it[W_SPAN] - 1
        dequeue(request)
        if request == asking then
            hold_for(request, it, token)
            answer = token
        elseif push(it[W_CHANNEL], string.format('%s %.0f %s', head and 'g' or 'G', token, request)) then
            hold_for(request, it, token)
        end
        it = live_head(asking)
    end
    return answer
end

-- Tell a waiter that became first when to ask, if it may not ask by itself before the name may be free.
local function tell_new_head(asking)
    local it = head and waiter(head)
    if it and it[W_VOTES] == 1 then
        if fits(1) then -- tell who waits for a vote that there is one, and let nobody else have it for a while
            push(it[W_CHANNEL], string.format('H %.0f %s', RETRY, head))
            hold(KEPT .. head, '', it[W_OWNER], counter, 1, RESERVED, 0, false)
        end
    elseif it and head ~= head_before and head ~= asking then
        local frees = frees_in()
        if now + frees < it[W_FRESH] - it[W_WAITER_TTL] + 2 * it[W_INTERVAL] + MARGIN then
            push(it[W_CHANNEL], string.format('H %.0f %s', math.max(frees, RETRY), head))
        end
    end
end

local function pass_on()
    if head then
        advance('')
        tell_new_head('')
    end
end

local function bury(request)
    call('SET', KEYS[4], string.format('%.0f', now + TOMBSTONE), 'PX', TOMBSTONE / 1000)
end

local function add_owners(reply)
    for _, holder in ipairs(holders) do reply[#reply + 1] = holder[OWNER] end
    return reply
end
