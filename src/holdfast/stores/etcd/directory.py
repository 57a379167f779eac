"""The entries of names in etcd: what is asked for each operation, and what its answer means.

An entry is a key; where it stands, and its fencing token, is the revision at which it was created. A transaction adds
an entry and lists the name, so to join takes one round trip. See `keys.py` for what is where.

*A join that comes late.* A request that was cut off may yet be carried out, after what it asked for was given up. So
who gives up a join that went unanswered leaves a tombstone, which every join compares. Who asks for it anew removes
that first, and leaves another one if it gives up again.
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
from holdfast.stores.etcd.link import Link, Said
from holdfast.stores.etcd.options import Deployment
from holdfast.stores.etcd.session import Session, Sessions
from holdfast.stores.etcd.watching import Watches, Watching
from holdfast.stores.ordered.directory import Watcher
from holdfast.stores.ordered.entries import Detail, Entry, Kind, Listing, Record

LATE = 30
"""For how many seconds a join that was given up is kept from coming."""

CLOSING = 2.0
"""The longest that the end of a session may take at the server, in seconds."""

PAGE = 2000
"""How many keys one request lists names from."""

SLOW = 1.0
"""How long a change may take, in seconds, before the lease of what is kept by it is counted anew."""


@dataclass(slots=True, eq=False)
class Watch:
    """What a request watches."""

    keys: frozenset[str]
    watching: Watching | None = None
    over: bool = False


class EtcdDirectory:
    """One client's entries, and what it sees."""

    def __init__(self, runtime: Runtime, deployment: Deployment, link: Link) -> None:
        """Prepare; nothing is connected yet. `link` was made for the same runtime."""
        self._runtime = runtime
        self._gateway = Gateway(runtime, deployment, link)
        self._keys = Keys(deployment.prefix)
        self._watches = Watches(runtime, self._gateway)
        self._sessions = Sessions(runtime, self._watches, self._keys, deployment.session_timeout, self._forget)
        self._mutex = runtime.mutex()
        self._watched: dict[str, Watch] = {}
        self._unsure: set[tuple[str, str]] = set()
        """Joins of which a copy may still be under way."""
        self._wanted: set[tuple[str, str]] = set()
        """Joins that are asked for right now, and were not given up meanwhile."""
        self._requested_at: dict[tuple[str, str, int], float] = {}
        """When we first asked how long an entry still counts."""

    @property
    def trust(self) -> float:
        """For how many seconds what the session has is certainly kept, from when a proof was asked for."""
        return self._sessions.trust

    @property
    def proved_at(self) -> float:
        """When the last proof was asked for, in this session."""
        return self._sessions.proved_at

    def session(self) -> str:
        """Return what others send messages to: the id of our lease, as etcdctl shows it."""
        session = self._sessions.current
        return "" if session is None else session.name

    def guard(self, name: str, request_id: str, token: int) -> Guard:
        """Return the condition that a contender with this token is there, for transactions of one's own."""
        return Guard(self._keys.of(name, Kind.CONTENDER + request_id).encode(), token)

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, watcher: Watcher, until: float) -> None:
        """Begin a session."""
        self._sessions.watcher = watcher
        await self._sessions.ensure(until)

    async def keep_alive(self, until: float) -> None:
        """Renew the session, if there is one; remove messages that were read."""
        await self._sessions.renew(until)
        await self._sessions.clear_channel(until)

    async def close(self) -> None:
        """End the session, and with it all that it has."""
        for request_id in list(self._watched):
            self._unwatch(request_id)
        try:
            await self._sessions.close(self._runtime.now() + CLOSING)
        finally:
            await self._gateway.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited, without a word to anyone."""
        self._gateway.abandon()

    def _forget(self) -> None:
        """Forget what belonged to a session: what it asked for can't be carried out any more."""
        self._unsure.clear()

    # -- contenders ----------------------------------------------------------------------------------------

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender unless this session has one of this request; return it, and a list that has it."""
        self._wanted.add((name, record.request_id))
        try:
            return await self._join(name, record, until)
        finally:
            self._wanted.discard((name, record.request_id))

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
        """Remove what keeps a request from coming, which was given up before it was asked for anew.

        As long as that takes, what came late may come: it is wanted again. Late, the removal itself finds nothing that
        it knows, as every tombstone is written anew.
        """
        if (name, request_id) not in self._wanted:
            raise StoreUnavailable(f"the request for {name!r} was given up meanwhile; ask again")
        self._unsure.add((name, request_id))
        key = self._keys.of(name, TOMBSTONE + request_id)
        found = await self._gateway.exchange("kv/range", {"key": encoded(key)}, until)
        for kv in found.get("kvs", []):
            written_at = requests.changed(key, number(kv, "mod_revision"))
            await self._gateway.exchange("kv/txn", requests.transaction([written_at], [requests.delete(key)]), until)

    async def _try_to_join(self, session: Session, name: str, request_id: str, value: str, until: float) -> Listing:
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
        """Remove the contender of a request, and see to it that it does not come later. True if it was there."""
        self._wanted.discard((name, request_id))
        steps = [requests.delete(self._keys.of(name, tail + request_id)) for tail in (Kind.CONTENDER, Kind.LIGHT)]
        steps += await self._tombstone(name, request_id, until)
        if entry is not None and entry.token:
            steps.append(self._remove_last(name, entry.token))
        said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until, again=False)
        self._note_removed(name, request_id)
        return number(said["responses"][0]["response_delete_range"], "deleted") > 0

    async def _tombstone(self, name: str, request_id: str, until: float) -> list[Said]:
        """Return what keeps a join from coming late, if it may."""
        if (name, request_id) not in self._unsure:
            return []
        lease = await self._sessions.grant(LATE, until)
        return [requests.put(self._keys.of(name, TOMBSTONE + request_id), "", lease)]

    def _remove_last(self, name: str, token: int) -> Said:
        """Return the step that removes what tells of the last join, if nobody else is there."""
        alone = requests.all_created(self._keys.of(name, Kind.CONTENDER), token)
        return requests.nested(requests.transaction([alone], [requests.delete(self._keys.of(name, LAST))]))

    def _note_removed(self, name: str, request_id: str) -> None:
        self._unsure.discard((name, request_id))

    # -- looking -------------------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Listing:
        """List a name."""
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
        """Tell the rest of entries, as they were listed: nothing has to be asked for that."""
        wall = self._runtime.wall()
        return [_detail(entry, wall) if isinstance(entry, Seen) else None for entry in entries]

    async def _read(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[Said | None]:
        """Read entries; None of what is gone."""
        found: list[Said | None] = []
        for start in range(0, len(entries), requests.LARGEST):
            piece = entries[start : start + requests.LARGEST]
            steps = [requests.get(self._keys.of(name, entry.key)) for name, entry in piece]
            said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)
            found += [_same(entry, said) for (_, entry), said in zip(piece, said["responses"], strict=True)]
        return found

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Renew the session; tell which entries of names are there, in it."""
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

        Each page is of the newest revision: an older one may be compacted away before the listing is over. The tails of
        entries come before all others of a name, so the first key of a name tells whether it is in use.
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
        """Remove and add in one step (of more than fifty, in several); False if something was not there any more."""
        self._wanted.difference_update((name, entry.request_id) for entry in remove if entry.kind is Kind.CONTENDER)
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
        replaced = {record.kind + record.request_id for record in add}  # a transaction does not take a key twice
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

    async def _lease_for(self, record: Record, session: Session | None, until: float) -> int:
        """Return the lease that an entry belongs to; 0: none."""
        if record.kind is Kind.SIZE:
            return 0
        if record.kind is Kind.KEPT:  # it begins before the change does, but the clients count the end by themselves
            return await self._sessions.grant(math.ceil(record.keep) + 1, until)
        if session is None:
            raise StoreUnavailable("the session at etcd has ended; ask again")
        if record.kind is Kind.BLOCK:
            return await self._sessions.block_lease(session, record.keep, until)
        return session.lease

    async def _count_anew(self, add: Sequence[Record], leases: Sequence[int], until: float) -> None:
        for record, lease in zip(add, leases, strict=True):
            if record.kind is Kind.KEPT:
                await self._gateway.exchange("lease/keepalive", {"ID": str(lease)}, until)

    def _ended(self, session: Session | None) -> StoreUnavailable:
        """Note that a lease that belongs to the session is gone."""
        if session is not None:
            self._sessions.end(session)
        return StoreUnavailable("the session at etcd has ended; ask again")

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Change the text of an entry; wakes who watches it. False if it is gone."""
        [kv] = await self._read([(name, entry)], until)
        if kv is None:
            return False
        value = read_value(kv)
        value.text = text
        key = self._keys.of(name, entry.key)
        body = requests.transaction([requests.created(key, entry.token)], [requests.rewrite(key, value.packed())])
        return bool((await self._gateway.exchange("kv/txn", body, until)).get("succeeded"))

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake who watches these."""
        for start in range(0, len(entries), requests.LARGEST):
            piece = entries[start : start + requests.LARGEST]
            steps = [requests.touch_if_there(self._keys.of(name, entry.key), entry.token) for entry in piece]
            await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return for how many seconds a KEPT or BLOCK entry still counts; remove it if it is over.

        The store tells no time, so each client counts by its own clock from when it first asked. The lease ends it,
        whoever asks.
        """
        place = (name, entry.key, entry.token)
        [kv] = await self._read([(name, entry)], until)
        if kv is None:
            self._requested_at.pop(place, None)
            return 0.0
        now = self._runtime.now()
        left = read_value(kv).keep - (now - self._requested_at.setdefault(place, now))
        if entry.kind is Kind.KEPT:
            said = await self._gateway.exchange("lease/timetolive", {"ID": kv.get("lease", "0")}, until)
            left = min(left, number(said, "TTL") + 1.0)
        if left > 0.0:
            self._forget_asked(now)
            return left
        await self._change(name, [entry], [], until)
        self._requested_at.pop(place, None)
        return 0.0

    def _forget_asked(self, now: float) -> None:
        """Keep no note of what was asked for long ago; if it is asked for again, it counts a little longer."""
        if len(self._requested_at) > requests.LARGEST:
            for place, asked_at in list(self._requested_at.items()):
                if asked_at < now - 3600.0:
                    self._requested_at.pop(place, None)

    # -- watching and telling --------------------------------------------------------------------------------

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Have `woken(request_id)` called once when one of these goes or changes, or when the watch is lost.

        One entry is watched by its key; of several, the whole name is, and what concerns others is passed over.
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
        """Tell whether a request watches just these, and has heard of nothing yet: then it goes on."""
        with self._mutex:
            watch = self._watched.get(request_id)
            return watch is not None and watch.keys == keys and watch.watching is not None and not watch.over

    def _event(self, request_id: str, watch: Watch, event: Said) -> None:
        if decoded(event["kv"]["key"]) in watch.keys:
            self._wake(request_id, watch)

    def _wake(self, request_id: str, watch: Watch) -> None:
        """Tell, once, that what a request watched has changed, or that nobody watches it any more."""
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
        """Send a message to a session; it is lost if that has ended."""
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
    """Return what was read of an entry, if it is the same that was listed."""
    for kv in cast("list[Said]", said["response_range"].get("kvs", [])):
        if number(kv, "create_revision") == entry.token:
            return kv
    return None


def _detail(entry: Seen, wall: int) -> Detail:
    return Detail(entry.text, entry.token, max(0.0, (wall - entry.wall) / 1e6), entry.session)
