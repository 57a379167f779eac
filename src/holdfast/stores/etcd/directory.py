"""The directory in etcd: the requests of each operation, and the meaning of the replies.

An entry is a key. The revision at which the key was created is its order and its fencing token. One transaction adds an
entry and lists the name, so a join takes one round trip. `keys.py` lists the keys.

*A late join.* A server may carry out a join after its client has given the request up. So a client that gives up a join
without a reply writes a tombstone, and every join checks that there is none. A client that repeats the request first
removes the tombstone, and writes another one if it gives up again.
"""

import math
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from holdfast.contracts.messages import Page
from holdfast.contracts.runtime import Runtime
from holdfast.errors import StoreUnavailable
from holdfast.guard import Guard
from holdfast.stores.etcd import requests
from holdfast.stores.etcd.errors import LeaseGone
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.keys import (
    KINDS,
    LAST,
    TOMBSTONE,
    Keys,
    Seen,
    after,
    decoded,
    encoded,
    listed,
    number,
    read_value,
    session_of,
    written,
)
from holdfast.stores.etcd.link import EtcdLink, Said
from holdfast.stores.etcd.options import EtcdDeployment
from holdfast.stores.etcd.session import EtcdSession, EtcdSessions
from holdfast.stores.etcd.watching import EtcdWatches, Watching
from holdfast.stores.ordered.directory import Watcher
from holdfast.stores.ordered.entries import Detail, Entry, Kind, Listing, Record

LATE = 30
"""For how many seconds a tombstone refuses a join that was given up."""

CLOSING = 2.0
"""The longest that the end of a session may take at the server, in seconds."""

PAGE = 2000
"""How many keys one request of a listing of names reads."""

SLOW = 1.0
"""The duration of a change, in seconds, after which the lease of a KEPT entry is renewed once."""


@dataclass(slots=True, eq=False)
class Watch:
    """The watch of one request."""

    keys: frozenset[str]
    watching: Watching | None = None
    over: bool = False


