-- What every script begins with.
--
-- KEYS  1 marker of this node (string), 2 state (hash), 3 queue (zset), 4 tombstone (string)
-- ARGV  1 what the client says of itself, packed: PUBLISH or SPUBLISH, guard (0 off, 1 observed, 2 strict, 3 uptime),
--       its max_ttl, and what an operation adds
--       2 the generation that the client saw last, or ""; then the operation's own; last the run id of this process, as
--       RUN_ID@OFFSET: with the offset of its last promotion when the connection was made, or 0
-- State   '=' all but the queue, packed; w<request> a waiter, packed. Instants and durations are microseconds. `heavy`
--         says how many wait for each weight above 1, as {weight, how many, weight, ...}, or is false if none does.
-- Queue   the requests that wait, scored by their place.
-- Marker  see `quarantine` in state.lua.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local PROPOSAL_BOUND, RETRY, MARGIN, STAGGER = 3600000000, 1000, 1000000, 10000
local TOMBSTONE, RETENTION = 30000000, 3600000000
local LATEST = 7258118400000000
local RESERVED, EARLIER, SLACK = 20000, 50000, 16

-- What the clock is for tokens, and the largest that may be proposed: no clock is believed that shows a year after 2200.
local stamp, farthest = now <= LATEST and now or 0, math.min(now, LATEST) + PROPOSAL_BOUND

local K, Q = KEYS[2], KEYS[3]
local seen, run_id = ARGV[2], ARGV[#ARGV]
local publish, guard, bound, channel, owner, ttl, interval, waiter_ttl, weight, wanted, delay, span, votes =
    cmsgpack.unpack(ARGV[1])

-- The first holder stands in the state itself, for mostly it is the only one; the others, if any, in a list.
local counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
    h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told, others =
    0, 1, 0, 0, '', 0, 0, 0, 0, 0, false, '', '', '', 0, 0, 0, 0, 0, 0, false, false
local packed = call('HGET', K, '=')
if packed then
    counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
        h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told,
        others = cmsgpack.unpack(packed)
end

-- What each place in a packed waiter means.
local W_CHANNEL, W_OWNER, W_TTL, W_INTERVAL, W_WAITER_TTL, W_WEIGHT, W_DELAY, W_PROPOSAL, W_SPAN, W_VOTES, W_JOINED,
    W_FRESH = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12

-- Where pushes to a channel go. In a Cluster the channel lies in the slot of the name.
local function push(to, message)
    if to == '' then return true end
    return call(publish, (publish == 'SPUBLISH' and K or 'holdfast') .. ':channel:' .. to, message) > 0
end
