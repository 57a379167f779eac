"""The listing of names. memcached names its items on request, but all of them, those of other programs too.

So one request asks a server for all keys, and the records of the keys with our prefix are read page by page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from tenure.contracts.messages import Page
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.memcached import errors
from tenure.stores.memcached.items import Items, SeenItem
from tenure.stores.memcached.keys import name_in
from tenure.stores.memcached.link import MemcachedAddress, MemcachedLink, MemcachedRequest
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.protocol import DUMP, END, MISSING, VALUE, MetaReply, pack_look
from tenure.stores.memcached.records import RecordState, record_of

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
        """Ask the servers through `link`."""
        self._link = link
        self._addresses = deployment.addresses
        self._prefix = deployment.prefix
        self._items = items

    async def names(self, prefix: str, until: float, rest: object) -> Page:
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

    async def _keys(self, address: MemcachedAddress, prefix: str, until: float) -> list[bytes]:
        """Return the keys at a server that may belong to names with a prefix."""
        try:
            answer = await self._link.exchange(address, MemcachedRequest(DUMP, 0, alone=True), until)
        except OutcomeUnknown as error:
            raise StoreUnavailable(
                f"the memcached server at {address} did not name its items in time. It names all of them, also those "
                "of other programs: raise operation_timeout, or keep the locks in a server of their own"
            ) from error
        replies = [] if answer is None else answer.replies
        if replies and replies[-1].code != END:
            raise errors.refused(address, replies[-1])
        return sorted({key for reply in replies if (key := self._key_in(reply, prefix))})

    def _key_in(self, reply: MetaReply, prefix: str) -> bytes:
        """Return the key that a line of the listing names; b"" if it is none of ours."""
        key = unquote_to_bytes(reply.code.removeprefix(b"key="))
        if not key.startswith(f"{self._prefix}:".encode()) or not key.isascii():
            return b""
        name = name_in(key.decode(), self._prefix)
        return key if not name or name.startswith(prefix) else b""

    async def _read(self, address: MemcachedAddress, keys: Sequence[bytes], prefix: str, until: float) -> list[str]:
        """Return the names in use among these keys."""
        request = MemcachedRequest(b"".join(map(pack_look, keys)), len(keys))
        answer = await self._link.exchange(address, request, until)
        replies = [] if answer is None else answer.replies
        names = [self._name_in_use(address, key, reply) for key, reply in zip(keys, replies, strict=False)]
        return [name for name in names if name and name.startswith(prefix)]

    def _name_in_use(self, address: MemcachedAddress, key: bytes, reply: MetaReply) -> str:
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
