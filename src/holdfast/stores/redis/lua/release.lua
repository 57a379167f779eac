-- Let go, and pass the name on in the same step. A release that is asked again is no error.
--
-- ARGV  5 request  6 token  7 unsure (1: an ask may still be under way, so leave a tombstone)
-- Returns  1 released  2 the lease had run out  3 it had, and another holder followed
--@include start

local request, token, unsure = ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'

-- Grant the name to the first in the queue who is there; return how long the grant lasts.
local function hand_off()
    while state[QUEUED] > 0 do
        local next_one = call('ZPOPMIN', Q)[1]
        if not next_one then state[QUEUED] = 0 break end -- the queue was evicted, or deleted
        local waiter = call('HGET', K, 'w' .. next_one)
        local it = waiter and cmsgpack.unpack(waiter)
        call('HDEL', K, 'w' .. next_one)
        state[QUEUED] = state[QUEUED] - 1
        local grant = it and math.max(state[COUNTER] + 1, now, math.min(it[W_PROPOSAL], now + PROPOSAL_BOUND))
        if it and it[W_FRESH] >= now and push(it[W_INBOX], 'G', grant, next_one) then
            state[COUNTER] = grant
            state[HOLDERS][1] = { next_one, it[W_INBOX], it[W_OWNER], grant, it[W_WEIGHT], it[W_TTL], it[W_DELAY], now,
                now + it[W_PUSHED], false }
            return it[W_PUSHED]
        end
    end
end

-- Tell who is first now when to ask, if it may not ask by itself before this grant ends.
local function tell_first(frees_in)
    if frees_in >= 2 * state[SLOWEST] + MARGIN then return end
    local first = call('ZRANGE', Q, 0, 0)[1]
    local waiter = first and call('HGET', K, 'w' .. first)
    if not waiter then return end
    local it = cmsgpack.unpack(waiter)
    if now + frees_in < it[W_FRESH] - it[W_PATIENCE] + 2 * it[W_INTERVAL] + MARGIN then
        push(it[W_INBOX], 'H', math.max(frees_in, RETRY), first)
    end
end

-- The usual case, told apart before anything that it does not need is made: the only holder lets go.
local holder = state and state[HOLDERS][1]
if holder and not unsure and not state[HOLDERS][2] and holder[REQUEST] == request and holder[EXPIRES] > now
    and state[BLOCKED] == 0 and state[CAPACITY] == 1 and state[USED] <= now
    and (state[QUEUED] == 0 or (state[KEYS_EXPIRE] >= now + RETENTION * 3 / 4 and unquestioned(call('GET', KEYS[1]), 0)))
then
    state[HOLDERS], state[RELEASED], state[USED] = {}, request, now
    local lasts = hand_off()
    if lasts and state[QUEUED] > 0 then tell_first(lasts) end
    call('HSET', K, '=', cmsgpack.pack(state))
    return 1
end
--@include state
--@include queue

open()
look()
if unsure then
    bury(request)
    dequeue(request) -- an ask that came late, after the lease had run out
end
if remove_holder(request) then released = request end
pass_on()
save()
return released == request and 1 or fate(token)
