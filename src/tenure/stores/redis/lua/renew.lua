-- Renew leases that still exist. A renewal never shortens a lease.
--
-- KEYS  1 marker, then for each lease: state  queue  tombstone (in a Cluster the state again, and no tombstone is read)
-- ARGV  1 adds: channel, owner  3 the leases, packed, each {request, token, ttl, weight (0: not to be restored),
--       capacity, lock_delay, span, owner (empty: the one in 1)}
-- Returns for each  0 renewed  2 expired  3 expired, and another holder followed  4 renewed, and the name is contended
@operation()

local function weight_of(all)
    local sum = 0
    for _, holder in ipairs(all) do sum = sum + holder[WEIGHT] end
    return sum
end

-- Make room for a restored lease beside others; return whether that is possible. A holder of the whole capacity with a
-- smaller token had ended, or got lighter, when the lease was granted. If there is still too little room, drop the
-- holders that were not renewed since the quarantine began: their own renewals restore them, or they are over. The lock
-- delay of such a one begins at the end of the quarantine: it may have died, and this server may have forgotten a renewal.
local function make_room(token, weighs, fills)
    local there, unheard = {}, {}
    for _, holder in ipairs(holders) do
        if holder[WEIGHT] < capacity or holder[TOKEN] > token then there[#there + 1] = holder end
    end
    if weighs + weight_of(there) > fills then
        local all = there
        there = {}
        for _, holder in ipairs(all) do
            if holder[WEIGHT] == capacity then return false end
            local heard = holder[EXPIRES] - holder[TTL] >= marker[2]
            table.insert(heard and there or unheard, holder)
        end
    end
    if (there[1] or head) and capacity ~= fills then return false end
    if weighs + weight_of(there) > fills then return false end
    for _, holder in ipairs(unheard) do
        if holder[DELAY] > 0 then block_since(now, math.max(holder[EXPIRES], quarantine(0)) + holder[DELAY] - now) end
    end
    holders = there
    return true
end

-- Restore a lease that a server granted whose state this one does not have, unless it is known to be over. Its holder
-- renews it, so it had not expired, and nothing is granted until the quarantine ends. A lease of the whole capacity is
-- over if a later token was issued. A lease that others fit beside is not, because they renew in any order.
local function restore(place, request, token, length, weighs, fills, delays, spans, who)
    if weighs == 0 or now >= quarantine(0) then return end
    local buried = KEYS[3 * place + 1] ~= KEYS[3 * place - 1] and call('GET', KEYS[3 * place + 1])
    if buried and tonumber(buried) > now then return end -- it was released or withdrawn in this quarantine
    if request == released or holder_of(PLACEHOLDER .. request) then return end
    if weighs == fills then
        if token < counter then return end
        for _, holder in ipairs(holders) do
            if holder[TOKEN] >= token then return end
        end
        holders = {} -- they are older: they had ended when this lease was granted
    elseif not make_room(token, weighs, fills) then
        return
    end
    capacity = fills
    dequeue(request)
    local before = counter
    hold(request, channel, who ~= '' and who or owner, token, weighs, length, delays, spans > 1)
    counter = math.max(before, token)
    return holders[#holders]
end

local function renew(place, request, token, length, ...)
    local holder = holder_of(request) or restore(place, request, token, length, ...)
    if not holder or holder[TOKEN] ~= token then return fate(token) end
    holder[TTL] = math.max(holder[TTL], length)
    holder[EXPIRES] = math.max(holder[EXPIRES], now + length)
    return head and 4 or 0
end

@next()

local leases, longest, replies = cmsgpack.unpack(ARGV[3]), 0, {}
for _, lease in ipairs(leases) do longest = math.max(longest, lease[3] + lease[6]) end
quarantine(longest)
for i, lease in ipairs(leases) do
    if i > 1 then read(KEYS[3 * i - 1], KEYS[3 * i]) end
    if h_request == lease[1] and h_token == lease[2] and h_expires > now and queued == 0 and used <= now then
        local length = lease[3] -- nobody waits, and the clock went on: there is nothing else to look at
        h_ttl, h_expires, used = math.max(h_ttl, length), math.max(h_expires, now + length), now
        @outlast(h_expires + h_delay, false)
        replies[i] = 0
    else
        begin()
        begin_queue()
        serve_queue()
        replies[i] = renew(i, unpack(lease))
        save()
    end
end
return told(replies)
