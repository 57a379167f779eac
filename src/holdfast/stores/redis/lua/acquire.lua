-- Grant the name, or put the request into the queue, or refuse it.
--
-- ARGV  1 adds: channel, owner, ttl, interval, waiter_ttl, weight, capacity, lock_delay, span, votes (1 or 0),
--         fair_after
--       3 request  4 proposal  5 wait (1 or 0)
-- Returns  {1, token, ttl, contended} granted  {2, counter, retry_in, place, quarantine} queued
--          {3, retry_in, quarantine, owner...} busy  {4, capacity} capacity mismatch  {5} withdrawn
--@include start

local request, proposal, wait = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local vote = votes == 1

-- Whether this is a usual case: the marker says that this process may grant, and need not be written.
local found = call('MGET', KEYS[1], KEYS[4])
local marker, buried = found[1], found[2]
local usual = not buried and blocked == 0 and released ~= request and used <= now and not others
local quarantine_ends = 0
if usual and guard > 0 then
    usual = false
    if marker then
        local known, _, ends, longest, until_when, others_longest, gone = cmsgpack.unpack(marker)
        local length = math.max(bound, ttl + delay)
        quarantine_ends = ends
        usual = known == seen and ends <= now and gone > now + RETENTION + longest and string.sub(known, -#run_id) == run_id
            and until_when <= now + longest + math.floor(longest / SLACK)
            and (longest == length and until_when >= now + length
                or longest > length and others_longest >= length and until_when > now)
    end
end

-- Whether the request may take a free name before the waiters, without a look at the queue.
local barges = usual and h_request == '' and queued > 0 and barging and now < barging[1] and fair_after > 0
    and capacity == requested_capacity and not call('HGET', K, 'w' .. request)

-- The two usual cases, which return before the script builds anything that they do not need.
local reply, late
if barges or usual and h_request == '' and queued == 0 then -- the name has no holder, and no waiter stands in the way
    counter = math.max(counter + 1, vote and 0 or stamp, math.min(proposal, farthest)) + span - 1
    capacity, used = requested_capacity, now
    h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay = request, channel, owner, counter, weight, ttl, delay
    h_granted, h_expires, h_told = now, now + ttl, span > 1
    late = expires < h_expires + delay + RETENTION / 2
    if late then expires = h_expires + delay + RETENTION end
    reply = { 1, counter, ttl, barges and 1 or 0 }
elseif usual and wait and not vote and not barging and fair_after == 0 and h_request ~= '' and h_request ~= request and capacity == 1 and weight == 1
    and requested_capacity == 1
    and h_expires > now and h_expires <= now + h_ttl and expires >= now + RETENTION * 3 / 4 then
    -- one holder has the whole capacity, and a newcomer will wait
    local it = cmsgpack.pack({ channel, owner, ttl, interval, waiter_ttl, weight, delay, proposal, span, votes, now,
        now + waiter_ttl })
    if call('HSETNX', K, 'w' .. request, it) == 1 then
        local place = queued
        queued, last_place, used = place + 1, last_place + 1, now
        slowest = place == 0 and interval or math.max(slowest, interval)
        call('ZADD', Q, last_place, request)
        if place == 0 then
            call('PEXPIREAT', Q, math.ceil(expires / 1000))
            if h_told then push(h_channel, 'W 0 ' .. h_request) end
        end
        local slow = interval + math.floor(interval * math.min(place, 10) / 10)
        local retry_in = math.min(slow, h_expires - now + place * STAGGER)
        reply = { 2, math.max(counter, quarantine_ends - 1), math.max(retry_in, RETRY), place, 0 }
    end
end
if reply then
    call('HSET', K, '=', cmsgpack.pack(counter, capacity, blocked, block, released, used, last_place, expires, queued,
        slowest, heavy, h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told,
        others, barging or false))
    if late then call('PEXPIREAT', K, math.ceil(expires / 1000)) end -- a new key exists only from here on
    if late and barges then call('PEXPIREAT', Q, math.ceil(expires / 1000)) end
    return reply
end
--@include acquire_passable
--@include state
--@include queue

open()
look()
quarantine(ttl + delay)
local refused = request == released or (buried and tonumber(buried) > now)

--@include full_acquire

reply = acquire()
save()
return told(reply)
