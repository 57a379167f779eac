"""The agendas of a renewer: which of its leases it looks at, and when.

Each lease stands in one of two agendas: that of leases to look at later, and that of leases that are due, by their
deadline. So the cost of a look depends on how many leases have changed since the last look, not on how many there are.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from heapq import heapify, heappop, heappush
from typing import Any

from tenure.contracts.deadlines import NEVER
from tenure.core.lease import CoreLease

BATCH = 100
"""The most leases that one request renews."""

DUE_SOON = 1.25
"""How much earlier than planned a lease may be renewed together with others, as a factor of its wait."""

SHORTEST_SLEEP = 0.01
"""The shortest sleep of the renewer, in seconds, unless a lease falls due or ends before."""

SPARE = 64
"""How many outdated entries are kept before all of them are removed."""


class Agenda:
    """The next instant of each key, the earliest first. A change takes time logarithmic in the number of keys.

    The caller holds a mutex for every change but `drop`.
    """

    __slots__ = ("_heap", "entries")

    def __init__(self) -> None:
        """Start empty."""
        self.entries: dict[str, tuple[float, str]] = {}
        """The valid entries. Any thread may remove one at any time."""
        self._heap: list[tuple[float, str]] = []
        """All entries, with outdated ones: those that are not in `entries`."""

    def __len__(self) -> int:
        """Return how many keys have an instant."""
        return len(self.entries)

    def put(self, key: str, at: float) -> None:
        """Set the instant of a key, or replace it."""
        entry = self.entries[key] = (at, key)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self.entries) + SPARE:
            self._heap = list(self.entries.values())
            heapify(self._heap)

    def drop(self, key: str) -> None:
        """Remove a key. Any thread may do so at any time."""
        self.entries.pop(key, None)

    def first(self) -> tuple[float, str] | None:
        """Return the earliest instant and its key; None if there is none."""
        while self._heap:
            first = self._heap[0]
            if self.entries.get(first[1]) is first:
                return first
            heappop(self._heap)
        return None

    def take(self, by: float) -> str | None:
        """Remove and return the key with the earliest instant, if that instant is not after `by`; else return None."""
        first = self.first()
        if first is None or first[0] > by:
            return None
        heappop(self._heap)
        self.drop(first[1])
        return first[1]


class Agendas:
    """The leases of one client, and what the renewer has to do with each. They know no clock: `now` is the caller's."""

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        """Start without leases. `mutex` is held to change the agendas and lists, and never for long."""
        self.leases: dict[str, CoreLease] = {}
        """All leases that are kept, by the id of their request."""
        self.moved: dict[str, CoreLease] = {}
        """The leases whose instants have changed since the last look. So an acquisition or release changes no heap."""
        self.ended: deque[CoreLease] = deque()
        """The leases that were found to have ended, for the renewer task."""
        self._mutex = mutex
        self._later = Agenda()
        """When each lease that is not due yet falls due or ends."""
        self._due = Agenda()
        """When each lease ends that is due and whose renewal has not begun."""
        self._in_renewal: Sequence[CoreLease] = ()
        """The leases that are being renewed."""

    def discard(self, lease: CoreLease) -> None:
        """Forget a lease, but not its successor after a local hand-off. Call it with the mutex of the lease held."""
        request_id = lease.grant.request.request_id
        if self.leases.get(request_id) is lease:
            del self.leases[request_id]
            self.moved.pop(request_id, None)
            self._later.entries.pop(request_id, None)  # the same as `drop`, without the cost of a call
            self._due.entries.pop(request_id, None)

    def now_held(self, lease: CoreLease) -> CoreLease:
        """Return the successor of a lease that was handed on meanwhile, or the lease itself."""
        return self.leases.get(lease.grant.request_id, lease)

    def sort(self, now: float) -> None:
        """Put each lease that has changed, or whose instant has come, into its agenda."""
        with self._mutex:
            self._sort(now)

    def has_due(self) -> bool:
        """Return whether a lease is due, and waits for its renewal to begin."""
        return bool(self._due)

    def place(self, lease: CoreLease, now: float) -> None:
        """Put a lease, or its successor, into the right agenda."""
        with self._mutex:
            self._place(lease.grant.request_id, now)

    def place_lingered(self, lease: CoreLease, now: float) -> None:
        """Put a lease into its agenda that has lingered long enough, or was just taken up or renewed."""
        with self._mutex:
            if self.leases.get(lease.grant.request_id) is lease and lease.lingers_until <= now:
                self._later.put(lease.grant.request_id, lease.valid_until)  # the lease is being released
            else:
                self._place(lease.grant.request_id, now)

    def next_look(self, now: float, *, renewing: bool) -> float:
        """Return when the next lease falls due or ends. A lease that falls due during a renewal is not urgent.

        A lease that ends while its renewal is under way stands in no agenda: it is put into `ended` here.
        """
        with self._mutex:
            falls_due, ends = self._later.first(), self._due.first()
        soonest = NEVER if ends is None else ends[0]
        if falls_due is not None:
            soonest = min(soonest, max(falls_due[0], now + SHORTEST_SLEEP) if renewing else falls_due[0])
        for renewed in self._in_renewal:
            lease = self.leases.get(renewed.grant.request_id)
            if lease is None or lease.dropped:
                continue
            if lease.trusted():
                soonest = min(soonest, lease.valid_until)
            else:
                self.ended.append(lease)
        return soonest

    def take_due(self, now: float) -> list[CoreLease]:
        """Take a batch of leases that are due, the earliest deadline first, then leases that will be due soon."""
        with self._mutex:
            self._sort(now)
            batch: list[CoreLease] = []
            while len(batch) < BATCH and (request_id := self._due.take(NEVER)) is not None:
                self._pick(request_id, batch)
            while batch and len(batch) < BATCH and (first := self._later.first()) is not None:
                lease = self.leases.get(first[1])
                if lease is not None and not _is_due_soon(lease, now):
                    break
                # Another thread may have released that lease since: then nothing is taken, and another is first.
                if (request_id := self._later.take(first[0])) is not None:
                    self._pick(request_id, batch)
            for lease in batch:
                if lease.lingers_until < NEVER:  # the lease is released then, even if its renewal is still under way
                    self._later.put(lease.grant.request_id, lease.lingers_until)
            self._in_renewal = batch
        return batch

    def put_back(self, batch: Sequence[CoreLease], now: float) -> None:
        """Put the leases of a batch, or their successors, into their agendas when their renewal has ended."""
        with self._mutex:
            self._in_renewal = ()
            for lease in batch:
                lease.renewing = self.now_held(lease).renewing = False
                self._place(lease.grant.request_id, now)

    def _pick(self, request_id: str, batch: list[CoreLease]) -> None:
        lease = self.leases.get(request_id)
        if lease is not None and not lease.dropped:
            lease.renewing = True
            batch.append(lease)

    def _sort(self, now: float) -> None:
        while self.moved:
            try:
                moved = self.moved.popitem()[0]
            except KeyError:  # the lease was released just now
                break
            self._place(moved, now)
        for agenda in (self._later, self._due):
            while (request_id := agenda.take(now)) is not None:
                self._place(request_id, now)

    def _place(self, request_id: str, now: float) -> None:
        lease = self.leases.get(request_id)
        if lease is None:
            return
        if lease.dropped:
            lease.due_at = NEVER
            self._due.drop(request_id)
            if lease.kept_until <= now:
                self.ended.append(lease)
            else:
                self._later.put(request_id, lease.kept_until)
            return
        end = min(lease.valid_until, lease.lingers_until)
        if end <= now or lease.over():
            self.ended.append(lease)
        elif lease.due_at <= now:
            self._later.drop(request_id)
            self._due.put(request_id, end)
        else:
            self._due.drop(request_id)
            self._later.put(request_id, min(end, lease.due_at))


def _is_due_soon(lease: CoreLease, now: float) -> bool:
    """Return whether a lease falls due so soon that it is renewed together with others."""
    return lease.due_at - now <= (lease.valid_until - now) * (DUE_SOON - 1)
