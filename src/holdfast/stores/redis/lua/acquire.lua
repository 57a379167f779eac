-- Grant the name, or keep a place in the queue, or refuse.
--
-- ARGV  5 request  6 inbox  7 owner  8 ttl  9 first_ttl  10 pushed_ttl  11 interval  12 patience  13 weight
--       14 capacity  15 lock_delay  16 proposal  17 wait (1 or 0)
-- Returns  {1, token, ttl} granted  {2, counter, poke_in, place, quarantine} waiting
--          {3, retry_in, quarantine, owner...} busy  {4, capacity} mismatch  {5} gone
--@include start

local request, inbox, owner, wait = ARGV[5], ARGV[6], ARGV[7], ARGV[17] == '1'
local ttl, first_ttl, weight, wanted = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[13]), tonumber(ARGV[14])
local delay, proposal = tonumber(ARGV[15]), tonumber(ARGV[16])

local found = call('MGET', KEYS[1], KEYS[4])
local marker, buried = found[1] and cmsgpack.unpack(found[1]), found[2]

-- Whether the marker says that this process may grant, and need not be written.
local function unquestioned()
    local run_id, seen, ends, longest = ARGV[#ARGV], ARGV[3], marker[3], marker[4]
    return marker[1] == run_id and ends <= now and longest >= ttl and longest >= tonumber(ARGV[4])
        and marker[5] > now + RETENTION + longest
        and (ends > 0 or (ARGV[2] == '1' and (seen == '' or seen == run_id)))
end

-- The usual case, told apart before anything that it does not need is made: nobody holds, waits or keeps others away.
if state and not buried and not state[HOLDERS][1] and state[QUEUED] == 0 and state[BLOCKED] == 0
    and state[RELEASED] ~= request and (ARGV[2] == '0' or (marker and unquestioned())) then
    local token = math.max(state[COUNTER] + 1, now, math.min(proposal, now + PROPOSAL_BOUND))
    local expires = now + first_ttl
    state[COUNTER], state[CAPACITY], state[USED] = token, wanted, now
    state[HOLDERS] = { { request, inbox, owner, token, weight, ttl, delay, now, expires, true } }
    if state[KEYS_EXPIRE] < expires + delay + RETENTION / 2 then
        state[KEYS_EXPIRE] = expires + delay + RETENTION
        call('PEXPIREAT', K, math.ceil(state[KEYS_EXPIRE] / 1000))
    end
    call('HSET', K, '=', cmsgpack.pack(state))
    return { 1, token, first_ttl }
end
--@include state

open()
local refused = request == released or (buried and tonumber(buried) > now)
--@include queue

look()
quarantine(ttl)

local function granted_before(holder)
    holder[CONFIRMED] = true
    holder[EXPIRES] = math.max(holder[EXPIRES], now + first_ttl)
    return { 1, holder[TOKEN], first_ttl }
end

local function agree()
    if not holders[1] and not head then capacity = wanted end
    return capacity == wanted
end

local function join()
    local patience = tonumber(ARGV[12])
    local it = { inbox, owner, ttl, tonumber(ARGV[10]), tonumber(ARGV[11]), patience, weight, delay, proposal, now,
        now + patience }
    local before = waiter(request)
    if before then
        it[W_JOINED] = before[W_JOINED]
    else
        last_place, queued = last_place + 1, queued + 1
        call('ZADD', Q, last_place, request)
        if not head then
            head = request
            call('PEXPIREAT', Q, math.ceil(math.max(expires, now + RETENTION) / 1000))
        end
    end
    keep(request, it)
end

local function waiting()
    local place, interval = call('ZRANK', Q, request), tonumber(ARGV[11])
    local slow = interval + math.floor(interval * math.min(place, 10) / 10)
    local poke_in = math.min(slow, frees_in() + place * STAGGER)
    return { 2, counter, math.max(poke_in, RETRY), place, quarantined_for() }
end

local function acquire()
    if refused then
        pass_on()
        return { 5 }
    end
    local holder = holder_of(request)
    if holder then
        pass_on()
        return granted_before(holder)
    end
    if not agree() then
        pass_on()
        if not agree() then return { 4, capacity } end
    end
    if not head and fits(weight) then
        hold(request, inbox, owner, next_token(proposal), weight, ttl, delay, first_ttl, true)
        return { 1, counter, first_ttl }
    end
    join()
    local token = advance(request, first_ttl)
    if not token and not wait then dequeue(request) end
    tell_new_head(request)
    if token then return { 1, token, first_ttl } end
    return wait and waiting() or add_owners({ 3, math.max(frees_in(), RETRY), quarantined_for() })
end

local reply = acquire()
save()
return reply
