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
local buried = found[2]
local usual = state and not buried and state[BLOCKED] == 0 and state[RELEASED] ~= request and state[USED] <= now
    and unquestioned(found[1], ttl)
local holder = usual and state[HOLDERS][1]

-- The two usual cases, told apart before anything that they do not need is made. First: nobody holds or waits.
if usual and not holder and state[QUEUED] == 0 then
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

-- Second: somebody has it all, and a newcomer will wait.
if holder and wait and not state[HOLDERS][2] and state[CAPACITY] == 1 and wanted == 1
    and holder[EXPIRES] > now and holder[EXPIRES] <= now + holder[TTL] and holder[REQUEST] ~= request
    and state[KEYS_EXPIRE] >= now + RETENTION * 3 / 4 then
    local pushed_ttl, interval, patience = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
    local it = { inbox, owner, ttl, pushed_ttl, interval, patience, weight, delay, proposal, now, now + patience }
    if call('HSETNX', K, 'w' .. request, cmsgpack.pack(it)) == 1 then
        local place = state[QUEUED]
        state[QUEUED], state[LAST_PLACE], state[USED] = place + 1, state[LAST_PLACE] + 1, now
        state[SLOWEST] = place == 0 and interval or math.max(state[SLOWEST], interval)
        call('ZADD', Q, state[LAST_PLACE], request)
        if place == 0 then call('PEXPIREAT', Q, math.ceil(state[KEYS_EXPIRE] / 1000)) end
        call('HSET', K, '=', cmsgpack.pack(state))
        local slow = interval + math.floor(interval * math.min(place, 10) / 10)
        local poke_in = math.min(slow, holder[EXPIRES] - now + place * STAGGER)
        return { 2, state[COUNTER], math.max(poke_in, RETRY), place, 0 }
    end
end
--@include state

open()
local refused = request == released or (buried and tonumber(buried) > now)
--@include queue

look()
quarantine(ttl)

local function granted_before(holder)
    holder[CONFIRMED] = true
    holder[TTL] = math.max(holder[TTL], first_ttl)
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
    if before and call('ZRANK', Q, request) then
        it[W_JOINED] = before[W_JOINED]
    else
        last_place, queued = last_place + 1, queued + 1
        slowest = head and math.max(slowest, it[W_INTERVAL]) or it[W_INTERVAL]
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
    holder = holder_of(request)
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
