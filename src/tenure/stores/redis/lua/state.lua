--@define state()
-- The rules of the grant table that need no queue. table/step.py has the same rules.
-- The positions in a holder.
local REQUEST, CHANNEL, OWNER, TOKEN, WEIGHT, TTL, DELAY, GRANTED, EXPIRES, TOLD = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- The prefix of the request id of a placeholder: a holder that is no client, and takes the name's room for a while. A
-- release before `min_hold` has passed leaves one; a waiter for a vote that is notified has one until it asks.
local PLACEHOLDER = '~'

if not run_id then run_id = string.match(seen, ' (.*)$') end -- acquire and release may come without it

-- The marker, if this server keeps one. A later form is refused here, before anything is written.
local guarded = guard > 0 and not (@is_durable())
local kept = guarded and call('GET', KEYS[1])
local form, kept_at
if kept then
    local number, needed, at = string.match(kept, '^form (%d+) (%S+) ()')
    if not number then error({ err = 'WRONGTYPE of the marker' }) end
    form, kept_at = tonumber(number), at
    if form > READS then error({ err = 'FORM ' .. number .. ' ' .. needed }) end
end

local holders
local lapsed -- the requests whose placeholder has ended, as a list and as a set. A waiter among them did not ask in time
local head -- of the queue
local quarantined -- the end of the quarantine; computed when it is first needed
local note_head -- a function of queue.lua

local function block_since(since, length)
    if length > 0 and since + length > blocked then
        blocked, block = since + length, length
    end
end

