"""The item of a name at its server: looked at, added, and replaced by compare-and-swap.

Rule of this file: no item is ever stored or deleted without a condition. An item is added only if there is none, and
replaced only if it is still the one that was seen, by its CAS value and in the server process that gave that value.

A client remembers items, so that an acquisition and a release take one command each. It never trusts them: what is
remembered wrongly makes a compare-and-swap fail, and the client looks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tenure.contracts.deadlines import micros
from tenure.contracts.messages import Notification
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.memcached import errors
from tenure.stores.memcached.keys import key_of, server_of, stands_in_key
from tenure.stores.memcached.link import MemcachedLink
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.protocol import (
    EXISTS,
    MISSING,
    NOT_STORED,
    STORED,
    UNKNOWN,
    VALUE,
    MemcachedRequest,
    MetaReply,
    pack_add,
    pack_look,
    pack_swap,
)
from tenure.stores.memcached.records import LockRecord, RecordState, record_of
from tenure.transport.errors import OtherProcess
from tenure.transport.link import ServerAddress

MOST_PLACES = 4096
"""Of how many names the key and the server are remembered."""

REFUSED = frozenset({EXISTS, NOT_STORED, UNKNOWN})
"""The replies to a condition that does not hold."""


class Place(NamedTuple):
    """Where the item of a name is."""

    key: bytes
    address: ServerAddress
    name: str
    """What the record contains as the name: "" if the name stands in the key."""


class ItemVersion(NamedTuple):
    """Identifies one state of an item."""

    cas: bytes
    process: str
    """The server process that gave the CAS value."""


NO_VERSION = ItemVersion(b"", "")
"""The version of no item."""


@dataclass(slots=True)
class SeenItem:
    """What a look at an item showed."""

    record: LockRecord | None
    """None: there is no item."""
    version: ItemVersion = NO_VERSION
    left: int = 0
    """For how many seconds the server keeps the item."""

    def blocked_for(self) -> int:
        """Return for how many seconds nobody but a holder may use the name; 0 or less: it is free."""
        record = self.record
        return 0 if record is None or record.state is RecordState.FREE else self.left - record.retention

    def lease_left(self) -> int:
        """Return for how many seconds the lease lasts; 0 or less: there is none, or it has run out."""
        record = self.record
        if record is None or record.state is not RecordState.HELD:
            return 0
        return self.left - record.retention - record.delay

    def is_of(self, request_id: str) -> bool:
        """Tell whether the record is of a request, whatever became of the request."""
        return self.record is not None and self.record.request_id == request_id


NOTHING = SeenItem(None)


class Items:
    """The items of all names, for one client."""

    def __init__(self, link: MemcachedLink, deployment: MemcachedDeployment) -> None:
        self._link = link
        self._prefix = deployment.prefix
        self._addresses = deployment.addresses
        self._places: dict[str, Place] = {}

    def place(self, name: str) -> Place:
        """Return the key and the server of a name."""
        place = self._places.get(name)
        if place is None:
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            key = key_of(self._prefix, name)
            place = self._places[name] = Place(
                key, server_of(key, self._addresses), "" if stands_in_key(name) else name
            )
        return place

    async def look(self, name: str, until: float) -> SeenItem:
        """Return the record of a name, and its version."""
        key, address, _ = self.place(name)
        answer = await self._link.exchange(address, MemcachedRequest(pack_look(key)), until)
        return self.seen(name, address, answer.replies[0], answer.server.process)

    async def add(self, name: str, record: LockRecord, seconds: int, until: float) -> ItemVersion | SeenItem:
        """Store the record of a name that has none, and return its version; return what is there, if it has one.

        A server that does not evict deletes an item that it has no memory to replace, also if it would not have
        replaced it. So such a server is asked first.
        """
        key, address, _ = self.place(name)
        look, add = pack_look(key), pack_add(key, record.to_bytes(), seconds)
        if not (await self._link.server(address, until)).evicts:
            seen = await self.look(name, until)
            if seen.record is not None:
                return seen
        answer = await self._link.exchange(address, MemcachedRequest(add + look, 2), until)
        stored = self.stored(address, answer.replies[0], answer.server.process)
        return stored or self.seen(name, address, answer.replies[1], answer.server.process)

    async def swap(
        self, name: str, record: LockRecord, seconds: int, version: ItemVersion, until: float
    ) -> ItemVersion | None:
        """Replace the record of a name if it is still that of `version`; return its new version, or None."""
        key, address, _ = self.place(name)
        cas, process = version
        request = MemcachedRequest(pack_swap(key, record.to_bytes(), seconds, cas))
        try:
            answer = await self._link.exchange(address, request, until, process)
        except OtherProcess:
            return None
        return self.stored(address, answer.replies[0], process)

    async def swap_all(
        self, address: ServerAddress, swaps: Sequence[bytes], process: str, until: float
    ) -> list[ItemVersion | None]:
        """Send several packed swaps to a server at once; return their new versions.

        None: the condition does not hold, or the server had no memory.
        """
        try:
            answer = await self._link.exchange(address, MemcachedRequest(b"".join(swaps), len(swaps)), until, process)
        except OtherProcess:
            return [None] * len(swaps)
        if not answer.replies[-1].goes_on():
            raise errors.refused(address, answer.replies[-1])
        return [self.stored(address, reply, process) if reply.code == STORED else None for reply in answer.replies]

    def stored(self, address: ServerAddress, reply: MetaReply, process: str) -> ItemVersion | None:
        """Return the version of an item that was stored; None if the condition does not hold. Raises StoreError."""
        if reply.code == STORED:
            cas = reply.flag(b"c")
            if cas == b"0" or not cas:
                raise errors.without_cas(address)
            return ItemVersion(cas, process)
        if reply.code in REFUSED:
            return None
        raise errors.refused(address, reply)

    def seen(self, name: str, address: ServerAddress, reply: MetaReply, process: str) -> SeenItem:
        """Return what the reply to a look shows. Raises StoreError."""
        if reply.code == MISSING:
            return NOTHING
        if reply.code != VALUE:
            raise errors.refused(address, reply)
        try:
            record, left = record_of(reply.data, name), int(reply.flag(b"t"))
        except ValueError:
            raise errors.foreign(address, name) from None
        if left < 0:  # Tenure stores no item for ever
            raise errors.foreign(address, name)
        if record.name != self.place(name).name:
            raise errors.collision(address, name)
        return SeenItem(record, ItemVersion(reply.flag(b"c"), process), left)


FORGOTTEN = "the server has no record of it: it was evicted or flushed, or the server was restarted or changed"


def is_held_by(seen: SeenItem, request_id: str, token: int) -> bool:
    """Tell whether a request holds the name with this token, and its lease has not run out."""
    return seen.is_of(request_id) and seen.lease_left() > 0 and seen.record is not None and seen.record.token == token


def outcome_of(seen: SeenItem, request_id: str, token: int) -> Outcome:
    """Return what became of a lease that is over."""
    record = seen.record
    if record is not None and record.request_id == request_id and record.state is not RecordState.HELD:
        return Outcome.RELEASED
    return Outcome.TAKEN_OVER if record is not None and record.token > token else Outcome.EXPIRED


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
    doubted: int
    version: ItemVersion


SOONEST = 0.005
LATEST = 0.2
"""The bounds of the time until the next look, in seconds."""

AT_THE_END = 0.05
"""The longest such time in the last second of a lease, whose holder may be dead."""

SHARE = 4
"""The part of the time for which the waiter has seen the name held: a fourth."""

MOST_NAMES = 1024
"""Of how many names this is remembered."""


class Pacing:
    """The pace of the waiters of one client."""

    def __init__(self) -> None:
        self._seen_since: dict[str, tuple[int, float]] = {}
        """The token of the holder, and the local instant at which it was seen first, by name."""

    def is_polled(self, name: str) -> bool:
        """Tell whether this client has found the name busy the last time."""
        return name in self._seen_since

    def retry_in(self, name: str, seen: SeenItem, now: float) -> int:
        """Return when to look again, in microseconds."""
        token = 0 if seen.record is None else seen.record.token
        known, since = self._seen_since.get(name, (token, now))
        if known != token or name not in self._seen_since:
            if len(self._seen_since) >= MOST_NAMES:
                self._seen_since.clear()
            since = now
            self._seen_since[name] = token, since
        latest = AT_THE_END if seen.blocked_for() <= 1 or seen.lease_left() == 1 else LATEST
        return micros(min(max((now - since) / SHARE, SOONEST), latest))

    def forget(self, name: str) -> None:
        """Note that the name is not busy any more."""
        self._seen_since.pop(name, None)


class KnownItems:
    """The items that one client remembers. Each step on a dict is atomic, so threads share it."""

    def __init__(self) -> None:
        self.pacing = Pacing()
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


ROUNDS = 8
"""How often a step is repeated if the item has changed between the look and the step."""


def unsettled(name: str) -> StoreUnavailable:
    """Return the error of a step that was repeated so often."""
    return StoreUnavailable(f"the item of {name!r} changes all the time: try again")


class ItemWork:
    """What each kind of operations of one client needs."""

    def __init__(
        self, runtime: Runtime, items: Items, known: KnownItems, deliver: Callable[[Notification], None]
    ) -> None:
        """Note in `known` what is learned; `deliver` gets the notifications for leases of this client."""
        self._now = runtime.now
        self._wall = runtime.wall
        self._items = items
        self._known = known
        self._deliver = deliver
