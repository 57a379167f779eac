"""When a waiter looks again: memcached wakes nobody, so waiters poll.

A name that was taken just now may be free soon, so its waiters look often. The longer it has been held, the longer it
may still be held: a waiter looks again after a part of the time for which it has seen the name held, within bounds. So
a waiter is late by a part of its wait at most, and the cost of a long wait is bounded. The client spreads these times
at random.
"""

from tenure.contracts.deadlines import micros
from tenure.stores.memcached.items import SeenItem

SOONEST = 0.005
LATEST = 0.2
"""The bounds of the time until the next look, in seconds."""

AT_THE_END = 0.05
"""The longest such time in the last second of a lease, whose holder may be dead."""

SHARE = 4
"""The part of the time for which the waiter has seen the name held: a fourth."""

MOST_NAMES = 1024
"""Of how many names this is remembered."""


class Pacing:
    """The pace of the waiters of one client."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._seen_since: dict[str, tuple[int, float]] = {}
        """The token of the holder, and the local instant at which it was seen first, by name."""

    def is_polled(self, name: str) -> bool:
        """Tell whether this client has found the name busy the last time."""
        return name in self._seen_since

    def retry_in(self, name: str, seen: SeenItem, now: float) -> int:
        """Return when to look again, in microseconds."""
        token = 0 if seen.record is None else seen.record.token
        known, since = self._seen_since.get(name, (token, now))
        if known != token or name not in self._seen_since:
            if len(self._seen_since) >= MOST_NAMES:
                self._seen_since.clear()
            since = now
            self._seen_since[name] = token, since
        latest = AT_THE_END if seen.blocked_for() <= 1 or seen.lease_left() == 1 else LATEST
        return micros(min(max((now - since) / SHARE, SOONEST), latest))

    def forget(self, name: str) -> None:
        """Note that the name is not busy any more."""
        self._seen_since.pop(name, None)
