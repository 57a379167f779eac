-- Keep leases that are still held. None is ever shortened.
--
-- KEYS  1 marker, then for each lease: state  queue  tombstone
-- ARGV  1 adds: inbox, owner  3 the leases, packed, each {request, token, ttl, weight (0: not to be taken up
--       again), capacity, lock_delay, span, owner (empty: the one in 1)}
-- Returns for each  0 renewed  2 it had run out  3 it had, and another holder followed
--@include start
--@include state
--@include queue

-- Take up a lease that was granted by a store whose end this one did not see: it knows of no later grant. Its holder
-- renews it, so it had not run out; and until the quarantine ends nobody else can be granted. It may be that only its
-- renewals were forgotten: then its token is the last that is known, and nobody holds.
local function restore(place, request, token, length, weighs, fills, delays, reserved, who)
    if weighs == 0 or now >= quarantine(0) or token < counter then return end
    local buried = call('GET', KEYS[3 * place + 1])
    if buried and tonumber(buried) > now then return end -- it was released, or given up, in this quarantine
    if token == counter and (holders[1] or request == released) then return end
    if weighs == fills then holders = {} end -- of an earlier time: they had ended when this lease was granted
    if holders[1] and not (capacity == fills and has_room(weighs)) then return end
    capacity = fills
    dequeue(request)
    hold(request, inbox, who ~= '' and who or owner, token, weighs, length, delays, reserved > 1)
    return holders[#holders]
end

local function renew(place, request, token, length, ...)
    local holder = holder_of(request) or restore(place, request, token, length, ...)
    if not holder or holder[TOKEN] ~= token then return fate(token) end
    holder[TTL] = math.max(holder[TTL], length)
    holder[EXPIRES] = math.max(holder[EXPIRES], now + length)
    return 0
end

--@include next

local leases, longest, replies = cmsgpack.unpack(ARGV[3]), 0, {}
for _, lease in ipairs(leases) do longest = math.max(longest, lease[3] + lease[6]) end
quarantine(longest)
for i, lease in ipairs(leases) do
    if i > 1 then read(KEYS[3 * i - 1], KEYS[3 * i]) end
    open()
    look()
    pass_on()
    replies[i] = renew(i, unpack(lease))
    save()
end
return told(replies)
