"""What a store keeps of one name: holders, queue and token counter. Times are microseconds of the store's clock."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from tenure.contracts.messages import AcquireRequest
from tenure.table.times import TOMBSTONE

REVOKED = "!"
"""The prefix, among the tombstones, of the request id of a lease that was revoked."""

PLACEHOLDER = "~"
"""The prefix of the request id of a placeholder: a holder that is no client, and takes the name's room for a while.

A release with `keep` leaves one until `min_hold` has passed. A waiter for a vote that was notified has one until it
repeats its request.
"""


@dataclass(slots=True)
class Holder:
    """One holder of the name, with its lease."""

    request_id: str
    channel: str
    owner: str
    token: int
    weight: int
    ttl: int
    lock_delay: int
    granted_at: int
    expires_at: int
    notify_contended: bool = False
    """Whether the holder is notified when somebody waits for the name."""


@dataclass(slots=True)
class Waiter:
    """One place in the queue."""

    request: AcquireRequest
    joined_at: int
    fresh_until: int
    """When the waiter counts as dead, unless it asks again."""
    quiet_until: int = 0
    """Until when it is not notified again that the name is free: it was, and asks again by then if it came too late."""

    def step_back(self, before: int, now: int) -> None:
        """Shorten what a clock has stretched that showed `before` at the last step, and stepped back to `now`."""
        self.fresh_until = min(self.fresh_until, now + max(self.request.waiter_ttl, self.fresh_until - before))
        self.joined_at = min(self.joined_at, now)
        self.quiet_until = 0


class Queue:
    """The waiters of a name, in their order.

    Iteration takes time in proportion to the number of waiters, `lightest` in proportion to the number of different
    weights, and `fair_after` to that of different bounds. Every other operation takes a few steps, however long the
    queue is.
    """

    __slots__ = ("_bounds", "_seats", "_weights", "order")

    def __init__(self, waiters: Iterable[Waiter] = ()) -> None:
        """Let each of `waiters` join."""
        self.order: list[tuple[int, str]] = []
        """Rank and request id of each waiter. On the hot path its truth value costs less than that of the queue."""
        for waiter in waiters:
            self.join(waiter)

    def __len__(self) -> int:
        return len(self.order)

    def __bool__(self) -> bool:
        return bool(self.order)

    def __iter__(self) -> Iterator[Waiter]:
        return iter([self._seats[request_id][1] for _, request_id in self.order])

    def __getitem__(self, place: int) -> Waiter:
        return self._seats[self.order[place][1]][1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queue) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a queue changes

    def __repr__(self) -> str:
        return f"Queue({list(self)!r})"

    @property
    def head(self) -> str:
        """The request id of the first waiter; empty if nobody waits."""
        return self.order[0][1] if self.order else ""

    @property
    def lightest(self) -> int:
        """The smallest weight that a waiter asks for."""
        return min(self._weights)

    @property
    def fair_after(self) -> int:
        """The shortest time for which a waiter allows that it is passed: 0 if one of them never does."""
        return min(self._bounds)

    def fresh_until(self, least: int) -> int:
        """Return when the last waiter counts as dead, or `least` if that is later."""
        return max(least, max((waiter.fresh_until for waiter in self), default=0))

    def channels(self, most: int) -> list[str]:
        """Return the channels of the clients that wait first, each once, and at most so many."""
        return list(islice(dict.fromkeys(waiter.request.channel for waiter in self if waiter.request.channel), most))

    def find(self, request_id: str) -> Waiter | None:
        """Return the waiter of a request; None if it is not in the queue."""
        return self._seats[request_id][1] if self.order and request_id in self._seats else None

    def place(self, request_id: str) -> int:
        """Return the number of waiters ahead of a request; of all waiters if the request is not in the queue."""
        if self.find(request_id) is None:
            return len(self.order)
        return bisect_left(self.order, (self._seats[request_id][0], request_id))

    def join(self, waiter: Waiter) -> None:
        """Add a waiter at the tail; a waiter for a vote by its proposal, so that all stores have the same order."""
        order, request = self.order, waiter.request
        if not order:  # made here and not in __init__: most names never have a waiter
            self._seats: dict[str, tuple[int, Waiter]] = {}
            self._weights: dict[int, int] = {}
            self._bounds: dict[int, int] = {}
        rank = request.proposal if request.votes else order[-1][0] + 1 if order else 0
        insort(order, (rank, request.request_id))
        self._seats[request.request_id] = (rank, waiter)
        self._count(request)

    def replace(self, waiter: Waiter, request: AcquireRequest) -> None:
        """Replace the request of a waiter, which keeps its place."""
        self._discount(waiter.request)
        self._count(request)
        waiter.request = request

    def drop(self, request_id: str) -> None:
        """Remove the waiter of a request, if it is in the queue."""
        waiter = self.find(request_id)
        if waiter is not None:
            del self.order[self.place(request_id)]
            del self._seats[request_id]
            self._discount(waiter.request)

    def _count(self, request: AcquireRequest) -> None:
        self._weights[request.weight] = self._weights.get(request.weight, 0) + 1
        self._bounds[request.fair_after] = self._bounds.get(request.fair_after, 0) + 1

    def _discount(self, request: AcquireRequest) -> None:
        for counts, value in ((self._weights, request.weight), (self._bounds, request.fair_after)):
            counts[value] -= 1
            if not counts[value]:
                del counts[value]


@dataclass(slots=True)
class NameState:
    """Everything about one name. The state of a name that was never used is `NameState(counter=floor)`."""

    counter: int = 0
    """The last token that was issued."""
    capacity: int = 1
    holders: list[Holder] = field(default_factory=list[Holder])
    queue: Queue = field(default_factory=Queue)
    blocked_until: int = 0
    block: int = 0
    """The length of the lock delay that ends at `blocked_until`, so that a clock stepped back cannot stretch it."""
    tombstones: dict[str, int] = field(default_factory=dict[str, int])
    """Requests that were withdrawn and must not be granted if they still arrive, each with the end of its tombstone.

    Those of leases that were revoked are here too, behind REVOKED.
    """
    last_released: str = ""

    used_at: int = 0
    """When the last step was taken."""

    def find_holder(self, request_id: str) -> Holder | None:
        """Return the holder of a request; None if the request holds nothing."""
        for holder in self.holders:
            if holder.request_id == request_id:
                return holder
        return None

    def remove_holder(self, request_id: str) -> bool:
        """Remove the holder of a request; return whether there was one."""
        before = self.holders
        if len(before) == 1:  # the usual release
            if before[0].request_id != request_id:
                return False
            self.holders = []
            return True
        self.holders = [holder for holder in before if holder.request_id != request_id]
        return len(self.holders) < len(before)

    def owners(self) -> tuple[str, ...]:
        """Return the owners of all leases."""
        return tuple(holder.owner for holder in self.holders)

    def has_room(self, weight: int) -> bool:
        """Tell whether `weight` fits beside the holders. A request alone fits whatever its weight."""
        holders = self.holders
        return not holders or weight + sum(holder.weight for holder in holders) <= self.capacity

    def adopt_capacity(self, capacity: int) -> bool:
        """Set the capacity if nobody holds or waits; return whether the capacity is this one now."""
        if not self.holders and not self.queue.order:
            self.capacity = capacity
        return self.capacity == capacity

    def block_for(self, lock_delay: int, since: int) -> None:
        """Keep the name from everybody for a lock delay, unless a longer one is running."""
        if lock_delay and since + lock_delay > self.blocked_until:
            self.blocked_until = since + lock_delay
            self.block = lock_delay

    def expire(self, now: int) -> None:
        """Remove the holders whose leases have ended, and limit the remaining time of the others to their ttl."""
        live: list[Holder] = []
        for holder in self.holders:
            if holder.expires_at <= now:
                self.block_for(holder.lock_delay, holder.expires_at)
                if holder.request_id.startswith(PLACEHOLDER):  # perhaps its waiter for a vote did not ask in time
                    self.queue.drop(holder.request_id.removeprefix(PLACEHOLDER))
            else:
                holder.expires_at = min(holder.expires_at, now + holder.ttl)
                live.append(holder)
        self.holders = live

    def add_tombstone(self, request_id: str, now: int) -> None:
        """Refuse a request from now on, should it still arrive."""
        self.tombstones.pop(request_id, None)  # so that the newest stands last
        self.tombstones[request_id] = now + TOMBSTONE

    def note_revocation(self, request_id: str, now: int) -> None:
        """Remember that a lease was revoked, for as long as a tombstone is kept."""
        self.add_tombstone(REVOKED + request_id, now)

    def was_revoked(self, request_id: str, now: int) -> bool:
        """Return whether a lease was revoked not longer ago than that."""
        return self.tombstones.get(REVOKED + request_id, 0) > now

    def end_tombstones(self, now: int, *, stepped_back: bool) -> None:
        """Forget the tombstones that have ended; shorten them all if the clock stepped back."""
        tombstones, latest = self.tombstones, now + TOMBSTONE
        if stepped_back:
            tombstones.update((request_id, min(latest, until)) for request_id, until in tombstones.items())
        while tombstones and tombstones[oldest := next(iter(tombstones))] <= now:
            del tombstones[oldest]

    def idle_after(self) -> int:
        """Return the instant after which nobody holds the name, waits for it or is kept from it."""
        latest = max(self.used_at, self.blocked_until)
        for holder in self.holders:
            ends = holder.expires_at + holder.lock_delay
            if ends > latest:  # noqa: PLR1730 - max() costs more, and this is on the way of every acquisition
                latest = ends
        return self.queue.fresh_until(latest) if self.queue.order else latest
