-- The formulas of the grant table, each of them once in Lua. The table in ARCHITECTURE.md says where else each stands.

--@define next_token(proposed, clock)
-- The next token: larger than the last one, and no smaller than the clock and the client's proposal.
math.max(counter + 1, clock, math.min(proposed, farthest))

--@define retry_in(place, frees)
-- The retry time of a waiter that has so many others ahead, if the name may be free after `frees`.
math.min(interval + math.floor(interval * math.min(place, 10) / 10), frees + place * STAGGER)

--@define retry_if_passed(place, bound_in, quiet_for)
-- Shorten `retry_in` for a waiter that may be passed: it asks again shortly before its bound and soon after it, and when
-- the time is over in which it is not notified that the name is free.
local early = math.floor(bound_in * 3 / 4)
if early < GRACE then early = bound_in > 0 and bound_in + (place + 1) * GRACE or retry_in end
retry_in = math.min(retry_in, early)
if quiet_for > 0 then retry_in = math.min(retry_in, quiet_for) end

--@define tell_head(it, request, frees)
-- Notify a new head when to ask, unless its own next request comes soon after the name may be free.
if now + frees < it[W_FRESH] - it[W_WAITER_TTL] + 2 * it[W_INTERVAL] + MARGIN then
    push(it[W_CHANNEL], string.format('H %.0f %s', math.max(frees, RETRY), request))
end

--@define grant_message(request, token, contended)
-- The push of a grant.
string.format('%s %.0f %s', contended and 'g' or 'G', token, request)

--@define passed_until(it, bound)
-- Until when requests may pass the head of the queue, which is certainly alive until then.
math.min(it[W_JOINED] + bound, it[W_FRESH])

--@define told_until(it, bound)
-- Until when the head is notified that the name is free.
it[W_JOINED] + math.floor(bound / 2)

--@define is_quiet()
-- Whether the head is not notified that the name is free: it was notified lately, or asks by itself soon.
(now < barging[2] or now >= barging[3])

--@define quiet_until(it)
-- Until when a head that was notified now that the name is free is not notified of that again.
now + math.max(RETRY, now - it[W_JOINED])

--@define waiter_from(joined)
-- What is kept of a waiter, from its request.
{ channel, owner, ttl, interval, waiter_ttl, weight, delay, proposal, span, votes, joined, now + waiter_ttl, fair_after }

--@define hold_alone(id, to, who, token, weighs, lasts, delays, tells)
-- Make a request the only holder.
h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay = id, to, who, token, weighs, lasts, delays
h_granted, h_expires, h_told = now, now + lasts, tells

--@define first_waiter()
-- Read the first waiter of the queue.
first = call('ZRANGE', Q, 0, 0)[1]
waiter = first and call('HGET', K, 'w' .. first)
it = waiter and cmsgpack.unpack(waiter)

--@define next_passable(bound)
-- After a grant before waiters that may all be passed for the same time: note the new head, and notify it.
@first_waiter()
barging = it and { @passed_until(it, bound), 0, @told_until(it, bound), { bound, queued } } or false
if it then
    @tell_head(it, first, h_ttl)
end

--@define keys_last()
-- Whether the keys exist for so long that no waiter needs them for longer.
expires >= now + RETENTION * 3 / 4

--@define bury_request()
-- Leave a tombstone of the request.
tomb = math.max(tomb, now + TOMBSTONE)
call('SET', KEYS[4], string.format('%.0f', now + TOMBSTONE), 'PX', TOMBSTONE / 1000)

--@define channel_of(to)
-- A client's channel. In a Cluster it lies in the slot of the name.
(publish == 'SPUBLISH' and K or 'tenure') .. ':channel:' .. to

--@define is_durable()
-- Whether the server writes everything to disk before it replies, and so forgets nothing.
string.sub(run_id, 1, 8) == 'durable:'
