-- The rules of the grant table that need no queue. See core/table.py, which decides.

-- What each place in a holder means.
local REQUEST, INBOX, OWNER, TOKEN, WEIGHT, TTL, DELAY, GRANTED, EXPIRES, TOLD = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- What the request of a holding begins with that was released, and is to keep the name for a while yet.
local KEPT = '~'

local holders
local lapsed -- the holdings that were nobody's, and ended
local head -- of the queue
local quarantined -- until when; found out when first needed

local function block_since(since, length)
    if length > 0 and since + length > blocked then
        blocked, block = since + length, length
    end
end

-- Take the state that was read as it is now: let end what has ended, and cut down what a clock that stepped back has
-- stretched. State or queue may be gone without the other: evicted, or deleted.
local function open()
    local all = others or {}
    if h_request ~= '' then
        table.insert(all, 1, { h_request, h_inbox, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires,
            h_told })
    end
    holders, lapsed = {}, {}
    for _, holder in ipairs(all) do
        if holder[EXPIRES] <= now then
            block_since(holder[EXPIRES], holder[DELAY])
            if string.sub(holder[REQUEST], 1, 1) == KEPT then lapsed[#lapsed + 1] = holder[REQUEST] end
        else
            holder[EXPIRES] = math.min(holder[EXPIRES], now + holder[TTL])
            holders[#holders + 1] = holder
        end
    end
    if queued > 0 or not packed then
        head = call('ZRANGE', Q, 0, 0)[1]
        if not head then queued = 0 elseif not packed then queued = call('ZCARD', Q) end
    end
    if not head then heavy = false end
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
    local first = table.remove(holders, 1) or { '', '', '', 0, 0, 0, 0, 0, 0, false }
    call('HSET', K, '=', cmsgpack.pack(counter, capacity, blocked, block, released, now, last_place, expires, queued,
        slowest, heavy, first[1], first[2], first[3], first[4], first[5], first[6], first[7], first[8], first[9],
        first[10], holders[1] and holders or false))
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
-- only if the client has seen this node's marker, or another process, before. A guard that goes by uptime takes it
-- for the latter, and counts from the start of the process: this node is never a replica. One that has all on the disk before
-- it answers says so by its run id, and is never quarantined.
--
-- Marker, packed  run id, when it was first seen here, end of the quarantine or 0, longest ttl in use, its own expiry
local function quarantine(longest_asked)
    if quarantined then return quarantined end
    quarantined = 0
    if guard == 0 or string.sub(run_id, 1, 8) == 'durable:' then return 0 end
    local packed_marker = call('GET', KEYS[1])
    local known, born, ends, longest_known, gone
    if packed_marker then known, born, ends, longest_known, gone = cmsgpack.unpack(packed_marker) end
    local longest = math.max(longest_known or 0, bound, longest_asked)
    local doubtful = guard >= 2 or (seen ~= '' and seen ~= run_id)
    local changed = longest ~= longest_known or gone < now + RETENTION + longest
    if known ~= run_id then
        born, ends, changed = now, 0, true
        if guard == 3 and not known and seen == '' then
            -- Whole seconds of a wall clock: up to one too many, and below 0 once that clock was set back.
            local uptime = tonumber(string.match(call('INFO', 'server'), 'uptime_in_seconds:(-?%d+)'))
            born = now - math.max(0, uptime - 1) * 1000000
        end
        doubtful = doubtful or known or seen ~= ''
    end
    if doubtful and ends == 0 then
        ends, changed = born + longest, true
    end
    if ends > now + longest then -- the clock stepped back
        ends, changed = now + longest, true
    end
    if changed then
        gone = now + 24 * RETENTION + longest
        call('SET', KEYS[1], cmsgpack.pack(run_id, born, ends, longest, gone), 'PX', math.ceil((gone - now) / 1000))
    end
    quarantined = ends
    return ends
end

local function has_room(more)
    if not holders[1] then return true end
    for _, holder in ipairs(holders) do more = more + holder[WEIGHT] end
    return more <= capacity
end

local function closed_until()
    return math.max(blocked, quarantine(0))
end

local function fits(more)
    return closed_until() <= now and has_room(more)
end

-- One that other stores vote on must not depend on whose clock is ahead.
local function next_token(proposed, voted)
    return math.max(counter + 1, voted and 0 or now, math.min(proposed, now + PROPOSAL_BOUND))
end

local function hold(request, to, who, token, weighs, keeps, delays, told)
    counter = token
    holders[#holders + 1] = { request, to, who, token, weighs, keeps, delays, now, now + keeps, told }
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
