"""What a client reads in etcd: the entries of a name, whether entries still exist, and the names in use."""

from base64 import b64decode
from collections.abc import Sequence
from typing import cast

from tenure.contracts.messages import Page
from tenure.contracts.runtime import Runtime
from tenure.stores.etcd import requests
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import KINDS, EtcdEntry, Keys, decoded, listed, number, refuse_later, session_of
from tenure.stores.etcd.session import EtcdSessions
from tenure.stores.ordered.entries import Detail, Entry, Listing

PAGE = 2000
"""How many keys one request of a listing of names reads."""


class EtcdReads:
    """The reads of one client."""

    def __init__(self, runtime: Runtime, gateway: Gateway, keys: Keys, sessions: EtcdSessions) -> None:
        """Send the reads by `gateway`; `look` also proves the session, and `check` renews it."""
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self._sessions = sessions

    async def look(self, name: str, until: float) -> Listing:
        """List the entries of a name."""
        await self._sessions.prove(until)
        found = await self._gateway.exchange("kv/range", requests.list_all(self._keys.of(name, "")), until)
        return self.listing(found, found)

    async def look_at_all(self, names: Sequence[str], until: float) -> list[Listing]:
        """List the entries of several names."""
        listings: list[Listing] = []
        for start in range(0, len(names), requests.LARGEST):
            piece = names[start : start + requests.LARGEST]
            steps = [{"request_range": requests.list_all(self._keys.of(name, ""))} for name in piece]
            said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)
            listings += [self.listing(said, found["response_range"]) for found in said["responses"]]
        return listings

    def listing(self, said: JsonObject, found: JsonObject) -> Listing:
        """Decode the keys of a name in `found`, a part of the reply `said`."""
        return listed(self._keys, found.get("kvs", []), number(said["header"], "revision"))

    async def details(
        self,
        name: str,  # noqa: ARG002 - this and `until` are of the contract
        entries: Sequence[Entry],
        until: float,  # noqa: ARG002
    ) -> list[Detail | None]:
        """Return the details of entries as they were listed. It sends no request."""
        wall = self._runtime.wall()
        return [_detail(entry, wall) if isinstance(entry, EtcdEntry) else None for entry in entries]

    async def read(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[JsonObject | None]:
        """Read the keys of entries; None for an entry that is gone."""
        found: list[JsonObject | None] = []
        for start in range(0, len(entries), requests.LARGEST):
            piece = entries[start : start + requests.LARGEST]
            steps = [requests.get(self._keys.of(name, entry.key)) for name, entry in piece]
            said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)
            found += [_same(entry, said) for (_, entry), said in zip(piece, said["responses"], strict=True)]
        return found

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Renew the session; return for each entry whether it exists in this session."""
        first, rest = entries[: requests.LARGEST], entries[requests.LARGEST :]
        steps = [requests.get(self._keys.of(name, entry.key)) for name, entry in first]
        read = await self._sessions.renew(until, steps)
        session = self._sessions.current
        if read is None or session is None:
            return [False] * len(entries)
        kvs = [_same(entry, said) for (_, entry), said in zip(first, read, strict=True)]
        kvs += await self.read(rest, until)
        return [kv is not None and session_of(kv.get("lease", "0")) == session.name for kv in kvs]

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use that begin with `prefix`.

        Each page is of the newest revision, because an older one may be compacted before the listing ends. The entries
        sort before all other keys of a name, so the first key of a name tells whether the name is in use.
        """
        begins = self._keys.of(prefix, "").removesuffix("/")
        first = rest if isinstance(rest, bytes) else begins.encode()
        found = await self._gateway.exchange("kv/range", requests.list_keys(begins, first, PAGE), until)
        keys: list[str] = [kv["key"] for kv in found.get("kvs", [])]
        names = set[str]()
        for name, tail in map(self._keys.name_of, map(decoded, keys)):
            if tail[:1] in KINDS:
                names.add(name)
            else:
                refuse_later(tail)
        return Page(sorted(names), self._keys.behind(b64decode(keys[-1])) if found.get("more") else None)


def _same(entry: Entry, said: JsonObject) -> JsonObject | None:
    """Return the key as it was read now, if it is still the entry that was listed."""
    for kv in cast("list[JsonObject]", said["response_range"].get("kvs", [])):
        if number(kv, "create_revision") == entry.position:
            return kv
    return None


def _detail(entry: EtcdEntry, wall: int) -> Detail:
    return Detail(entry.text, entry.position, max(0.0, (wall - entry.wall) / 1e6), entry.session)
