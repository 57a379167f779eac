"""What a store keeps of one name: its holders, its queue and its counter. Times are the store's microseconds."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.contracts.messages import AcquireRequest

KEPT = "~"
"""What the request of a holding begins with that was released, and is to keep the name for a while yet."""


@dataclass(slots=True)
class Holder:
    """One holding of the name."""

    request_id: str
    channel: str
    owner: str
    token: int
    weight: int
    ttl: int
    lock_delay: int
    granted_at: int
    expires_at: int
    told: bool = False
    """Whether it is to be told when somebody waits."""


@dataclass(slots=True)
class Waiter:
    """One place in the queue."""

    request: AcquireRequest
    joined_at: int
    fresh_until: int
    """When it counts as dead unless it asks again."""


class Queue:
    """The waiters of a name, in their order.

    Only iteration takes longer the more of them there are; all else takes a few steps, however long the queue is, and
    `lightest` one for each weight that somebody waits for.
    """

    __slots__ = ("_order", "_seats", "_weights")

    def __init__(self, waiters: Iterable[Waiter] = ()) -> None:
        """Let each of `waiters` join."""
        self._order: list[tuple[int, str]] = []
        for waiter in waiters:
            self.join(waiter)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Waiter]:
        return iter([self._seats[request_id][1] for _, request_id in self._order])

    def __getitem__(self, place: int) -> Waiter:
        return self._seats[self._order[place][1]][1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queue) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Queue({list(self)!r})"

    @property
    def lightest(self) -> int:
        """The least weight that anybody in the queue waits for."""
        return min(self._weights)

    def find(self, request_id: str) -> Waiter | None:
        """Return the waiter of a request, if it stands here."""
        return self._seats[request_id][1] if self._order and request_id in self._seats else None

    def place(self, request_id: str) -> int:
        """Return how many stand before a request; before one that does not stand here, all do."""
        if self.find(request_id) is None:
            return len(self._order)
        return bisect_left(self._order, (self._seats[request_id][0], request_id))

    def join(self, waiter: Waiter) -> None:
        """Add a waiter at the tail; one that waits for a vote by its proposal, so that all stores have one order."""
        order, request = self._order, waiter.request
        if not order:  # most names never have a waiter
            self._seats: dict[str, tuple[int, Waiter]] = {}
            self._weights: dict[int, int] = {}
        rank = request.proposal if request.votes else order[-1][0] + 1 if order else 0
        insort(order, (rank, request.request_id))
        self._seats[request.request_id] = (rank, waiter)
        self._weights[request.weight] = self._weights.get(request.weight, 0) + 1

    def replace(self, waiter: Waiter, request: AcquireRequest) -> None:
        """Let a waiter stand where it stands with another request."""
        self._forget_weight(waiter.request.weight)
        self._weights[request.weight] = self._weights.get(request.weight, 0) + 1
        waiter.request = request

    def drop(self, request_id: str) -> None:
        """Remove the waiter of a request, if it stands here."""
        waiter = self.find(request_id)
        if waiter is not None:
            del self._order[self.place(request_id)]
            del self._seats[request_id]
            self._forget_weight(waiter.request.weight)

    def _forget_weight(self, weight: int) -> None:
        self._weights[weight] -= 1
        if not self._weights[weight]:
            del self._weights[weight]


@dataclass(slots=True)
class NameState:
    """Everything about one name. A name that was never used is `NameState(counter=floor)`."""

    counter: int = 0
    capacity: int = 1
    holders: list[Holder] = field(default_factory=list[Holder])
    queue: Queue = field(default_factory=Queue)
    blocked_until: int = 0
    block: int = 0
    """Length of the lock delay that `blocked_until` ends, so that a clock stepped back cannot stretch it."""
    tombstones: dict[str, int] = field(default_factory=dict[str, int])
    """Requests that were given up and must not be granted if they still arrive, and until when to remember."""
    last_released: str = ""

    used_at: int = 0
    """When the last step was taken."""

    def idle_after(self) -> int:
        """Return the instant after which nobody holds, waits or is kept away."""
        latest = max(self.used_at, self.blocked_until)
        for holder in self.holders:
            ends = holder.expires_at + holder.lock_delay
            if ends > latest:  # noqa: PLR1730 - max() costs more, and this is on the way of every acquisition
                latest = ends
        for waiter in self.queue:
            latest = max(latest, waiter.fresh_until)
        return latest
