-- The beginning of every script: the constants, the time, and the state of the name.
--
-- KEYS  1 marker of this node (string), 2 state (hash), 3 queue (zset), 4 tombstone (string)
-- ARGV  1 the fields of the client, packed: PUBLISH or SPUBLISH, guard (0 off, 1 observed, 2 strict, 3 uptime),
--       its max_ttl, and the fields that an operation adds
--       2 the generation that the client saw last, or ""; then the operation's own; last the run id of this process, as
--       RUN_ID@OFFSET: with the offset of its last promotion when the connection was made, or 0. Acquire and release do
--       without it if the generation ends with it.
-- State   '=' all but the queue, packed (see read_state.lua); w<request> a waiter, packed. Instants and durations are
--         microseconds. `heavy` counts the waiters of each weight above 1, as {weight, count, weight, ...}, or is false
--         if there are none. `barging` is false if no waiter may be passed, else {until when the waiters may be passed,
--         until when the head is not notified again that the name is free, from when on it is not notified any more,
--         {bound, count of such waiters, bound, ...}}.
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
--@include read_state

-- The positions in a packed waiter.
local W_CHANNEL, W_OWNER, W_TTL, W_INTERVAL, W_WAITER_TTL, W_WEIGHT, W_DELAY, W_PROPOSAL, W_SPAN, W_VOTES, W_JOINED,
    W_FRESH, W_FAIR_AFTER = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