class EtcdDirectory:
    """One client's session in etcd, and its view of all entries."""

    def __init__(self, runtime: Runtime, deployment: EtcdDeployment, link: EtcdLink) -> None:
        """Prepare the directory; nothing is connected yet. `link` must be made for the same runtime."""
        self._runtime = runtime
        self._gateway = Gateway(runtime, deployment, link)
        self._keys = Keys(deployment.prefix)
        self._watches = EtcdWatches(runtime, self._gateway)
        self._sessions = EtcdSessions(runtime, self._watches, self._keys, deployment.session_timeout, self._forget)
        self._mutex = runtime.mutex()
        self._watched: dict[str, Watch] = {}
        self._unsure: set[tuple[str, str]] = set()
        """The joins of which a copy may still be under way."""
        self._joining: set[tuple[str, str]] = set()
        """The joins that are under way and were not given up meanwhile."""
        self._first_read_at: dict[tuple[str, str, int], float] = {}
        """The local instant at which this client first read how long an entry still counts."""

    @property
    def trust(self) -> float:
        """For how many seconds after the request of a proof the entries of the session certainly stay."""
        return self._sessions.trust

    @property
    def proved_at(self) -> float:
        """The local instant at which the last proof of this session was requested."""
        return self._sessions.proved_at

    def session(self) -> str:
        """Return the address of the session for messages: the id of its lease, as etcdctl shows it."""
        session = self._sessions.current
        return "" if session is None else session.name

    def guard(self, name: str, request_id: str, token: int) -> Guard:
        """Return the condition for the user's own transactions that a contender with this token exists."""
        return Guard(self._keys.of(name, Kind.CONTENDER + request_id).encode(), token)

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, watcher: Watcher, until: float) -> None:
        """Begin a session."""
        self._sessions.watcher = watcher
        await self._sessions.ensure(until)

    async def keep_alive(self, until: float) -> None:
        """Renew the session if there is one, and delete the messages that were read."""
        await self._sessions.renew(until)
        await self._sessions.clear_channel(until)

    async def close(self) -> None:
        """End the session, and remove all that was added in it."""
        for request_id in list(self._watched):
            self._unwatch(request_id)
        try:
            await self._sessions.close(self._runtime.now() + CLOSING)
        finally:
            await self._gateway.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited, without a message to any other process."""
        self._gateway.abandon()

    def _forget(self) -> None:
        """Forget the unsure joins of an ended session: no server can carry them out any more."""
        self._unsure.clear()

    # -- contenders ----------------------------------------------------------------------------------------

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender, unless this session has one of this request; return its entry and a listing with it."""
        self._joining.add((name, record.request_id))
        try:
            return await self._join(name, record, until)
        finally:
            self._joining.discard((name, record.request_id))

    async def _join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        value = written(record, self._runtime.wall()).packed()
        while True:
            session = await self._sessions.ensure(until)
            await self._sessions.prove(until)
            if self._sessions.current is not session:
                continue
            try:
                listing = await self._try_to_join(session, name, record.request_id, value, until)
            except LeaseGone:
                self._sessions.end(session)
                continue
            mine = _contender(listing, record.request_id)
            if mine is None:
                await self._unbury(name, record.request_id, until)
            elif mine.session == session.name:
                return mine, listing
            else:
                await self._change(name, [mine], [], until)

    async def _unbury(self, name: str, request_id: str, until: float) -> None:
        """Remove the tombstone of a request that was given up earlier and is repeated now.

        A late copy of the join may arrive during the removal; the request is wanted again, so that does no harm. A late
        copy of the removal deletes nothing: it compares the revision, and every tombstone has a new one.
        """
        if (name, request_id) not in self._joining:
            raise StoreUnavailable(f"the request for {name!r} was withdrawn while it was under way: try again")
        self._unsure.add((name, request_id))
        key = self._keys.of(name, TOMBSTONE + request_id)
        found = await self._gateway.exchange("kv/range", {"key": encoded(key)}, until)
        for kv in found.get("kvs", []):
            written_at = requests.changed(key, number(kv, "mod_revision"))
            await self._gateway.exchange("kv/txn", requests.transaction([written_at], [requests.delete(key)]), until)

    async def _try_to_join(self, session: EtcdSession, name: str, request_id: str, value: str, until: float) -> Listing:
        """Add a contender if there is none of this request, and list the name."""
        key = self._keys.of(name, Kind.CONTENDER + request_id)
        last = self._keys.of(name, LAST)
        list_it = {"request_range": requests.list_all(self._keys.of(name, ""))}
        body = requests.transaction(
            [requests.created(key, 0), requests.created(self._keys.of(name, TOMBSTONE + request_id), 0)],
            [
                requests.put(key, value, session.lease),
                requests.put(last, "", session.lease),
                list_it,
            ],
            [list_it],
        )
        unsure = ["before"] if (name, request_id) in self._unsure else []
        self._unsure.add((name, request_id))
        said = await self._gateway.exchange("kv/txn", body, until, on_unsure=partial(unsure.append, "now"))
        if not unsure:
            self._unsure.discard((name, request_id))
        return self._listing(said, said["responses"][-1]["response_range"])

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request, and prevent a late join; return whether the contender was there."""
        self._joining.discard((name, request_id))
        steps = [requests.delete(self._keys.of(name, tail + request_id)) for tail in (Kind.CONTENDER, Kind.LIGHT)]
        steps += await self._tombstone(name, request_id, until)
        if entry is not None and entry.token:
            steps.append(self._remove_last(name, entry.token))
        said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until, again=False)
        self._note_removed(name, request_id)
        return number(said["responses"][0]["response_delete_range"], "deleted") > 0

    async def _tombstone(self, name: str, request_id: str, until: float) -> list[Said]:
        """Return the step that writes a tombstone, if a copy of the join may still arrive."""
        if (name, request_id) not in self._unsure:
            return []
        lease = await self._sessions.grant(LATE, until)
        return [requests.put(self._keys.of(name, TOMBSTONE + request_id), "", lease)]

    def _remove_last(self, name: str, token: int) -> Said:
        """Return the step that removes the key `z` of the last join, if no other contender exists."""
        alone = requests.all_created(self._keys.of(name, Kind.CONTENDER), token)
        return requests.nested(requests.transaction([alone], [requests.delete(self._keys.of(name, LAST))]))

    def _note_removed(self, name: str, request_id: str) -> None:
        self._unsure.discard((name, request_id))

    # -- looking -------------------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Listing:
        """List the entries of a name."""
        await self._sessions.prove(until)
        found = await self._gateway.exchange("kv/range", requests.list_all(self._keys.of(name, "")), until)
        return self._listing(found, found)

    def _listing(self, said: Said, found: Said) -> Listing:
        return listed(self._keys, found.get("kvs", []), number(said["header"], "revision"))

    async def details(
        self,
        name: str,  # noqa: ARG002 - this and `until` are of the contract
        entries: Sequence[Entry],
        until: float,  # noqa: ARG002
    ) -> list[Detail | None]:
        """Return the details of entries as they were listed. It sends no request."""
        wall = self._runtime.wall()
        return [_detail(entry, wall) if isinstance(entry, Seen) else None for entry in entries]

    async def _read(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[Said | None]:
        """Read the keys of entries; None for an entry that is gone."""
        found: list[Said | None] = []
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
        session = self.session()
        if read is None or not session:
            return [False] * len(entries)
        kvs = [_same(entry, said) for (_, entry), said in zip(first, read, strict=True)]
        kvs += await self._read(rest, until)
        return [kv is not None and session_of(kv.get("lease", "0")) == session for kv in kvs]

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use that begin with `prefix`.

        Each page is of the newest revision, because an older one may be compacted before the listing ends. The entries
        sort before all other keys of a name, so the first key of a name tells whether the name is in use.
        """
        begins = self._keys.of(prefix, "").removesuffix("/")
        first = rest if isinstance(rest, bytes) else begins.encode()
        found = await self._gateway.exchange("kv/range", requests.list_keys(begins, first, PAGE), until)
        keys: list[str] = [kv["key"] for kv in found.get("kvs", [])]
        tails = map(self._keys.name_of, map(decoded, keys))
        names = {name for name, tail in tails if tail[:1] in KINDS}
        return Page(sorted(names), self._keys.behind(b64decode(keys[-1])) if found.get("more") else None)

    # -- changing ------------------------------------------------------------------------------------------

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one step; False if one was gone. More than fifty removals take several steps."""
        self._joining.difference_update((name, entry.request_id) for entry in remove if entry.kind is Kind.CONTENDER)
        while len(remove) > requests.LARGEST:
            if not await self._change(name, remove[: requests.LARGEST], [], until, beside):
                return False
            remove = remove[requests.LARGEST :]
        return await self._change(name, remove, add, until, beside)

    async def _change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        began = self._runtime.now()
        session = self._sessions.current
        replaced = {record.kind + record.request_id for record in add}  # a transaction may not write a key twice
        steps = [requests.delete(self._keys.of(name, entry.key)) for entry in remove if entry.key not in replaced]
        for entry in remove:
            if entry.kind is Kind.CONTENDER:
                steps.append(requests.delete(self._keys.of(name, Kind.LIGHT + entry.request_id)))
                steps += await self._tombstone(name, entry.request_id, until)
        leases = [await self._lease_for(record, session, until) for record in add]
        steps += [self._put(name, record, lease) for record, lease in zip(add, leases, strict=True)]
        gone = [entry for entry in remove if entry.kind is Kind.CONTENDER]
        if len(gone) == 1 and all(record.kind is not Kind.CONTENDER for record in add):
            steps.append(self._remove_last(name, gone[0].token))
        there = [*remove, beside] if beside is not None else remove
        compares = [requests.created(self._keys.of(name, entry.key), entry.token) for entry in there]
        try:
            said = await self._gateway.exchange("kv/txn", requests.transaction(compares, steps), until, again=False)
        except LeaseGone:
            raise self._ended(session) from None
        if not said.get("succeeded"):
            return False
        for entry in gone:
            self._note_removed(name, entry.request_id)
        if self._runtime.now() - began > SLOW:
            await self._count_anew(add, leases, until)
        return True

    def _put(self, name: str, record: Record, lease: int) -> Said:
        value = written(record, self._runtime.wall()).packed()
        return requests.put(self._keys.of(name, record.kind + record.request_id), value, lease)

    async def _lease_for(self, record: Record, session: EtcdSession | None, until: float) -> int:
        """Return the etcd lease for an entry; 0 for none."""
        if record.kind is Kind.SIZE:
            return 0
        if record.kind is Kind.KEPT:  # this lease begins before the change, so the clients count the end themselves
            return await self._sessions.grant(math.ceil(record.keep) + 1, until)
        if session is None:
            raise StoreUnavailable("this client's session at etcd has ended: try again, which begins a new one")
        if record.kind is Kind.BLOCK:
            return await self._sessions.block_lease(session, record.keep, until)
        return session.lease

    async def _count_anew(self, add: Sequence[Record], leases: Sequence[int], until: float) -> None:
        for record, lease in zip(add, leases, strict=True):
            if record.kind is Kind.KEPT:
                await self._gateway.exchange("lease/keepalive", {"ID": str(lease)}, until)

    def _ended(self, session: EtcdSession | None) -> StoreUnavailable:
        """End the session, one of whose leases is gone, and return the error to raise."""
        if session is not None:
            self._sessions.end(session)
        return StoreUnavailable("this client's session at etcd has ended: try again, which begins a new one")

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Change the text of an entry and wake its watchers; return False if the entry is gone."""
        [kv] = await self._read([(name, entry)], until)
        if kv is None:
            return False
        value = read_value(kv)
        value.text = text
        key = self._keys.of(name, entry.key)
        body = requests.transaction([requests.created(key, entry.token)], [requests.rewrite(key, value.packed())])
        return bool((await self._gateway.exchange("kv/txn", body, until)).get("succeeded"))

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of these entries."""
        for start in range(0, len(entries), requests.LARGEST):
            piece = entries[start : start + requests.LARGEST]
            steps = [requests.touch_if_there(self._keys.of(name, entry.key), entry.token) for entry in piece]
            await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return for how many seconds a KEPT or BLOCK entry still counts; remove it if its time is over.

        etcd tells no time, so each client counts by its own clock from its first request on. The lease of the entry
        ends it for all clients.
        """
        place = (name, entry.key, entry.token)
        [kv] = await self._read([(name, entry)], until)
        if kv is None:
            self._first_read_at.pop(place, None)
            return 0.0
        now = self._runtime.now()
        left = read_value(kv).keep - (now - self._first_read_at.setdefault(place, now))
        if entry.kind is Kind.KEPT:
            said = await self._gateway.exchange("lease/timetolive", {"ID": kv.get("lease", "0")}, until)
            left = min(left, number(said, "TTL") + 1.0)
        if left > 0.0:
            self._forget_old_reads(now)
            return left
        await self._change(name, [entry], [], until)
        self._first_read_at.pop(place, None)
        return 0.0

    def _forget_old_reads(self, now: float) -> None:
        """Forget requests of more than an hour ago. If a client repeats one, the entry counts a little longer."""
        if len(self._first_read_at) > requests.LARGEST:
            for place, read_at in list(self._first_read_at.items()):
                if read_at < now - 3600.0:
                    self._first_read_at.pop(place, None)

    # -- watches and messages --------------------------------------------------------------------------------

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Have `woken(request_id)` called once when one of these is removed or changes, or when the watch is lost.

        A single entry is watched by its key. For several entries the whole name is watched, and other events are
        ignored.
        """
        keys = frozenset(self._keys.of(name, entry.key) for entry in entries)
        if entries and self._is_watching(request_id, keys):
            return True
        self._unwatch(request_id)
        if not entries:
            return True
        watch = Watch(keys)
        with self._mutex:
            self._watched[request_id] = watch
        whole = self._keys.of(name, "")
        span = (next(iter(keys)), "") if len(keys) == 1 else (whole, after(whole))
        make = partial(
            Watching, self._runtime, partial(self._event, request_id, watch), partial(self._wake, request_id, watch)
        )
        revision = min(entry.revision if isinstance(entry, Seen) else entry.token for entry in entries)
        try:
            watching = await self._watches.begin(make, span, revision + 1, until)
        except BaseException:
            self._unwatch(request_id)
            raise
        with self._mutex:
            watch.watching = watching
        if watch.over:
            watching.close()
        return True

    def _is_watching(self, request_id: str, keys: frozenset[str]) -> bool:
        """Return whether a request watches exactly these keys already and has seen no event."""
        with self._mutex:
            watch = self._watched.get(request_id)
            return watch is not None and watch.keys == keys and watch.watching is not None and not watch.over

    def _event(self, request_id: str, watch: Watch, event: Said) -> None:
        if decoded(event["kv"]["key"]) in watch.keys:
            self._wake(request_id, watch)

    def _wake(self, request_id: str, watch: Watch) -> None:
        """Wake the request, once, because a watched key changed or its watch was lost."""
        with self._mutex:
            told, watch.over = watch.over, True
            if self._watched.get(request_id) is watch:
                del self._watched[request_id]
        if watch.watching is not None:
            watch.watching.close()
        if not told and self._sessions.watcher is not None:
            self._sessions.watcher.woken(request_id)

    def _unwatch(self, request_id: str) -> None:
        with self._mutex:
            watch = self._watched.pop(request_id, None)
            if watch is not None:
                watch.over = True
        if watch is not None and watch.watching is not None:
            watch.watching.close()

    async def tell(self, session: str, message: str, until: float) -> None:
        """Send a message to a session. The message is lost if the session has ended."""
        key = f"{self._keys.channel(session)}/{self._runtime.new_id()}"
        body = requests.transaction([], [requests.put(key, message, int(session, 16))])
        try:
            await self._gateway.exchange("kv/txn", body, until, again=False)
        except LeaseGone:
            return


def _contender(listing: Listing, request_id: str) -> Entry | None:
    return next(
        (each for each in listing.entries if each.kind is Kind.CONTENDER and each.request_id == request_id), None
    )


def _same(entry: Entry, said: Said) -> Said | None:
    """Return the key as it was read now, if it is still the entry that was listed."""
    for kv in cast("list[Said]", said["response_range"].get("kvs", [])):
        if number(kv, "create_revision") == entry.token:
            return kv
    return None


def _detail(entry: Seen, wall: int) -> Detail:
    return Detail(entry.text, entry.token, max(0.0, (wall - entry.wall) / 1e6), entry.session)
