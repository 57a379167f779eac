"""The renewal of leases and their adjustment, by compare-and-swap: never by a plain touch, which renews any lease.

Each renewal stores the item anew, so that its CAS value changes: another client that has seen the lease run out cannot
take a name that was renewed since.
"""

from collections.abc import Sequence
from dataclasses import replace

from tenure.contracts.deadlines import micros, seconds
from tenure.contracts.messages import (
    AdjustRequest,
    Notification,
    NotificationKind,
    RenewReplies,
    RenewReply,
    RenewRequest,
)
from tenure.escaping import quoted
from tenure.outcome import Outcome
from tenure.stores.memcached.errors import OutOfMemory
from tenure.stores.memcached.items import (
    FORGOTTEN,
    NO_VERSION,
    NOTHING,
    ROUNDS,
    HeldItem,
    ItemVersion,
    ItemWork,
    SeenItem,
    is_held_by,
    outcome_of,
    unsettled,
)
from tenure.stores.memcached.protocol import pack_swap
from tenure.stores.memcached.records import (
    CLOCK_SLACK,
    RETENTION,
    LockRecord,
    RecordState,
    longest_ttl,
    seconds_of_delay,
    whole_seconds,
)
from tenure.stores.renewing import renew_apart
from tenure.transport.link import ServerAddress


