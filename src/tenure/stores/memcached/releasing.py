"""The end of a request by its client: a release, or a withdrawal.

Both leave a record in the name's item. It keeps the last token, it answers a repeated release, and a late copy of the
request cannot take the name: that copy would add an item where there is one, or replace one that has been replaced.
"""

from tenure.contracts.messages import NotGranted, ReleaseRequest, WithdrawRequest
from tenure.outcome import Outcome
from tenure.stores.memcached.errors import OutOfMemory
from tenure.stores.memcached.items import (
    ROUNDS,
    FreeItem,
    ItemVersion,
    ItemWork,
    SeenItem,
    is_held_by,
    outcome_of,
    unsettled,
)
from tenure.stores.memcached.records import LONGEST_DELAY, RETENTION, LockRecord, RecordState, whole_seconds

EVER = 2**63
"""A time without end, in microseconds."""


class MemcachedReleaser(ItemWork):
    """Ends the requests of one client when the client says so."""

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """End a lease if it lasts; return what became of it."""
        name, request_id = release.name, release.request_id
        held = self._known.held.get(request_id)
        done: bool | None = False
        if held is not None and held.record.token == release.token and self._now() < held.lasts_until:
            done = await self._let_go(name, held.record, held.version, release.keep, until)
        for _ in range(ROUNDS):
            if done:
                return Outcome.RELEASED
            seen = await self._items.look(name, until)
            if seen.record is None or not is_held_by(seen, request_id, release.token):
                self._known.held.pop(request_id, None)
                deleted = done is None and seen.record is None  # by the release itself: the lease lasted until then
                if seen.record is not None and seen.record.doubted < release.token:
                    release.unrevoked_for = EVER
                return Outcome.RELEASED if deleted else outcome_of(seen, request_id, release.token)
            done = await self._let_go(name, seen.record, seen.version, release.keep, until)
        if done:
            return Outcome.RELEASED
        raise unsettled(name)

    async def _let_go(
        self, name: str, record: LockRecord, version: ItemVersion, keep: int, until: float
    ) -> bool | None:
        """Write that the lease is released; return whether the item was the one of `version`.

        Return None if the server had no memory for that: it has deleted the item.
        """
        released = LockRecord(
            RecordState.FREE, record.request_id, record.token, name=record.name, doubted=record.doubted
        )
        seconds = RETENTION
        if keep:
            released.state, released.ttl, released.owner = RecordState.KEPT, keep, record.owner
            released.granted_at = record.granted_at
            seconds += min(whole_seconds(keep), LONGEST_DELAY)
        try:
            stored = await self._items.swap(name, released, seconds, version, until)
        except OutOfMemory:
            return None
        if stored is None:
            return False
        if keep:
            self._known.held.pop(record.request_id, None)
        else:
            self._known.release(name, FreeItem(record.request_id, record.token, record.doubted, stored))
        return True

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Give up a request: end its lease if it was granted meanwhile, and leave a tombstone if a copy may come."""
        name, request_id = withdraw.name, withdraw.request_id
        self._known.pacing.forget(name)
        for _ in range(ROUNDS):
            seen = await self._items.look(name, until)
            if await self._forestall(withdraw, seen, until):
                self._known.held.pop(request_id, None)
                return NotGranted(_owners(seen, request_id))
        raise unsettled(name)

    async def _forestall(self, withdraw: WithdrawRequest, seen: SeenItem, until: float) -> bool:
        """Take care that no copy of the request holds the name, or ever will; return False if the item has changed."""
        name, record = withdraw.name, seen.record
        if record is None:
            if not withdraw.unsure:
                return True
            token = self._wall()
            tombstone = self._tombstone(name, withdraw.request_id, token, token)
            return isinstance(await self._items.add(name, tombstone, RETENTION, until), ItemVersion)
        if record.request_id == withdraw.request_id:
            if record.state is not RecordState.HELD:
                return True
        elif seen.blocked_for() > 0 or not withdraw.unsure:
            return True  # a copy finds an item that is there, and will be another one when the name is free
        tombstone = self._tombstone(name, withdraw.request_id, record.token, record.doubted)
        return await self._items.swap(name, tombstone, RETENTION, seen.version, until) is not None

    def _tombstone(self, name: str, request_id: str, token: int, doubted: int) -> LockRecord:
        return LockRecord(RecordState.FREE, request_id, token, name=self._items.place(name).name, doubted=doubted)


def _owners(seen: SeenItem, request_id: str) -> tuple[str, ...]:
    """Return the owner that a withdrawn request waited for."""
    if seen.record is None or seen.lease_left() <= 0 or seen.is_of(request_id):
        return ()
    return (seen.record.owner,)
