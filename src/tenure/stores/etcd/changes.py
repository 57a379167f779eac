"""The transactions that change the entries of names in etcd: joins, withdrawals and all other changes.

*A late join.* A server may carry out a join after its client has given the request up. So a client that gives up a join
without a reply writes a tombstone, and every join checks that its key has none. A client that repeats the request joins
under another key.

*The end of a PLACEHOLDER or BLOCK entry.* etcd tells no time, so each client counts by its own clock.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.etcd import requests
from tenure.stores.etcd.errors import LeaseGone
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import (
    LAST,
    TOMBSTONE,
    ContenderKey,
    ContenderKeys,
    EtcdEntry,
    Keys,
    Place,
    Written,
    number,
    read_value,
    written,
)
from tenure.stores.etcd.reads import EtcdReads
from tenure.stores.etcd.session import EtcdSession, EtcdSessions
from tenure.stores.ordered.entries import Entry, Kind, Listing, Record

LATE = 30
"""For how many seconds a tombstone refuses a join that was given up."""

SLOW = 1.0
"""The duration of a change, in seconds, after which the lease of a PLACEHOLDER entry is renewed once."""


class EtcdChanges:
    """The changes of one client."""

    def __init__(
        self,
        runtime: Runtime,
        gateway: Gateway,
        keys: Keys,
        sessions: EtcdSessions,
        reads: EtcdReads,
        *,
        contender_keys: ContenderKeys,
    ) -> None:
        """Send the changes by `gateway`, in the current session of `sessions`."""
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self._sessions = sessions
        self._reads = reads
        self._contender_keys = contender_keys

    def key_of(self, name: str, request_id: str) -> str:
        """Return the key of a contender; a key that does not exist if the request has none."""
        key = self._contender_keys.find((name, request_id))
        return self._keys.of(name, key.tail if key is not None else Kind.CONTENDER + request_id)

    # -- joining -------------------------------------------------------------------------------------------

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender, unless this session has one of this request; return its entry and a listing with it."""
        place = name, record.request_id
        value = written(record, self._runtime.wall()).packed()
        while True:
            session = await self._sessions.ensure(until)
            await self._sessions.prove(until)
            if self._sessions.current is not session:
                continue
            key = self._contender_keys.take(place, session.name)
            try:
                listing = await self._try_to_join(session, place, key, value, until, last=record.capacity > 1)
            except LeaseGone:
                self._sessions.end(session)
                continue
            mine = _contenders(listing, record.request_id)
            strays = [entry for entry in mine if entry.key != key.tail]
            if strays:  # of an earlier session
                await self._change(name, strays, [], until)
            elif mine:
                mine[0].contender_key = key
                return mine[0], listing
            elif not self._contender_keys.drop(place, key):
                raise StoreUnavailable(f"the request for {name!r} was withdrawn while it was under way: try again")

    async def _try_to_join(
        self, session: EtcdSession, place: Place, key: ContenderKey, value: str, until: float, *, last: bool = False
    ) -> Listing:
        """Add a contender if its key neither exists nor has a tombstone, and list the name.

        `last` writes the key `z`, too. It tells the holder of a lost lease that a later contender came and went. If all
        contenders before that holder are gone, as those of a lock, then whoever is there came later, and the key would
        tell nothing.
        """
        name, _ = place
        contender = self._keys.of(name, key.tail)
        list_it = {"request_range": requests.list_all(self._keys.of(name, ""))}
        body = requests.transaction(
            [requests.created(contender, 0), requests.created(self._keys.of(name, TOMBSTONE + key.tail), 0)],
            [
                requests.put(contender, value, session.lease),
                *([requests.put(self._keys.of(name, LAST), "", session.lease)] if last else []),
                list_it,
            ],
            [list_it],
        )
        unsure = list[str]()
        said = await self._gateway.exchange("kv/txn", body, until, on_unsure=partial(unsure.append, "now"))
        if not unsure:
            self._contender_keys.settle(place, key)
        return self._reads.listing(said, said["responses"][-1]["response_range"])

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request, and prevent a late join; return whether the contender was there."""
        key = self._contender_keys.find((name, request_id))
        if entry is not None:
            if key is not None and key.tail != entry.key:  # the entry is of an earlier session
                await self._remove_key(name, request_id, key, until)
            return await self._remove_entry(name, entry, until)
        if key is not None:
            return await self._remove_key(name, request_id, key, until)
        mine = _contenders(await self._reads.look(name, until), request_id)
        return bool(mine) and await self._change(name, mine, [], until)

    async def _remove_entry(self, name: str, entry: Entry, until: float) -> bool:
        """Remove a contender if its key is still the one of its position: another contender may have the key by now."""
        key = self._own(name, entry)
        others = [requests.delete(self._keys.of(name, Kind.LIGHT + entry.request_id))]
        others += await self._tombstone(name, key, until)
        body = self._removal(name, entry, others, others)
        removed = bool((await self._gateway.exchange("kv/txn", body, until, again=False)).get("succeeded"))
        if key is not None and removed:
            self._contender_keys.give_back((name, entry.request_id), key)
        elif key is not None and key.copies:
            self._contender_keys.drop((name, entry.request_id), key)
        return removed

    def _removal(
        self, name: str, entry: Entry, others: Sequence[JsonObject], failure: Sequence[JsonObject]
    ) -> JsonObject:
        """Return the transaction that removes a contender and runs `others`, or runs `failure` if it is not there."""
        contender = self._keys.of(name, entry.key)
        steps = [requests.delete(contender), *others, *self._remove_last(name, entry)]
        return requests.transaction([requests.created(contender, entry.position)], steps, failure)

    def send_removal(self, name: str, entry: Entry, until: float, told: Callable[[bool, Listing | None], None]) -> bool:
        """Send the removal of a contender of this session that has no entry besides its own.

        Return False if it cannot be sent now, or if a copy of the join may still arrive, which takes a tombstone.
        """
        key = self._own(name, entry)
        if key is None or key.copies:
            return False

        def heard(said: JsonObject | None) -> None:
            if said is not None and said.get("succeeded"):
                told(True, None)  # noqa: FBT003 - as the contract says
                self._contender_keys.give_back((name, entry.request_id), key)
                return
            listing: Listing | None = None
            with contextlib.suppress(LookupError, TypeError, ValueError, StoreError):  # not of etcd, or of a later form
                listing = None if said is None else self._reads.listing(said, said["responses"][-1]["response_range"])
            told(False, listing)  # noqa: FBT003 - as above

        list_it = {"request_range": requests.list_all(self._keys.of(name, ""))}
        return self._gateway.send("kv/txn", self._removal(name, entry, [], [list_it]), until, heard)

    async def _remove_key(self, name: str, request_id: str, key: ContenderKey, until: float) -> bool:
        """Remove the contender with a key, whose position is not known."""
        key.retired = True
        tails = key.tail, Kind.LIGHT + request_id
        steps = [requests.delete(self._keys.of(name, tail)) for tail in tails]
        steps += await self._tombstone(name, key, until)
        said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until, again=False)
        self._contender_keys.drop((name, request_id), key)
        return number(said["responses"][0]["response_delete_range"], "deleted") > 0

    async def _tombstone(self, name: str, key: ContenderKey | None, until: float) -> list[JsonObject]:
        """Return the step that writes a tombstone, if a copy of the join may still arrive."""
        if key is None or not key.copies:
            return []
        lease = await self._sessions.grant(LATE, until)
        return [requests.put(self._keys.of(name, TOMBSTONE + key.tail), "", lease)]

    def _remove_last(self, name: str, entry: Entry) -> list[JsonObject]:
        """Return the step that removes the key `z` of the last join, if no contender exists but this one."""
        if entry.capacity == 1:
            return []
        alone = requests.all_created(self._keys.of(name, Kind.CONTENDER), entry.position)
        return [requests.nested(requests.transaction([alone], [requests.delete(self._keys.of(name, LAST))]))]

    # -- changing ------------------------------------------------------------------------------------------

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one step; False if one was gone. More than fifty removals take several steps."""
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
                steps += await self._tombstone(name, self._own(name, entry), until)
        leases = [await self._lease_for(record, session, until) for record in add]
        steps += [self._put(name, record, lease) for record, lease in zip(add, leases, strict=True)]
        gone = [entry for entry in remove if entry.kind is Kind.CONTENDER]
        if len(gone) == 1 and all(record.kind is not Kind.CONTENDER for record in add):
            steps += self._remove_last(name, gone[0])
        there = [*remove, beside] if beside is not None else remove
        compares = [requests.created(self._keys.of(name, entry.key), entry.position) for entry in there]
        try:
            said = await self._gateway.exchange("kv/txn", requests.transaction(compares, steps), until, again=False)
        except LeaseGone:
            raise self._ended(session) from None
        if not said.get("succeeded"):
            return False
        for entry in gone:
            if (key := self._own(name, entry)) is not None:
                self._contender_keys.give_back((name, entry.request_id), key)
        if self._runtime.now() - began > SLOW:
            await self._count_anew(add, leases, until)
        return True

    def _own(self, name: str, entry: Entry) -> ContenderKey | None:
        """Return the key of an entry if the contender is one of this client."""
        key = self._contender_keys.find((name, entry.request_id))
        return key if key is not None and key.tail == entry.key else None

    def _put(self, name: str, record: Record, lease: int) -> JsonObject:
        value = written(record, self._runtime.wall()).packed()
        return requests.put(self._keys.of(name, record.kind + record.request_id), value, lease)

    async def _lease_for(self, record: Record, session: EtcdSession | None, until: float) -> int:
        """Return the etcd lease for an entry; 0 for none."""
        if record.kind is Kind.SIZE:
            return 0
        if record.kind is Kind.PLACEHOLDER:  # its lease begins before the change, so the clients count the end
            return await self._sessions.grant(math.ceil(record.counts_for) + 1, until)
        if session is None:
            raise StoreUnavailable("this client's session at etcd has ended: try again, which begins a new one")
        if record.kind is Kind.BLOCK:
            return await self._sessions.block_lease(session, record.counts_for, until)
        return session.lease

    async def _count_anew(self, add: Sequence[Record], leases: Sequence[int], until: float) -> None:
        for record, lease in zip(add, leases, strict=True):
            if record.kind is Kind.PLACEHOLDER:
                await self._gateway.exchange("lease/keepalive", {"ID": str(lease)}, until)

    def _ended(self, session: EtcdSession | None) -> StoreUnavailable:
        """End the session, one of whose leases is gone, and return the error to raise."""
        if session is not None:
            self._sessions.end(session)
        return StoreUnavailable("this client's session at etcd has ended: try again, which begins a new one")

    async def rewrite(self, texts: Sequence[tuple[str, Entry, str]], until: float) -> list[bool]:
        """Change the texts of contenders and wake their watchers; return False for each that is gone."""
        written = list[bool]()
        for start in range(0, len(texts), requests.LARGEST):
            steps = [self._rewrite(*each) for each in texts[start : start + requests.LARGEST]]
            said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)
            written += [bool(part["response_txn"].get("succeeded")) for part in said["responses"]]
        return written

    def _rewrite(self, name: str, entry: Entry, text: str) -> JsonObject:
        """Return the step that changes the text of a contender, if it is still there."""
        wall = entry.wall if isinstance(entry, EtcdEntry) else 0
        value = Written(entry.weight, entry.capacity, entry.before, wall=wall, text=text, request=entry.request_id)
        key = self._keys.of(name, entry.key)
        return requests.nested(
            requests.transaction([requests.created(key, entry.position)], [requests.rewrite(key, value.packed())])
        )

    async def pass_over(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Remove a contender of any session if its text still is `text`."""
        [kv] = await self._reads.read([(name, entry)], until)
        if kv is None or read_value(kv).text != text:
            return False
        key = self._keys.of(name, entry.key)
        unchanged = [requests.created(key, entry.position), requests.changed(key, number(kv, "mod_revision"))]
        steps = [requests.delete(key), requests.delete(self._keys.of(name, Kind.LIGHT + entry.request_id))]
        body = requests.transaction(unchanged, steps)
        return bool((await self._gateway.exchange("kv/txn", body, until, again=False)).get("succeeded"))

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of these entries."""
        for start in range(0, len(entries), requests.LARGEST):
            piece = entries[start : start + requests.LARGEST]
            steps = [requests.touch_if_there(self._keys.of(name, entry.key), entry.position) for entry in piece]
            await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)


