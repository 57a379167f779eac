"""The item of a name at its server: looked at, added, and replaced by compare-and-swap.

Rule of this file: no item is ever stored or deleted without a condition. An item is added only if there is none, and
replaced only if it is still the one that was seen, by its CAS value and in the server process that gave that value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tenure.stores.memcached import errors
from tenure.stores.memcached.keys import key_of, server_of, stands_in_key
from tenure.stores.memcached.link import MemcachedAddress, MemcachedLink, MemcachedRequest
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.protocol import (
    EXISTS,
    MISSING,
    NOT_STORED,
    STORED,
    UNKNOWN,
    VALUE,
    MetaReply,
    pack_add,
    pack_look,
    pack_swap,
)
from tenure.stores.memcached.records import LockRecord, RecordState, record_of

MOST_PLACES = 4096
"""Of how many names the key and the server are remembered."""

REFUSED = frozenset({EXISTS, NOT_STORED, UNKNOWN})
"""The replies to a condition that does not hold."""


class Place(NamedTuple):
    """Where the item of a name is."""

    key: bytes
    address: MemcachedAddress
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
        """Reach the servers through `link`."""
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
        return NOTHING if answer is None else self.seen(name, address, answer.replies[0], answer.server.process)

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
        if answer is None:
            return NOTHING
        stored = self.stored(address, answer.replies[0], answer.server.process)
        return stored or self.seen(name, address, answer.replies[1], answer.server.process)

    async def swap(
        self, name: str, record: LockRecord, seconds: int, version: ItemVersion, until: float
    ) -> ItemVersion | None:
        """Replace the record of a name if it is still that of `version`; return its new version, or None."""
        key, address, _ = self.place(name)
        cas, process = version
        reply = await self._link.command(address, pack_swap(key, record.to_bytes(), seconds, cas), until, process)
        return None if reply is None else self.stored(address, reply, process)

    async def swap_all(
        self, address: MemcachedAddress, swaps: Sequence[bytes], process: str, until: float
    ) -> list[ItemVersion | None]:
        """Send several packed swaps to a server at once; return their new versions.

        None: the condition does not hold, or the server had no memory.
        """
        answer = await self._link.exchange(address, MemcachedRequest(b"".join(swaps), len(swaps)), until, process)
        if answer is None:
            return [None] * len(swaps)
        if not answer.replies[-1].goes_on():
            raise errors.refused(address, answer.replies[-1])
        return [self.stored(address, reply, process) if reply.code == STORED else None for reply in answer.replies]

    def stored(self, address: MemcachedAddress, reply: MetaReply, process: str) -> ItemVersion | None:
        """Return the version of an item that was stored; None if the condition does not hold. Raises StoreError."""
        if reply.code == STORED:
            cas = reply.flag(b"c")
            if cas == b"0" or not cas:
                raise errors.without_cas(address)
            return ItemVersion(cas, process)
        if reply.code in REFUSED:
            return None
        raise errors.refused(address, reply)

    def seen(self, name: str, address: MemcachedAddress, reply: MetaReply, process: str) -> SeenItem:
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
