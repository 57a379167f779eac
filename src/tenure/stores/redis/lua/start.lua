--@define request_fields()
-- The fields that all requests of a lock have in common: a struct of whether channels are sharded, guard, votes (1 or 0),
-- max_ttl, ttl, interval, waiter_ttl, weight, capacity, lock_delay, span, fair_after, and the channel; then the owner.
local publish, guard, votes, bound, ttl, interval, waiter_ttl, weight, requested_capacity, delay, span, fair_after,
    channel, owner = struct.unpack('>BBBdddddddddBc0', ARGV[1])
publish, owner = publish == 1 and 'SPUBLISH' or 'PUBLISH', string.sub(ARGV[1], owner)

--@define fields()
-- The fields of the client, of all scripts but those that are called most.
local seen, run_id = ARGV[2], ARGV[#ARGV]
local publish, guard, bound, channel, owner = cmsgpack.unpack(ARGV[1])

--@define read_state()
-- Read the state of a name from `packed`: usual, any other, or none; refuse one of a later form. `tomb` is the instant
-- until which the name may have tombstones.
if packed and string.byte(packed) == USUAL then
    local _, holding, at
    _, holding, queued, counter, used, expires, last_place, slowest, h_granted, h_expires, h_ttl, tomb,
        released, h_request, h_channel, at = st.unpack(HEAD, packed)
    h_owner = string.sub(packed, at)
    h_token, h_told = counter, holding == 1
    capacity, blocked, block, heavy, h_weight, h_delay, others, barging = 1, 0, 0, false, 1, 0, false, false
elseif packed then
    -- A later form begins with its mark (contracts/forms.py). No other state does: its fifth value is a text, not a blank.
    local later = string.match(packed, '^form (%d+ %S+) ')
    if later then error({ err = 'FORM ' .. later }) end
    counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
        h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told,
        others, tomb, barging = cmsgpack.unpack(packed)
else
    counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
        h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told, others, tomb,
        barging =
        0, 1, 0, 0, '', 0, 0, 0, 0, 0, false, '', '', '', 0, 0, 0, 0, 0, 0, false, false, now + TOMBSTONE, false
end

--@define pack_state()
-- Pack the state of a name into `packed`, in the usual form if it has that.
if capacity == 1 and blocked == 0 and not heavy and not others and not barging
    and (h_request == '' or h_token == counter and h_weight == 1 and h_delay == 0)
    and #released < 256 and #h_request < 256 and #h_channel < 256 then
    packed = st.pack(HEAD, USUAL, h_told and 1 or 0, queued, counter, used, expires, last_place, slowest,
        h_granted, h_expires, h_ttl, tomb, #released, released, #h_request, h_request, #h_channel, h_channel)
        .. h_owner
else
    packed = cmsgpack.pack(counter, capacity, blocked, block, released, used, last_place, expires, queued,
        slowest, heavy, h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told,
        others, tomb, barging or false)
end

--@define write_state()
-- Write the state of a name.
@pack_state()
call('HSET', K, '=', packed)

--@define outlast(instant, waited)
-- Write the state, and prolong the life of the keys if they would end soon after an instant.
local late = expires < instant + RETENTION / 2
if late then expires = instant + RETENTION end
@write_state()
if late then -- a new key exists only from here on
    call('PEXPIREAT', K, math.ceil(expires / 1000))
    if waited then call('PEXPIREAT', Q, math.ceil(expires / 1000)) end
end

--@define next()
-- Read the state of the next name.
local function read(key, queue)
    K, Q = key, queue
    head = nil
    packed = call('HGET', K, '=')
    @read_state()
end

--@define may_grant()
-- Find out in `may_grant` whether the marker says that this process may grant: it is of the form that this client writes,
-- the client knows its generation, and no quarantine is in force. See `quarantine` in state.lua.
local may_grant, longest, until_when, others_longest = false, 0, 0, 0
local marker = call('GET', KEYS[1])
if marker and string.sub(marker, 1, #MARK) == MARK then
    local _, ends, gone, known
    _, ends, longest, until_when, others_longest, gone, known = st.unpack('>dddddd', marker, #MARK + 1)
    known = string.sub(marker, known)
    may_grant = known == seen and ends <= now and gone > now + RETENTION + longest
        and (not run_id or string.sub(known, -#run_id) == run_id)
    quarantine_ends = ends
end

--@define start()
-- The beginning of every script: the constants, the time, and the state of the name.
--
-- KEYS  1 marker of this node (string), 2 state (hash), 3 queue (zset), 4 tombstone (string)
-- ARGV  1 the fields of the client, packed: PUBLISH or SPUBLISH, guard (0 off, 1 observed, 2 strict, 3 uptime),
--       its max_ttl, and the fields that an operation adds
--       2 the generation that the client saw last, or ""; then the operation's own; last the run id of this process, as
--       RUN_ID@OFFSET: with the offset of its last promotion when the connection was made, or 0. Acquire and release do
--       without it if the generation ends with it.
-- State   '=' all but the queue, packed (see read_state); w<request> a waiter, packed; r the leases that were revoked,
--         packed (see `revocations` in queue.lua), if any was. Instants and durations are microseconds.
--         counter     the last token
--         blocked     until when a lock delay keeps the name from everybody; `block` is how long that delay is
--         released    the request that was released last
--         used        when the last step was taken; `expires` is when the keys expire
--         queued      the number of waiters; `last_place` is the place of the one that joined last
--         slowest     the longest interval between two requests of a waiter
--         heavy       counts the waiters of each weight above 1, as {weight, count, weight, ...}; false if there are none
--         h_*         the first holder, with '' as h_request if there is none; `others` are the others, or false
--         tomb        until when the name may have tombstones
--         barging     false if no waiter may be passed, else {until when the waiters may be passed, until when the head is
--                     not notified again that the name is free, from when on it is not notified any more, {bound, count
--                     of such waiters, bound, ...}}
-- Queue   the waiting requests, scored by their place.
-- Marker  see `quarantine` in state.lua.
-- A state or a marker of a later form begins with the mark of that (contracts/forms.py), and is refused by an error with
-- the code FORM.
local call, st = redis.call, struct
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local PROPOSAL_BOUND, RETRY, MARGIN, STAGGER, GRACE = 3600000000, 1000, 1000000, 10000, 2000
local TOMBSTONE, RETENTION = 30000000, 3600000000
local LATEST = 7258118400000000
local VOTE_OFFER, EARLIER, SLACK = 20000, 50000, 16

-- A usual state: one holder at most, of the whole capacity of 1, with the last token and no lock delay, and no lock delay
-- that blocks the name. Its first byte is one with which no MessagePack begins.
local USUAL, HEAD = 193, '>BBIdddddddddBc0Bc0Bc0'

-- The clock's part in tokens, and the largest proposal that is accepted: a clock that shows a year after 2200 is wrong.
local stamp, farthest = now <= LATEST and now or 0, math.min(now, LATEST) + PROPOSAL_BOUND

local K, Q = KEYS[2], KEYS[3]
-- The first holder is stored in the state itself, because mostly it is the only one; the others, if any, in a list.
local counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
    h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told, others, tomb, barging
local packed = call('HGET', K, '=')
@read_state()

-- The positions in a packed waiter.
local W_CHANNEL, W_OWNER, W_TTL, W_INTERVAL, W_WAITER_TTL, W_WEIGHT, W_DELAY, W_PROPOSAL, W_SPAN, W_VOTES, W_JOINED,
    W_FRESH, W_FAIR_AFTER = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
