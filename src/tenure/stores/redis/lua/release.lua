-- Release the lease, and grant the name to the next waiter in the same step. A repeated release is no error.
--
-- ARGV  1 the fields of the client: a struct of whether channels are sharded, guard, max_ttl
--       3 a struct of unsure (1: a request may still be under way, so leave a tombstone), the token, and how long the
--       name stays blocked after this release, or 0; then the request
-- Returns  1 released  2 the lease had expired  3 it had expired, and another holder followed; 2 more if nobody has
--          revoked it in the time of a tombstone
local publish, guard, bound = struct.unpack('>BBd', ARGV[1])
local seen, run_id = ARGV[2], ARGV[4]
if run_id and @is_durable() then guard = 0 end
publish = publish == 1 and 'SPUBLISH' or 'PUBLISH'
@start()

local unsure, token, keep_for, request = st.unpack('>Bdd', ARGV[3])
unsure, request = unsure == 1, string.sub(ARGV[3], request)

-- Whether this is the usual case: the only holder releases, and if there is a waiter, this process may grant.
local usual = h_request == request and (queued == 0 or not unsure) and not others and h_expires > now and blocked == 0
    and capacity == 1 and not heavy and used <= now and keep_for == 0
-- Whether the waiters may be passed, and the head is not to be notified again: this case is usual, too.
local passed = usual and barging and now < barging[1] and @is_quiet()
local alone = usual and not unsure
if barging then usual = passed end
if usual and queued > 0 then
    usual = @keys_last()
    if usual and guard > 0 then
        local quarantine_ends
        @may_grant()
        usual = may_grant
    end
end

-- The usual case, which returns before the script builds anything that it does not need.
if usual then
    h_request, h_channel, h_owner, h_told, released, used = '', '', '', false, request, now
    if unsure then
        @bury_request()
    end
    if queued == 0 or passed then
        @write_state()
        return 1
    end
    @push()
    local lasts
    while queued > 0 and not lasts do -- until a waiter is alive
        local popped = call('ZPOPMIN', Q)
        local first = popped[1]
        if not first then queued = 0 break end -- the queue was evicted, or deleted
        local field = 'w' .. first
        local waiter = call('HGET', K, field)
        local channel, owner, ttl, _, _, weight, delay, proposal, span, votes, _, fresh
        if waiter then -- unpack the values without their array, whose header is one byte
            channel, owner, ttl, _, _, weight, delay, proposal, span, votes, _, fresh =
                cmsgpack.unpack(string.sub(waiter, 2))
        end
        local alive = waiter and fresh >= now
        call('HDEL', K, field)
        queued = queued - 1
        if alive and votes == 1 then -- it waits for a vote: it asks when notified
            if push(channel, string.format('H %.0f %s', RETRY, first)) then
                call('ZADD', Q, popped[2], first) -- it stays first until it asks; nobody else is granted
                call('PEXPIREAT', Q, math.ceil(expires / 1000)) -- the key is new if it was the only waiter
                call('HSET', K, field, waiter)
                queued = queued + 1
                @hold_alone('~' .. first, '', owner, counter, 1, VOTE_OFFER, 0, false) -- a placeholder
                break
            end
        elseif alive then
            local last = @next_token(proposal, stamp) + span - 1
            if push(channel, @grant_message(first, last, queued > 0)) then
                counter, lasts = last, ttl
                @hold_alone(first, channel, owner, last, weight, lasts, delay, span > 1)
            end
        end
    end
    if lasts and queued > 0 and lasts < 2 * slowest + MARGIN then -- the new head may not send a request in time
        local first, waiter, it
        @first_waiter()
        if it then
            @tell_head(it, first, lasts)
        end
    end
    @outlast(lasts and h_expires + h_delay or 0, true)
    return 1
end
@push()
@release_passable()
@state()
@queue()

local UNREVOKED = 2

begin()
begin_queue()
if unsure then
    bury(request)
    dequeue(request) -- a late request of this lease may have joined the queue after the lease expired
    dequeue(string.match(request, '^(.*)/') or '') -- a refused request for a vote may still stand in the queue
end
local placeholder = holder_of(PLACEHOLDER .. request)
local holder = holder_of(request)
local forgotten = false
if not holder and quarantined_for() > 0 then
    bury(request) -- a late renewal must not restore the lease
    dequeue(request) -- this server may have forgotten the grant, and queued a repeated request
    forgotten = counter <= token -- no newer token: nobody had the name since
end
if holder then
    released = request
    if keep_for > 0 then
        -- A placeholder takes the room. The head was told another time, so it is notified again.
        holder[REQUEST], holder[CHANNEL] = PLACEHOLDER .. request, ''
        holder[TTL], holder[EXPIRES], holder[DELAY] = keep_for, now + keep_for, 0
        holder[TOLD] = false
        head_before = nil
    else
        remove_holder(request)
    end
end
serve_queue()
save()
if placeholder or released == request or forgotten then return 1 end
local unrevoked = quarantined_for() == 0 and not was_revoked(request)
return fate(token) + (unrevoked and UNREVOKED or 0)