def _contenders(listing: Listing, request_id: str) -> list[EtcdEntry]:
    """Return the contenders of a request."""
    return [
        entry
        for entry in listing.entries
        if isinstance(entry, EtcdEntry) and entry.kind is Kind.CONTENDER and entry.request_id == request_id
    ]


class EtcdLifetimes:
    """The time that is left to entries, as one client counts it."""

    def __init__(self, runtime: Runtime, gateway: Gateway, reads: EtcdReads, changes: EtcdChanges) -> None:
        """Read entries with `reads`, and remove with `changes` those whose time is over."""
        self._runtime = runtime
        self._gateway = gateway
        self._reads = reads
        self._changes = changes
        self._first_read_at: dict[tuple[str, str, int], float] = {}
        """The local instant at which this client first read how long an entry still counts."""

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return for how many seconds a PLACEHOLDER or BLOCK entry still counts; remove it if its time is over.

        etcd tells no time, so each client counts by its own clock from its first request on. The lease of the entry
        ends it for all clients.
        """
        place = (name, entry.key, entry.position)
        [kv] = await self._reads.read([(name, entry)], until)
        if kv is None:
            self._first_read_at.pop(place, None)
            return 0.0
        now = self._runtime.now()
        left = read_value(kv).counts_for - (now - self._first_read_at.setdefault(place, now))
        if entry.kind is Kind.PLACEHOLDER:
            said = await self._gateway.exchange("lease/timetolive", {"ID": kv.get("lease", "0")}, until)
            left = min(left, number(said, "TTL") + 1.0)
        if left > 0.0:
            self._forget_old_reads(now)
            return left
        await self._changes.change(name, [entry], [], until)
        self._first_read_at.pop(place, None)
        return 0.0

    def _forget_old_reads(self, now: float) -> None:
        """Forget requests of more than an hour ago. If a client repeats one, the entry counts a little longer."""
        if len(self._first_read_at) > requests.LARGEST:
            for place, read_at in list(self._first_read_at.items()):
                if read_at < now - 3600.0:
                    self._first_read_at.pop(place, None)
