"""The end of a request by its client: a release, or a withdrawal.

Both leave a record in the name's item. It keeps the last token, it answers a repeated release, and a late copy of the
request cannot take the name: that copy would add an item where there is one, or replace one that has been replaced.
"""

from tenure.contracts.messages import NotGranted, ReleaseRequest, WithdrawRequest
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.memcached.errors import OutOfMemory
from tenure.stores.memcached.items import Items, ItemVersion, SeenItem
from tenure.stores.memcached.known import FreeItem, KnownItems
from tenure.stores.memcached.outcomes import is_held_by, outcome_of
from tenure.stores.memcached.pacing import Pacing
from tenure.stores.memcached.records import LONGEST_DELAY, RETENTION, LockRecord, RecordState, whole_seconds

ROUNDS = 8
"""How often a step is repeated if the item has changed between the look and the step."""


class MemcachedReleaser:
    """Ends the requests of one client when the client says so."""

    def __init__(self, runtime: Runtime, items: Items, known: KnownItems, pacing: Pacing) -> None:
        """End requests by `items`, and note what is learned in `known`."""
        self._now = runtime.now
        self._wall = runtime.wall
        self._items = items
        self._known = known
        self._pacing = pacing

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """End a lease if it lasts; return what became of it."""
        name, request_id = release.name, release.request_id
        held = self._known.held.get(request_id)
        if (
            held is not None
            and held.record.token == release.token
            and self._now() < held.lasts_until
            and await self._let_go(name, held.record, held.version, release.keep, until)
        ):
            return Outcome.RELEASED
        for _ in range(ROUNDS):
            seen = await self._items.look(name, until)
            if seen.record is None or not is_held_by(seen, request_id, release.token):
                self._known.held.pop(request_id, None)
                return outcome_of(seen, request_id, release.token)
            if await self._let_go(name, seen.record, seen.version, release.keep, until):
                return Outcome.RELEASED
        raise StoreUnavailable(f"the item of {name!r} changes all the time: try again")

    async def _let_go(self, name: str, record: LockRecord, version: ItemVersion, keep: int, until: float) -> bool:
        """Write that the lease is released; return whether the item was the one of `version`."""
        released = LockRecord(RecordState.FREE, record.request_id, record.token, name=record.name)
        seconds = RETENTION
        if keep:
            released.state, released.ttl, released.owner = RecordState.KEPT, keep, record.owner
            released.granted_at = record.granted_at
            seconds += min(whole_seconds(keep), LONGEST_DELAY)
        try:
            stored = await self._items.swap(name, released, seconds, version, until)
        except OutOfMemory:  # the server has deleted the item: a look tells
            return False
        if stored is None:
            return False
        if keep:
            self._known.held.pop(record.request_id, None)
        else:
            self._known.release(name, FreeItem(record.request_id, record.token, stored))
        return True

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Give up a request: end its lease if it was granted meanwhile, and leave a tombstone if a copy may come."""
        name, request_id = withdraw.name, withdraw.request_id
        self._pacing.forget(name)
        for _ in range(ROUNDS):
            seen = await self._items.look(name, until)
            if await self._forestall(withdraw, seen, until):
                self._known.held.pop(request_id, None)
                return NotGranted(_owners(seen, request_id))
        raise StoreUnavailable(f"the item of {name!r} changes all the time: try again")

    async def _forestall(self, withdraw: WithdrawRequest, seen: SeenItem, until: float) -> bool:
        """Take care that no copy of the request holds the name, or ever will; return False if the item has changed."""
        name, record = withdraw.name, seen.record
        if record is None:
            if not withdraw.unsure:
                return True
            tombstone = self._tombstone(name, withdraw.request_id, self._wall())
            return isinstance(await self._items.add(name, tombstone, RETENTION, until), ItemVersion)
        if record.request_id == withdraw.request_id:
            if record.state is not RecordState.HELD:
                return True
        elif seen.blocked_for() > 0 or not withdraw.unsure:
            return True  # a copy finds an item that is there, and will be another one when the name is free
        tombstone = self._tombstone(name, withdraw.request_id, record.token)
        return await self._items.swap(name, tombstone, RETENTION, seen.version, until) is not None

    def _tombstone(self, name: str, request_id: str, token: int) -> LockRecord:
        return LockRecord(RecordState.FREE, request_id, token, name=self._items.place(name).name)


def _owners(seen: SeenItem, request_id: str) -> tuple[str, ...]:
    """Return the owner that a withdrawn request waited for."""
    if seen.record is None or seen.lease_left() <= 0 or seen.is_of(request_id):
        return ()
    return (seen.record.owner,)