-- Bring the state up to date: end what has expired, and cut down what a clock that stepped back has prolonged. The
-- state may exist without the queue, or the queue without the state: one was evicted or deleted.
local function begin()
    local all = others or {}
    if h_request ~= '' then
        table.insert(all, 1, { h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires,
            h_told })
    end
    holders, lapsed = {}, {}
    for _, holder in ipairs(all) do
        if holder[EXPIRES] <= now then
            block_since(holder[EXPIRES], holder[DELAY])
            if string.sub(holder[REQUEST], 1, 1) == PLACEHOLDER then
                local request = string.sub(holder[REQUEST], 2)
                lapsed[#lapsed + 1], lapsed[request] = request, true
            end
        else
            holder[EXPIRES] = math.min(holder[EXPIRES], now + holder[TTL])
            holders[#holders + 1] = holder
        end
    end
    if queued > 0 or not packed then
        head = call('ZRANGE', Q, 0, 0)[1]
        if not head then queued = 0 elseif not packed then queued = call('ZCARD', Q) end
    end
    if not head then heavy, barging = false, false end
    if blocked > 0 then
        blocked = math.min(blocked, now + block)
        if blocked <= now then blocked, block = 0, 0 end
    end
end

-- Write the state, and prolong the life of the keys if its end is near.
local function save()
    -- No waiter in the queue has a waiter_ttl as long as this.
    local idle_after = math.max(head and now + RETENTION / 4 or now, blocked)
    for _, holder in ipairs(holders) do
        idle_after = math.max(idle_after, holder[EXPIRES] + holder[DELAY])
    end
    if barging then note_head() end
    local first = table.remove(holders, 1) or { '', '', '', 0, 0, 0, 0, 0, 0, false }
    used, others = now, holders[1] and holders or false
    h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told = unpack(first)
    @outlast(idle_after, head)
end

-- Return the end of this node's quarantine, in which it grants nothing, because it may have forgotten grants.
--
-- The marker contains the generation of the process that wrote here last. A generation is a number, the run id of the
-- process, and how often that process was promoted (as the offset of its last promotion). A new generation begins, and
-- with it a quarantine for max_ttl or a longer ttl and lock delay in use, in two cases:
--   the process is not the one in the marker (it restarted, or took over), or it was promoted since;
--   a client knows a later generation than the marker: this node was the master before, and missed the one between.
-- Without a marker the node is new, or has forgotten everything. A strict guard assumes the latter, an observed one
-- only if the client knows a generation. An uptime guard assumes the latter, and counts from the start of the process:
-- such a node is never a replica. A node that writes everything to disk before it replies tells so in its run id, and
-- is never quarantined.
--
-- Marker  the mark of the stored form; a struct of when the generation began, end of its quarantine or 0, longest in use,
--         until when that is in use, longest of the others requested since, its own expiry; then the generation.
local marker -- its current content: the generation first
local mark = kept and form > WRITES and string.sub(kept, 1, kept_at - 1) or MARK -- to be written: nobody lowers the form

local function generation(text)
    local number, process, promoted = string.match(text, '^(%d+) (.-)@(%d+)$')
    return tonumber(number or 0), process, tonumber(promoted or 0)
end

local function this_process()
    local process, promoted = string.match(run_id, '^(.-)@(%d+)$')
    return process or run_id, tonumber(promoted or 0)
end

-- Return how long this process has been up, at least. The server tells whole seconds of a wall clock: up to one too
-- many, and a number below 0 once that clock was set back.
local function uptime()
    return math.max(0, string.match(call('INFO', 'server'), 'uptime_in_seconds:(-?%d+)') - 1) * 1000000
end

local function promoted_at()
    return math.max(0, tonumber(string.match(call('INFO', 'replication'), 'second_repl_offset:(-?%d+)') or 0))
end

local function write_marker()
    marker[7] = now + 24 * RETENTION + marker[4]
    local text = mark .. st.pack('>dddddd', marker[2], marker[3], marker[4], marker[5], marker[6], marker[7])
        .. marker[1]
    call('SET', KEYS[1], text, 'PX', math.ceil((marker[7] - now) / 1000))
end

-- Record the length of the requested lease; forget a length when the last lease that had it is over.
local function note_length(length)
    local changed = false
    local function in_use(longest)
        marker[4], marker[5], changed = longest, now + longest + math.floor(longest / SLACK), true
    end
    if marker[5] <= now then
        in_use(marker[6])
        marker[6] = 0
    end
    if length >= marker[4] then
        if length > marker[4] or marker[5] < now + length then in_use(length) end
    elseif length > marker[6] then
        marker[6], changed = length, true
    end
    -- if the clock stepped back
    if marker[5] > now + marker[4] + math.floor(marker[4] / SLACK) then in_use(marker[4]) end
    return changed
end

local function quarantine(needed, looking)
    if quarantined then return quarantined end
    quarantined = 0
    if not guarded then return 0 end
    if not kept then
        marker = { '', 0, 0, 0, 0, 0, 0 }
    else
        marker = { '', st.unpack('>dddddd', kept, kept_at) }
        marker[1] = string.sub(kept, marker[8])
    end
    local length = math.max(bound, needed)
    local known = marker[1]
    local number, process, promoted = generation(known)
    local seen_number = generation(seen)
    local process_here, promoted_here = this_process()
    local changed
    if process ~= process_here or promoted < promoted_here or seen_number > number
        or (seen_number == number and seen ~= known) then
        promoted = math.max(promoted_here, promoted_at())
        marker[1] = string.format('%.0f %s@%.0f', math.max(number, seen_number) + 1, process_here, promoted)
        marker[2], marker[3], changed = now, 0, true
        if guard == 3 and known == '' and seen == '' then marker[2] = now - uptime() end
        length = math.max(length, marker[4])
        marker[5] = math.max(marker[5], now + 1) -- every length that was in use may still be in use
    end
    changed = note_length(length) or changed or kept and form < WRITES
    if marker[3] == 0 and (guard >= 2 or known ~= '' and known ~= marker[1] or seen ~= '' and seen ~= marker[1]) then
        marker[3], changed = marker[2] + marker[4], true
    end
    if marker[3] > now + marker[4] then -- the clock stepped back
        marker[3], changed = now + marker[4], true
    end
    if (changed or marker[7] < now + RETENTION + marker[4]) and not looking then write_marker() end
    if looking then marker[1] = known ~= '' and known or seen end -- a generation that is not written is not told
    quarantined = marker[3]
    return quarantined
end

-- Add the generation to a reply, so that the client remembers it, if the client knows another one.
local function told(reply)
    if marker and marker[1] ~= seen then return { marker[1], reply } end
    return reply
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

-- Return the next token. The token of a vote must not depend on the fastest clock of several stores.
local function new_token(proposed, voted)
    return @next_token(proposed, voted and 0 or stamp)
end

local function hold(request, to, who, token, weighs, lasts, delays, told)
    counter = token
    holders[#holders + 1] = { request, to, who, token, weighs, lasts, delays, now, now + lasts, told }
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

-- Return the outcome of a lease that has ended: 2 expired, 3 a later token was issued since.
local function fate(token)
    return counter > token and 3 or 2
end

--@define views()
-- The holders as people see them. Times are relative to now.
local function shown_holders()
    local shown = {}
    for i, it in ipairs(holders) do
        local released = string.sub(it[REQUEST], 1, 1) == PLACEHOLDER and it[TTL] ~= VOTE_OFFER
        shown[i] = { it[OWNER], it[TOKEN], it[WEIGHT], now - it[GRANTED], it[EXPIRES] - now, it[TTL],
            released and 1 or 0 }
    end
    return shown
end
