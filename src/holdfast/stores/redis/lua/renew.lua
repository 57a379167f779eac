-- Keep leases that are still held, and confirm provisional ones. None is ever shortened.
--
-- KEYS  1 marker, then for each lease: state  queue
-- ARGV  5 owner  6 inbox, then for each lease: request  token  ttl  weight (0: not told)  capacity  lock_delay
-- Returns for each  0 renewed  2 it had run out  3 it had, and another holder followed
--@include start
--@include state
--@include queue

local EACH = 6

-- Take up a lease that was granted by a store whose end this one did not see: it knows of no later grant. Its holder
-- renews it, so it had not run out; and until the quarantine ends nobody else can be granted. It may be that only its
-- renewals were forgotten: then its token is the last that is known, and nobody holds.
local function restore(request, token, ttl, weight, wanted, delay)
    if weight == 0 or now >= quarantine(0) or token < counter then return end
    if token == counter and (holders[1] or request == released) then return end
    if weight == wanted then holders = {} end -- of an earlier time: they had ended when this lease was granted
    if holders[1] and not (capacity == wanted and has_room(weight)) then return end
    capacity = wanted
    dequeue(request)
    hold(request, ARGV[6], ARGV[5], token, weight, ttl, delay, ttl, true)
    return holders[#holders]
end

local function renew(request, token, ttl, weight, wanted, delay)
    local holder = holder_of(request) or restore(request, token, ttl, weight, wanted, delay)
    if not holder or holder[TOKEN] ~= token then return fate(token) end
    holder[CONFIRMED] = true
    holder[TTL] = math.max(holder[TTL], ttl)
    holder[EXPIRES] = math.max(holder[EXPIRES], now + ttl)
    return 0
end

local longest = 0
for at = 9, #ARGV - 1, EACH do longest = math.max(longest, tonumber(ARGV[at])) end
quarantine(longest)

local replies = {}
for i = 1, (#KEYS - 1) / 2 do
    local at = 7 + (i - 1) * EACH
    K, Q = KEYS[2 * i], KEYS[2 * i + 1]
    packed = call('HGET', K, '=')
    state = packed and cmsgpack.unpack(packed)
    open()
    look()
    pass_on()
    replies[i] = renew(ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]),
        tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]))
    save()
end
return replies
