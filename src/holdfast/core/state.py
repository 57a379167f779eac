"""What a store keeps of one name: its holders, its queue and its counter. Times are the store's microseconds."""

from dataclasses import dataclass, field

from holdfast.core.messages import Ask

KEPT = "~"
"""What the request of a holding begins with that was released, and is to keep the name for a while yet."""


@dataclass(slots=True)
class Holder:
    """One holding of the name."""

    request: str
    inbox: str
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

    ask: Ask
    joined_at: int
    fresh_until: int
    """When it counts as dead unless it asks again."""


@dataclass(slots=True)
class NameState:
    """Everything about one name. A name that was never used is `NameState(counter=floor)`."""

    counter: int = 0
    capacity: int = 1
    holders: list[Holder] = field(default_factory=list[Holder])
    queue: list[Waiter] = field(default_factory=list[Waiter])
    blocked_until: int = 0
    block: int = 0
    """Length of the lock delay that `blocked_until` ends, so that a clock stepped back cannot stretch it."""
    tombstones: dict[str, int] = field(default_factory=dict[str, int])
    """Requests that were given up and must not be granted if they still arrive, and until when to remember."""
    last_released: str = ""

    used_at: int = field(default=0, compare=False)
    """When the last step was taken; a store need not keep it, but for `idle_after`."""

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
