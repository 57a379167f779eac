-- What every script begins with.
--
-- KEYS  1 marker of this node (hash), 2 state (hash), 3 queue (zset), 4 tombstone (string)
-- ARGV  1 PUBLISH or SPUBLISH, 2 guard (0 off, 1 observed, 2 strict), 3 the run id that the client saw last, or "",
--       4 max_ttl of the client; the last is the run id of this process. The operation's own are in between.
--
-- State   '=' all but the queue, packed; w<request> a waiter, packed. Instants and durations are microseconds.
-- Queue   the requests that wait, scored by their place.
-- Marker  see `quarantine` in state.lua.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local PROPOSAL_BOUND, RETRY, MARGIN, STAGGER = 3600000000, 1000, 1000000, 10000
local TOMBSTONE, RETENTION = 30000000, 3600000000

-- What each place in a packed holder means.
local REQUEST, INBOX, OWNER, TOKEN, WEIGHT, TTL, DELAY, GRANTED, EXPIRES, CONFIRMED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

local K, Q = KEYS[2], KEYS[3]

-- What each place in the packed state means.
local COUNTER, CAPACITY, HOLDERS, BLOCKED, BLOCK, RELEASED, USED, LAST_PLACE, KEYS_EXPIRE, QUEUED, SLOWEST =
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11

-- What each place in a packed waiter means.
local W_INBOX, W_OWNER, W_TTL, W_PUSHED, W_INTERVAL, W_PATIENCE, W_WEIGHT, W_DELAY, W_PROPOSAL, W_JOINED, W_FRESH =
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11

local packed = call('HGET', K, '=')
local state = packed and cmsgpack.unpack(packed)

-- Whether this node may grant, and its marker need not be written. See `quarantine` in state.lua.
local function unquestioned(marker, ttl)
    if ARGV[2] == '0' then return true end
    if not marker then return false end
    marker = cmsgpack.unpack(marker)
    local run_id, seen, ends, longest = ARGV[#ARGV], ARGV[3], marker[3], marker[4]
    return marker[1] == run_id and ends <= now and longest >= ttl and longest >= tonumber(ARGV[4])
        and marker[5] > now + RETENTION + longest
        and (ends > 0 or (ARGV[2] == '1' and (seen == '' or seen == run_id)))
end

-- Where pushes to an inbox go. In a Cluster the channel lies in the slot of the name.
local function channel(inbox)
    return (ARGV[1] == 'SPUBLISH' and K or 'holdfast') .. ':inbox:' .. inbox
end

-- Push; return whether anybody listens.
local function push(inbox, kind, number, request)
    if inbox == '' then return true end
    return call(ARGV[1], channel(inbox), string.format('%s %.0f %s', kind, number, request)) > 0
end