class MemcachedRenewals(ItemWork):
    """Renews and adjusts the leases of one client."""

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew a batch of leases, with one request to each server."""
        return await renew_apart(
            renewals, lambda each: self._items.place(each.name).address, self._renew_at, self._now, until
        )

    async def _renew_at(
        self, address: ServerAddress, renewals: Sequence[RenewRequest], until: float
    ) -> list[RenewReply]:
        """Renew leases at one server: those whose items are known together, the others one by one."""
        now = self._now()
        known = [(each, held) for each in renewals if (held := self._known_item(each, now)) is not None]
        together = [(each, held) for each, held in known if held.version.process == known[0][1].version.process]
        renewed: set[str] = set()
        if together:
            renewed = await self._renew_together(address, together, now, until)
        return [None if each.request_id in renewed else await self._renew_one(each, until) for each in renewals]

    def _known_item(self, renewal: RenewRequest, now: float) -> HeldItem | None:
        held = self._known.held.get(renewal.request_id)
        return held if held is not None and held.record.token == renewal.token and now < held.lasts_until else None

    async def _renew_together(
        self, address: ServerAddress, known: Sequence[tuple[RenewRequest, HeldItem]], now: float, until: float
    ) -> set[str]:
        """Renew leases by what is known of their items; return the ids of the requests whose leases are renewed."""
        following = [self._prolonged(renewal, held.record, held.lasts_until, now) for renewal, held in known]
        swaps = [
            pack_swap(self._items.place(each.name).key, item.record.to_bytes(), _lifetime(item, now), held.version.cas)
            for (each, held), item in zip(known, following, strict=True)
        ]
        versions = await self._items.swap_all(address, swaps, known[0][1].version.process, until)
        renewed: set[str] = set()
        for (each, _), item, version in zip(known, following, versions, strict=True):
            if version is not None:
                self._note(each.request_id, item, version, now)
                renewed.add(each.request_id)
        return renewed

    async def _renew_one(self, renewal: RenewRequest, until: float) -> RenewReply:
        """Renew a lease after a look at its item. A lease that the server has forgotten is restored, if it can be."""
        for _ in range(ROUNDS):
            now = self._now()
            seen = await self._items.look(renewal.name, until)
            if seen.record is None:
                found = await self._restore(renewal, now, until)
                if found is None:
                    return None
                seen = found  # perhaps by a late copy of an earlier restoration, which is as good
            if seen.record is None or not is_held_by(seen, renewal.request_id, renewal.token):
                self._known.held.pop(renewal.request_id, None)
                return _refusal(seen, renewal)
            self._tell(seen.record)
            item = self._prolonged(renewal, seen.record, now + seen.lease_left() - CLOCK_SLACK, now)
            if await self._swap(renewal.name, item, seen.version, now, until):
                return None
        raise unsettled(renewal.name)

    async def _restore(self, renewal: RenewRequest, now: float, until: float) -> SeenItem | None:
        """Add the item of a lease anew, for the server has none, and return None; return what is there if that fails.

        A name that was taken or released meanwhile has an item, and is not taken from anybody.
        """
        request = renewal.request
        if request is not None:
            delay = seconds_of_delay(request.lock_delay)
            record = LockRecord(
                RecordState.HELD,
                renewal.request_id,
                renewal.token,
                0,
                delay,
                self._wall(),
                request.owner,
                name=self._items.place(renewal.name).name,
                doubted=renewal.token - 1,
            )
            item = self._prolonged(renewal, record, 0.0, now)
            try:
                added = await self._items.add(renewal.name, item.record, _lifetime(item, now), until)
            except OutOfMemory as error:
                renewal.refused_because = quoted(error)
                return NOTHING
            if isinstance(added, ItemVersion):
                self._note(renewal.request_id, item, added, now)
                return None
            if added.record is not None:
                return added
        renewal.refused_because = FORGOTTEN
        return NOTHING

    def _prolonged(self, renewal: RenewRequest, record: LockRecord, lasts_until: float, now: float) -> HeldItem:
        """Return the item after a renewal, which never shortens a lease; a version is still to be given."""
        renewal.ttl = min(renewal.ttl, longest_ttl(record.delay))
        following = replace(record, ttl=max(record.ttl, renewal.ttl))
        return HeldItem(following, NO_VERSION, max(lasts_until, now + seconds(renewal.ttl)))

    async def _swap(self, name: str, item: HeldItem, version: ItemVersion, now: float, until: float) -> bool:
        try:
            stored = await self._items.swap(name, item.record, _lifetime(item, now), version, until)
        except OutOfMemory:  # the server has deleted the item: a look tells
            return False
        if stored is None:
            return False
        self._note(item.record.request_id, item, stored, now)
        return True

    def _note(self, request_id: str, item: HeldItem, version: ItemVersion, now: float) -> None:
        item.version = version
        self._known.hold(request_id, item, now)

    def _tell(self, record: LockRecord) -> None:
        """Deliver a revocation request that the record shows. Delivered twice, it does no harm."""
        if record.revoking:
            kind = NotificationKind.REVOCATION_REQUESTED
            self._deliver(Notification("", kind, record.request_id, record.token))

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Show a lease under another owner, raise its token, or keep it for another client. No weight is changed."""
        name, request_id = adjust.name, adjust.request_id
        for _ in range(ROUNDS):
            now = self._now()
            seen = await self._items.look(name, until)
            if adjust.successor:
                if is_held_by(seen, adjust.successor, adjust.raise_to):
                    return None  # it was handed over before
                if seen.record is None or not is_held_by(seen, request_id, adjust.token):
                    return _ended(outcome_of(seen, request_id, adjust.token))
                if await self._hand_over(adjust, seen, seen.record, now, until):
                    return None
                continue
            token = adjust.raise_to if is_held_by(seen, request_id, adjust.raise_to) else adjust.token
            if seen.record is None or not is_held_by(seen, request_id, token):
                return _ended(outcome_of(seen, request_id, adjust.token))
            if adjust.raise_to and token > adjust.raise_to:
                return Outcome.TAKEN_OVER
            record = replace(seen.record, owner=adjust.owner or seen.record.owner, token=max(token, adjust.raise_to))
            held = self._known.held.get(request_id)
            lasts_until = now + seen.lease_left() - CLOCK_SLACK if held is None else held.lasts_until
            if await self._swap(name, HeldItem(record, seen.version, lasts_until), seen.version, now, until):
                return None
        raise unsettled(name)

    async def _hand_over(
        self, adjust: AdjustRequest, seen: SeenItem, record: LockRecord, now: float, until: float
    ) -> bool:
        """Keep a lease for another client; return False if its item has changed. The old client finds it revoked."""
        following = replace(
            record,
            request_id=adjust.successor,
            token=adjust.raise_to,
            owner=adjust.owner or record.owner,
            doubted=max(record.doubted, record.token),
            revoking=False,
        )
        held = self._known.held.pop(adjust.request_id, None)
        lasts_until = now + seen.lease_left() - CLOCK_SLACK if held is None else held.lasts_until
        if adjust.ttl:
            adjust.ttl = following.ttl = min(adjust.ttl, longest_ttl(record.delay))
            lasts_until = now + seconds(adjust.ttl)
        return await self._swap(adjust.name, HeldItem(following, seen.version, lasts_until), seen.version, now, until)


def _lifetime(item: HeldItem, now: float) -> int:
    """Return for how many seconds the item of a lease is stored anew."""
    return whole_seconds(micros(max(0.0, item.lasts_until - now))) + item.record.delay + RETENTION


def _refusal(seen: SeenItem, renewal: RenewRequest) -> Outcome:
    return _ended(outcome_of(seen, renewal.request_id, renewal.token))


def _ended(outcome: Outcome) -> Outcome:
    """Return the outcome of a lease that cannot go on: a release by its own client is one, too."""
    return Outcome.EXPIRED if outcome is Outcome.RELEASED else outcome
