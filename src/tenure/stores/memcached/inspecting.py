"""What others see of a name, and what they may do to its holder: a revocation request, or a revocation.

memcached carries no messages. So a revocation request is written into the record, where the holder finds it at its next
renewal; and a holder whose name was taken by force learns of it then.
"""

from collections.abc import Callable
from dataclasses import replace

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import HolderView, NameView, Notification, NotificationKind
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreUnavailable
from tenure.stores.memcached.items import Items, SeenItem
from tenure.stores.memcached.known import KnownItems
from tenure.stores.memcached.records import RETENTION, LockRecord, RecordState

ROUNDS = 8
"""How often a step is repeated if the item has changed between the look and the step."""


class MemcachedInspector:
    """Shows names, and revokes leases of any client."""

    def __init__(
        self, runtime: Runtime, items: Items, known: KnownItems, deliver: Callable[[Notification], None]
    ) -> None:
        """Look at `items`; `deliver` gets the notifications for leases of this client itself."""
        self._wall = runtime.wall
        self._items = items
        self._known = known
        self._deliver = deliver

    async def inspect(self, name: str, until: float) -> NameView:
        """Return who holds a name. Waiters are not known."""
        seen = await self._items.look(name, until)
        view = NameView(name, 1, 0 if seen.record is None else seen.record.token, self._holders(seen))
        if not view.holders:
            view.blocked_for = float(max(0, seen.blocked_for()))
        return view

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Write a revocation request into the record of a held name; return the holder."""
        for _ in range(ROUNDS):
            seen = await self._items.look(name, until)
            if seen.record is None or seen.lease_left() <= 0:
                return []
            record = replace(seen.record, revoking=True)
            if seen.record.revoking or await self._items.swap(name, record, seen.left, seen.version, until):
                self._notify(record, NotificationKind.REVOCATION_REQUESTED)
                return self._holders(seen)
        raise StoreUnavailable(f"the item of {name!r} changes all the time: try again")

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Take a name from its holder, skip a token, and let the lock delay begin; return the holder."""
        for _ in range(ROUNDS):
            seen = await self._items.look(name, until)
            holders = self._holders(seen)
            if seen.record is None or not holders or token not in {0, seen.record.token}:
                return []
            record, lifetime = _revoked(seen.record)
            if await self._items.swap(name, record, lifetime, seen.version, until):
                self._notify(seen.record, NotificationKind.REVOKED)
                return holders
        raise StoreUnavailable(f"the item of {name!r} changes all the time: try again")

    def _notify(self, record: LockRecord, kind: NotificationKind) -> None:
        """Notify the holder if it is this client."""
        if record.request_id in self._known.held:
            self._deliver(Notification("", kind, record.request_id, record.token))

    def _holders(self, seen: SeenItem) -> list[HolderView]:
        """Return the holder, or who has released the name before `min_hold` has passed."""
        record = seen.record
        if record is None:
            return []
        left = seen.blocked_for() if record.state is RecordState.KEPT else seen.lease_left()
        if left <= 0:
            return []
        held_for = seconds(max(0, self._wall() - record.granted_at))
        return [
            HolderView(
                record.owner, record.token, 1, held_for, min(float(left), seconds(record.ttl)), seconds(record.ttl)
            )
        ]


def _revoked(record: LockRecord) -> tuple[LockRecord, int]:
    """Return the record after a revocation, and for how many seconds to store it."""
    state = RecordState.DELAYED if record.delay else RecordState.FREE
    lifetime = RETENTION + (record.delay + 1 if record.delay else 0)
    return LockRecord(state, "", record.token + 1, name=record.name), lifetime
