-- Grant the name, or put the request into the queue, or refuse it.
--
-- ARGV  1 see request_fields in start.lua  3 a struct of wait (1 or 0) and the proposal; then the request
-- Returns  token granted, as requested, and nobody waits  {1, token, ttl, contended} granted
--          a struct of counter, retry_in, place  queued, and no quarantine  {2, counter, retry_in, place, quarantine}
--          queued  {3, retry_in, quarantine, owner...} busy  {4, capacity} capacity mismatch  {5} withdrawn
@request_fields()
local seen, run_id = ARGV[2], ARGV[4]
if run_id and @is_durable() then guard = 0 end
@start()

local wait, proposal, request = st.unpack('>Bd', ARGV[3])
wait, request = wait == 1, string.sub(ARGV[3], request)
local vote = votes == 1

-- Whether this is a usual case.
local buried = tomb > now and call('GET', KEYS[4])
local usual = not buried and blocked == 0 and released ~= request and used <= now and not others
local quarantine_ends = 0
if usual and guard > 0 then
    @may_grant()
    local length = math.max(bound, ttl + delay)
    usual = may_grant and until_when <= now + longest + math.floor(longest / SLACK)
        and (longest == length and until_when >= now + length
            or longest > length and others_longest >= length and until_when > now)
end

-- Whether the request may take a free name before the waiters, without a look at the queue.
local barges = usual and h_request == '' and queued > 0 and barging and now < barging[1] and fair_after > 0
    and capacity == requested_capacity and not call('HGET', K, 'w' .. request)

-- The two usual cases, which return before the script builds anything that they do not need.
if barges or usual and h_request == '' and queued == 0 then -- the name has no holder, and no waiter stands in the way
    counter = @next_token(proposal, vote and 0 or stamp) + span - 1
    capacity, used = requested_capacity, now
    @hold_alone(request, channel, owner, counter, weight, ttl, delay, span > 1)
    @outlast(h_expires + delay, barges)
    return barges and { 1, counter, ttl, 1 } or counter
end
if usual and wait and not vote and not barging and fair_after == 0 and h_request ~= '' and h_request ~= request
    and capacity == 1 and weight == 1 and requested_capacity == 1
    and h_expires > now and h_expires <= now + h_ttl and @keys_last()
    and call('ZADD', Q, 'NX', last_place + 1, request) == 1 then
    -- one holder has the whole capacity, and the request was not in the queue: it is now
    local place = queued
    queued, last_place, used = place + 1, last_place + 1, now
    slowest = place == 0 and interval or math.max(slowest, interval)
    @pack_state()
    local new = call('HSET', K, '=', packed, 'w' .. request, cmsgpack.pack(@waiter_from(now))) == 1
    if place == 0 or not new then call('PEXPIREAT', Q, math.ceil(expires / 1000)) end -- not new: the queue was lost
    if place == 0 and h_told then
        @push()
        push(h_channel, 'W 0 ' .. h_request)
    end
    local retry_in = @retry_in(place, h_expires - now)
    return st.pack('>ddd', math.max(counter, quarantine_ends - 1), math.max(retry_in, RETRY), place)
end
@push()
@acquire_passable()
@state()
@queue()

begin()
begin_queue()
quarantine(ttl + delay)
local refused = request == released or (buried and tonumber(buried) > now)

@full_acquire()

local reply = acquire()
save()
return told(reply)
