-- The fields that all requests of a lock have in common: a struct of whether channels are sharded, guard, votes (1 or 0),
-- max_ttl, ttl, interval, waiter_ttl, weight, capacity, lock_delay, span, fair_after, and the channel; then the owner.
local publish, guard, votes, bound, ttl, interval, waiter_ttl, weight, requested_capacity, delay, span, fair_after,
    channel, owner = struct.unpack('>BBBdddddddddBc0', ARGV[1])
publish, owner = publish == 1 and 'SPUBLISH' or 'PUBLISH', string.sub(ARGV[1], owner)
