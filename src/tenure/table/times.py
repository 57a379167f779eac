"""Durations and instants of the grant table, in microseconds, and its formulas.

The table "Where each formula stands" in ARCHITECTURE.md says where else each of them is written.
"""

from tenure.contracts.messages import AcquireRequest

TOMBSTONE = 30_000_000
"""How long a tombstone is kept: longer than a request is likely to be under way."""

PROPOSAL_BOUND = 3_600_000_000
"""How far ahead of the store's wall clock a client may propose a token. A larger proposal is cut to this."""

LATEST = 7_258_118_400_000_000
"""The year 2200. A wall clock that shows a later time is wrong, and no token is taken from that clock.

Above 2**53, in the year 2255, the numbers of Lua are not exact, and tokens would repeat.
"""

RETRY = 1_000
"""The shortest retry time that a reply or a notification gives."""

MARGIN = 1_000_000
"""How much later than necessary a waiter may ask again before the table notifies it that it became the head."""

VOTE_OFFER = 20_000
"""How long a placeholder takes the room of a vote for the waiter that was notified that the vote is free."""

EARLIER = 50_000
"""By how much a proposal may lie before the store's wall clock when it orders the queue for votes."""

STAGGER = 10_000
"""The difference between the retry times of two neighbours in the queue, so that they do not ask all at once."""

GRACE = 2_000
"""A waiter that may not be passed any more repeats its request at its bound plus (place + 1) x GRACE.

If others release, it has been granted by then.
"""

CROWD = 8
"""Each time that so many more waiters are ahead, a waiter may be silent for longer: see `silence_factor`."""

LONGEST_SILENCE = 8
"""The largest of these factors."""


def next_token(counter: int, proposal: int, clock: int, *, votes: bool = False) -> int:
    """Return the token after `counter`: no smaller than the store's clock and the client's proposal, within bounds.

    The token of a vote ignores the clock of its store, so that all stores find the same one.
    """
    token = counter + 1
    if clock > token and not votes and clock <= LATEST:
        token = clock
    if proposal > token:
        token = max(token, min(proposal, min(clock, LATEST) + PROPOSAL_BOUND))
    return token


def must_be_told(request: AcquireRequest, fresh_until: int, frees_at: int) -> bool:
    """Return whether a new head of the queue must be notified when to ask, because the name may be free at `frees_at`.

    Every waiter asks again within two intervals of its last request, or before half of its life is over.
    """
    return frees_at < fresh_until - request.waiter_ttl + 2 * request.interval + MARGIN


def silence_factor(request: AcquireRequest, place: int) -> int:
    """Return how many times as long as at the head a waiter with `place` others ahead may be silent.

    Its retry time and its life grow by this factor, in a store where the cost of a request grows with the queue: else
    hundreds of waiters would leave no time for a release. It lives no longer than for its ttl, so a dead waiter costs
    no more than a dead holder; and a grant that is pushed has at least half of its ttl left. Without a channel it must
    not be silent.
    """
    longest = min(LONGEST_SILENCE, request.ttl // max(request.waiter_ttl, 1)) if request.channel else 1
    return max(1, min(1 + place // CROWD, longest))


def retry_in(request: AcquireRequest, place: int, frees_in: int, silence: int = 1) -> int:
    """Return the retry time of a waiter that has so many others ahead, if the name may be free after `frees_in`."""
    slow = (request.interval + request.interval * min(place, 10) // 10) * silence
    return max(min(slow, frees_in + place * STAGGER), RETRY)


def retry_if_passed(retry: int, place: int, bound_in: int, quiet_for: int) -> int:
    """Return the retry time of a waiter that may be passed, which is otherwise `retry`.

    It asks a few times before its bound: perhaps it finds the name free, which costs less than a hand-off. It asks
    again soon after its bound, when it may not be passed any more; and when the time is over in which it is not
    notified that the name is free.
    """
    early = bound_in * 3 // 4
    if early >= GRACE:
        retry = min(retry, early)
    elif bound_in > 0:
        retry = min(retry, bound_in + (place + 1) * GRACE)
    if quiet_for > 0:
        retry = min(retry, quiet_for)
    return max(retry, RETRY)
