"""What others see of names, and what they may do to a holder: a revocation request, or a revocation.

memcached carries no messages. So a revocation request is written into the record, where the holder finds it at its next
renewal; and a holder whose name was taken by force learns of it then.

memcached names its items on request, but all of them, those of other programs too. So one request asks a server for all
keys, and the records of the keys with our prefix are read page by page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote_to_bytes

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import HolderView, NameView, Notification, NotificationKind, Page
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.memcached import errors
from tenure.stores.memcached.items import ROUNDS, Items, ItemWork, SeenItem, unsettled
from tenure.stores.memcached.keys import name_in
from tenure.stores.memcached.link import MemcachedLink
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.protocol import DUMP, END, MISSING, VALUE, MemcachedRequest, MetaReply, pack_look
from tenure.stores.memcached.records import RETENTION, LockRecord, RecordState, record_of
from tenure.transport.link import ServerAddress


class MemcachedInspector(ItemWork):
    """Shows names, and revokes leases of any client."""

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
        raise unsettled(name)

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
        raise unsettled(name)

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
                record.owner,
                record.token,
                1,
                held_for,
                min(float(left), seconds(record.ttl)),
                seconds(record.ttl),
                released=record.state is RecordState.KEPT,
            )
        ]


def _revoked(record: LockRecord) -> tuple[LockRecord, int]:
    """Return the record after a revocation, and for how many seconds to store it."""
    state = RecordState.DELAYED if record.delay else RecordState.FREE
    lifetime = RETENTION + (record.delay + 1 if record.delay else 0)
    return LockRecord(state, "", record.token + 1, name=record.name, doubted=record.token), lifetime


PAGE = 100
"""How many records are read at once."""


@dataclass(slots=True)
class ListingCursor:
    """Where a listing goes on."""

    server: int
    """The place of a server in the URL."""
    keys: Sequence[bytes] | None = None
    """The keys at that server whose records are still to be read. None: it was not asked yet."""


class MemcachedListing:
    """Lists the names in use at all servers."""

    def __init__(self, link: MemcachedLink, deployment: MemcachedDeployment, items: Items) -> None:
        self._link = link
        self._addresses = deployment.addresses
        self._prefix = deployment.prefix
        self._items = items

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use that begin with a prefix."""
        cursor = rest if isinstance(rest, ListingCursor) else ListingCursor(0)
        address = self._addresses[cursor.server]
        if cursor.keys is None:
            return Page([], ListingCursor(cursor.server, await self._keys(address, prefix, until)))
        names = await self._read(address, cursor.keys[:PAGE], prefix, until) if cursor.keys else []
        return Page(names, self._next(cursor))

    def _next(self, cursor: ListingCursor) -> ListingCursor | None:
        if cursor.keys and len(cursor.keys) > PAGE:
            return ListingCursor(cursor.server, cursor.keys[PAGE:])
        return ListingCursor(cursor.server + 1) if cursor.server + 1 < len(self._addresses) else None

    async def _keys(self, address: ServerAddress, prefix: str, until: float) -> list[bytes]:
        """Return the keys at a server that may belong to names with a prefix."""
        try:
            replies = (await self._link.exchange(address, MemcachedRequest(DUMP, 0), until, alone=True)).replies
        except OutcomeUnknown as error:
            raise StoreUnavailable(
                f"the memcached server at {address} did not name its items in time. It names all of them, also those "
                "of other programs: raise operation_timeout, or keep the locks in a server of their own"
            ) from error
        if replies[-1].code != END:
            raise errors.refused(address, replies[-1])
        return sorted({key for reply in replies if (key := self._key_in(reply, prefix))})

    def _key_in(self, reply: MetaReply, prefix: str) -> bytes:
        """Return the key that a line of the listing names; b"" if it is none of ours."""
        key = unquote_to_bytes(reply.code.removeprefix(b"key="))
        if not key.startswith(f"{self._prefix}:".encode()) or not key.isascii():
            return b""
        name = name_in(key.decode(), self._prefix)
        return key if not name or name.startswith(prefix) else b""

    async def _read(self, address: ServerAddress, keys: Sequence[bytes], prefix: str, until: float) -> list[str]:
        """Return the names in use among these keys."""
        request = MemcachedRequest(b"".join(map(pack_look, keys)), len(keys))
        replies = (await self._link.exchange(address, request, until)).replies
        names = [self._name_in_use(address, key, reply) for key, reply in zip(keys, replies, strict=False)]
        return [name for name in names if name and name.startswith(prefix)]

    def _name_in_use(self, address: ServerAddress, key: bytes, reply: MetaReply) -> str:
        """Return the name of a record, if a client holds the name; else ""."""
        if reply.code == MISSING:
            return ""
        if reply.code != VALUE:
            raise errors.refused(address, reply)
        try:
            record = record_of(reply.data, key.decode())
            seen = SeenItem(record, left=int(reply.flag(b"t")))
        except ValueError:  # of another program
            return ""
        name = name_in(key.decode(), self._prefix) or record.name
        if self._items.place(name)[:2] != (key, address):  # left from before the list of servers was changed
            return ""
        left = seen.blocked_for() if record.state is RecordState.KEPT else seen.lease_left()
        return name if left > 0 else ""
