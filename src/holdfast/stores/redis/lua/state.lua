-- The rules of the grant table that need no queue. See core/table.py, which decides.

local counter, capacity, holders, blocked, block, released, used, last_place, expires, queued, slowest
local head -- of the queue
local quarantined -- until when; found out when first needed

local function block_since(since, delay)
    if delay > 0 and since + delay > blocked then
        blocked, block = since + delay, delay
    end
end

-- Let end what has ended by now, and cut down what a clock that stepped back has stretched.
local function lapse()
    local kept = {}
    for _, holder in ipairs(holders) do
        if holder[EXPIRES] <= now then
            block_since(holder[EXPIRES], holder[DELAY])
        else
            holder[EXPIRES] = math.min(holder[EXPIRES], now + holder[TTL])
            kept[#kept + 1] = holder
        end
    end
    holders = kept
end

-- Take the state that was read, as it is now. State or queue may be gone without the other: evicted, or deleted.
local function open()
    local f = state or { 0, 1, {}, 0, 0, '', 0, 0, 0, 0, 0 }
    counter, capacity, holders, blocked, block, released, used, last_place, expires, queued, slowest = unpack(f)
    if queued > 0 or not state then
        head = call('ZRANGE', Q, 0, 0)[1]
        if not head then queued = 0 elseif not state then queued = call('ZCARD', Q) end
    end
    if holders[1] then lapse() end
    if blocked > 0 then
        blocked = math.min(blocked, now + block)
        if blocked <= now then blocked, block = 0, 0 end
    end
end

-- Write the state, and put off the end of the keys if it is near.
local function save()
    -- Nobody in the queue is given as much patience as this.
    local idle_after = math.max(head and now + RETENTION / 4 or now, blocked)
    for _, holder in ipairs(holders) do
        idle_after = math.max(idle_after, holder[EXPIRES] + holder[DELAY])
    end
    local late = expires < idle_after + RETENTION / 2
    if late then expires = idle_after + RETENTION end
    call('HSET', K, '=', cmsgpack.pack({ counter, capacity, holders, blocked, block, released, now, last_place,
        expires, queued, slowest }))
    if late then
        local at = math.ceil(expires / 1000)
        call('PEXPIREAT', K, at)
        if head then call('PEXPIREAT', Q, at) end
    end
end

-- Until when this node grants nothing, because it may have forgotten grants.
--
-- The marker remembers which process wrote here last. Another process than this one means that this one restarted,
-- or was promoted, and has whatever state it was left with: it is quarantined for the longest ttl in use. No marker
-- means that this node is new, or has forgotten everything: a strict guard takes it for the latter, an observant one
-- only if the client has seen this node's marker, or another process, before.
--
-- Marker  {run id, when it was first seen here, end of the quarantine or 0, longest ttl in use, expiry of the marker}
local function quarantine(ttl)
    if quarantined then return quarantined end
    quarantined = 0
    local guard = ARGV[2]
    if guard == '0' then return 0 end
    local run_id, seen = ARGV[#ARGV], ARGV[3]
    local packed = call('GET', KEYS[1])
    local known, born, ends, bound, gone
    if packed then
        local marker = cmsgpack.unpack(packed)
        known, born, ends, bound, gone = marker[1], marker[2], marker[3], marker[4], marker[5]
    end
    local longest = math.max(bound or 0, tonumber(ARGV[4]), ttl)
    local doubtful = guard == '2' or (seen ~= '' and seen ~= run_id)
    local changed = longest ~= bound or gone < now + RETENTION + longest
    if known ~= run_id then
        doubtful = doubtful or known or seen ~= ''
        born, ends, changed = now, 0, true
    end
    if doubtful and ends == 0 then
        ends, changed = born + longest, true
    end
    if ends > now + longest then -- the clock stepped back
        ends, changed = now + longest, true
    end
    if changed then
        gone = now + 24 * RETENTION + longest
        call('SET', KEYS[1], cmsgpack.pack({ run_id, born, ends, longest, gone }), 'PX', math.ceil((gone - now) / 1000))
    end
    quarantined = ends
    return ends
end

local function has_room(weight)
    if not holders[1] then return true end
    for _, holder in ipairs(holders) do weight = weight + holder[WEIGHT] end
    return weight <= capacity
end

local function closed_until()
    return math.max(blocked, quarantine(0))
end

local function fits(weight)
    return closed_until() <= now and has_room(weight)
end

local function next_token(proposal)
    return math.max(counter + 1, now, math.min(proposal, now + PROPOSAL_BOUND))
end

local function hold(request, inbox, owner, token, weight, ttl, delay, length, confirmed)
    counter = token
    holders[#holders + 1] = { request, inbox, owner, token, weight, ttl, delay, now, now + length, confirmed }
end

local function holder_of(request)
    for place, holder in ipairs(holders) do
        if holder[REQUEST] == request then return holder, place end
    end
end

local function remove_holder(request)
    local _, place = holder_of(request)
    if place then table.remove(holders, place) end
    return place ~= nil
end

-- What became of a lease that is no longer held: 2 it ran out, 3 a newer token was given out since.
local function fate(token)
    return counter > token and 3 or 2
end
