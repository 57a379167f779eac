"""The acquisition of a name.

The usual case is one command: the name has no item, or this client remembers the item that it left there.

memcached wakes nobody, so waiters poll. A name that was taken just now may be free soon, so its waiters look often. The
longer it has been held, the longer it may still be held: a waiter looks again after a part of the time for which it has
seen the name held, within bounds. So a waiter is late by a part of its wait at most, and the cost of a long wait is
bounded. The client spreads these times at random.
"""

from tenure.contracts.deadlines import MICROS, seconds
from tenure.contracts.messages import AcquireRequest, Busy, Granted, Reply, Withdrawn
from tenure.errors import StoreError
from tenure.stores.memcached.items import ROUNDS, SOONEST, HeldItem, ItemVersion, ItemWork, SeenItem
from tenure.stores.memcached.records import (
    LONGEST_DELAY,
    RETENTION,
    LockRecord,
    RecordState,
    longest_ttl,
    next_token,
    seconds_of_delay,
    whole_seconds,
)


class MemcachedAcquirer(ItemWork):
    """Acquires names for one client."""

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant the name, or refuse it."""
        now, name = self._now(), request.name
        record = self._record(request)
        free = self._known.free.pop(name, None)
        if free is not None:
            if free.request_id == request.request_id:
                self._known.free[name] = free
                return Withdrawn()
            record.token, record.doubted = next_token(free.token, request.proposal), free.doubted
            if version := await self._items.swap(name, record, _lifetime(record), free.version, until):
                return self._granted(name, record, version, now)
        elif not self._known.pacing.is_polled(name):
            added = await self._add(request, record, until)
            if isinstance(added, ItemVersion):
                return self._granted(name, record, added, now)
            return await self._take(request, record, added, until)
        return await self._take(request, record, await self._items.look(name, until), until)

    async def _take(self, request: AcquireRequest, record: LockRecord, seen: SeenItem, until: float) -> Reply:
        """Grant a name of which the record was seen, or refuse it."""
        name = request.name
        for _ in range(ROUNDS):
            now = self._now()
            version: ItemVersion | None = None
            if seen.record is None:
                added = await self._add(request, record, until)
                if isinstance(added, SeenItem):
                    seen = added
                    continue
                version = added
            elif refusal := self._refusal(request, record, seen, now):
                return refusal
            else:
                lifetime = max(_lifetime(record), seen.left if seen.is_of(request.request_id) else 0)
                version = await self._items.swap(name, record, lifetime, seen.version, until)
            if version is not None:
                return self._granted(name, record, version, now)
            seen = await self._items.look(name, until)
        return Busy(int(SOONEST * 1_000_000))

    async def _add(self, request: AcquireRequest, record: LockRecord, until: float) -> ItemVersion | SeenItem:
        record.token = next_token(0, request.proposal)
        record.doubted = record.token - 1  # the server may have had an item that it has forgotten
        return await self._items.add(request.name, record, _lifetime(record), until)

    def _refusal(self, request: AcquireRequest, record: LockRecord, seen: SeenItem, now: float) -> Reply | None:
        """Return why the request cannot take the name; None, with the token in `record`, if it can.

        A request that has the name already, because an earlier reply to it was lost, keeps what it has.
        """
        there = seen.record
        if there is None:
            return None
        record.doubted = there.doubted
        if there.request_id == request.request_id:
            if there.state is not RecordState.HELD:
                return Withdrawn()
            record.token, record.granted_at, record.revoking = there.token, there.granted_at, there.revoking
            record.ttl, record.owner = max(record.ttl, there.ttl), there.owner
            return None
        if seen.blocked_for() > 0:
            owners = (there.owner,) if seen.lease_left() > 0 or there.state is RecordState.KEPT else ()
            blocked = 0 if owners else seen.blocked_for() * MICROS
            return Busy(self._known.pacing.retry_in(request.name, seen, now), owners, blocked=blocked)
        record.token = next_token(there.token, request.proposal)
        return None

    def _record(self, request: AcquireRequest) -> LockRecord:
        delay = seconds_of_delay(request.lock_delay) if request.lock_delay else 0
        if delay > LONGEST_DELAY:
            raise StoreError(
                f"memcached keeps no lock delay of more than {LONGEST_DELAY} s, because it keeps no item for longer "
                f"than 30 days: give {request.name!r} a shorter lock_delay, or use another store"
            )
        return LockRecord(
            RecordState.HELD,
            request.request_id,
            0,
            min(request.ttl, longest_ttl(delay)),
            delay,
            self._wall(),
            request.owner,
            name=self._items.place(request.name).name,
        )

    def _granted(self, name: str, record: LockRecord, version: ItemVersion, sent: float) -> Granted:
        before, lasts_until = self._known.held.get(record.request_id), sent + seconds(record.ttl)
        if before is not None and before.lasts_until > lasts_until:
            lasts_until = before.lasts_until
        self._known.hold(record.request_id, HeldItem(record, version, lasts_until), sent)
        self._known.pacing.forget(name)
        return Granted(record.token, record.ttl)


def _lifetime(record: LockRecord) -> int:
    """Return for how many seconds the item of a new lease is stored."""
    return whole_seconds(record.ttl) + record.delay + RETENTION
