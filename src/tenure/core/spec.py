"""The lock spec: what a caller wants to hold, checked and packed once, when the lock object is made."""

from dataclasses import dataclass, field

from tenure.contracts.deadlines import NEVER
from tenure.core.actor import Actor
from tenure.core.stop import Stop

LocalQueueKey = tuple[str, int, int, int]
"""The name, the ttl, the lock delay and the bound of barging of all contenders of a local queue."""


@dataclass(slots=True)
class LockSpec:
    """What a caller wants to hold. `ttl`, `lock_delay` and `min_hold` in microseconds, `max_hold` in seconds."""

    name: str
    """The name in the store: the client's namespace, a colon, and the title."""
    ttl: int
    lock_delay: int = 0
    max_hold: float = NEVER
    weight: int = 1
    capacity: int = 1
    min_hold: int = 0
    """For how long after the grant the store grants the name to nobody else, even if the lease is released before."""
    title: str = ""
    """The name as the caller wrote it, for errors, events and logs."""
    metadata: str = ""
    """The owner metadata of the request, if that is more than the owner's name."""
    actor: Actor | None = None
    """The thread or task that acquires, if it takes part in deadlock detection."""
    linger: float = 0.0
    """For how many seconds the client keeps a released lease, in case it acquires the name again."""
    advice: str = "Release it first, or give a timeout."
    """What SelfDeadlock advises."""
    stop: Stop | None = None
    """The `Stop` that ends the wait of a thread, if there is one."""
    resizable: bool = False
    """Whether the capacity may change while the name is in use: then the store alone decides who shares the name."""
    fair_after: int = 0
    """For how long, in microseconds, the request may be passed by others and may pass them; 0: never."""
    renew: bool = True
    """Whether the lease is renewed in the background. If not, only `extend` prolongs it."""
    kind: str = "lock"
    """The kind of primitive, for events."""
    template: str = ""
    """The name as it stands in a decorator, or the template that the program gave, for events; empty: there is none."""
    key: LocalQueueKey | None = field(init=False, repr=False, compare=False)
    """What all specs that share a local queue have in common; None if this spec uses no local queue."""
    plan_key: tuple[object, ...] = field(init=False, repr=False, compare=False)
    """What all specs have in common for which a session computes the same plan. A program may make a lock object for
    each use of it."""

    def __post_init__(self) -> None:
        """Compute the keys."""
        alone = self.weight != 1 or self.capacity != 1 or not self.renew
        alone = alone or self.resizable or bool(self.min_hold or self.metadata)
        self.key = key = None if alone else (self.name, self.ttl, self.lock_delay, self.fair_after)
        if key is not None and not self.linger and self.max_hold == NEVER:  # most specs
            self.plan_key = key
        else:
            more = self.weight, self.capacity, self.metadata, self.max_hold, self.linger, key is None
            self.plan_key = self.name, self.ttl, self.lock_delay, self.fair_after, *more
