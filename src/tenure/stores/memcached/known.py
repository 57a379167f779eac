"""What one client remembers of items, so that an acquisition and a release take one command each.

It is never trusted: what is remembered wrongly makes a compare-and-swap fail, and the client looks.
"""

from dataclasses import dataclass

from tenure.stores.memcached.items import ItemVersion
from tenure.stores.memcached.records import LockRecord

MOST_FREE = 4096
"""How many free names are remembered."""

FORGOTTEN_AFTER = 60.0
"""How many seconds after its end an item of a lease that was never released is forgotten."""


@dataclass(slots=True)
class HeldItem:
    """The item of a lease of this client."""

    record: LockRecord
    version: ItemVersion
    lasts_until: float
    """The local instant until which the server certainly keeps the lease."""


@dataclass(slots=True)
class FreeItem:
    """The item of a name that this client has released."""

    request_id: str
    token: int
    version: ItemVersion


class KnownItems:
    """The items that one client remembers. Each step on a dict is atomic, so threads share it."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.held: dict[str, HeldItem] = {}
        """By request id."""
        self.free: dict[str, FreeItem] = {}
        """By name."""
        self._look_through_at = 1024

    def hold(self, request_id: str, held: HeldItem, now: float) -> None:
        """Remember the item of a lease."""
        self.held[request_id] = held
        if len(self.held) > self._look_through_at:
            for each, item in list(self.held.items()):
                if item.lasts_until + FORGOTTEN_AFTER < now:
                    self.held.pop(each, None)
            self._look_through_at = max(1024, 2 * len(self.held))

    def release(self, name: str, free: FreeItem) -> None:
        """Remember that a name is free."""
        self.held.pop(free.request_id, None)
        if len(self.free) >= MOST_FREE:
            self.free.clear()
        self.free[name] = free
