"""The transactions that change the entries of names in etcd: joins, withdrawals and all other changes.

*A late join.* A server may carry out a join after its client has given the request up. So a client that gives up a join
without a reply writes a tombstone, and every join checks that there is none. A client that repeats the request first
removes the tombstone, and writes another one if it gives up again.
"""

import math
from collections.abc import Sequence
from functools import partial

from holdfast.contracts.runtime import Runtime
from holdfast.errors import StoreUnavailable
from holdfast.stores.etcd import requests
from holdfast.stores.etcd.errors import LeaseGone
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.keys import LAST, TOMBSTONE, Keys, encoded, number, read_value, written
from holdfast.stores.etcd.link import Said
from holdfast.stores.etcd.reads import EtcdReads
from holdfast.stores.etcd.session import EtcdSession, EtcdSessions
from holdfast.stores.ordered.entries import Entry, Kind, Listing, Record

LATE = 30
"""For how many seconds a tombstone refuses a join that was given up."""

SLOW = 1.0
"""The duration of a change, in seconds, after which the lease of a PLACEHOLDER entry is renewed once."""


class EtcdChanges:
    """The changes of one client."""

    def __init__(
        self, runtime: Runtime, gateway: Gateway, keys: Keys, sessions: EtcdSessions, reads: EtcdReads
    ) -> None:
        """Send the changes by `gateway`, in the current session of `sessions`."""
        self._runtime = runtime
        self._gateway = gateway
        self._keys = keys
        self._sessions = sessions
        self._reads = reads
        self._unsure: set[tuple[str, str]] = set()
        """The joins of which a copy may still be under way."""
        self._joining: set[tuple[str, str]] = set()
        """The joins that are under way and were not given up meanwhile."""

    def forget_unsure_joins(self) -> None:
        """Forget the unsure joins of an ended session: no server can carry them out any more."""
        self._unsure.clear()

    # -- joining -------------------------------------------------------------------------------------------

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
        return self._reads.listing(said, said["responses"][-1]["response_range"])

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request, and prevent a late join; return whether the contender was there."""
        self._joining.discard((name, request_id))
        steps = [requests.delete(self._keys.of(name, tail + request_id)) for tail in (Kind.CONTENDER, Kind.LIGHT)]
        steps += await self._tombstone(name, request_id, until)
        if entry is not None and entry.position:
            steps.append(self._remove_last(name, entry.position))
        said = await self._gateway.exchange("kv/txn", requests.transaction([], steps), until, again=False)
        self._note_removed(name, request_id)
        return number(said["responses"][0]["response_delete_range"], "deleted") > 0

    async def _tombstone(self, name: str, request_id: str, until: float) -> list[Said]:
        """Return the step that writes a tombstone, if a copy of the join may still arrive."""
        if (name, request_id) not in self._unsure:
            return []
        lease = await self._sessions.grant(LATE, until)
        return [requests.put(self._keys.of(name, TOMBSTONE + request_id), "", lease)]

    def _remove_last(self, name: str, position: int) -> Said:
        """Return the step that removes the key `z` of the last join, if no other contender exists."""
        alone = requests.all_created(self._keys.of(name, Kind.CONTENDER), position)
        return requests.nested(requests.transaction([alone], [requests.delete(self._keys.of(name, LAST))]))

    def _note_removed(self, name: str, request_id: str) -> None:
        self._unsure.discard((name, request_id))

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
            steps.append(self._remove_last(name, gone[0].position))
        there = [*remove, beside] if beside is not None else remove
        compares = [requests.created(self._keys.of(name, entry.key), entry.position) for entry in there]
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

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Change the text of an entry and wake its watchers; return False if the entry is gone."""
        [kv] = await self._reads.read([(name, entry)], until)
        if kv is None:
            return False
        value = read_value(kv)
        value.text = text
        key = self._keys.of(name, entry.key)
        body = requests.transaction([requests.created(key, entry.position)], [requests.rewrite(key, value.packed())])
        return bool((await self._gateway.exchange("kv/txn", body, until)).get("succeeded"))

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of these entries."""
        for start in range(0, len(entries), requests.LARGEST):
            piece = entries[start : start + requests.LARGEST]
            steps = [requests.touch_if_there(self._keys.of(name, entry.key), entry.position) for entry in piece]
            await self._gateway.exchange("kv/txn", requests.transaction([], steps), until)


def _contender(listing: Listing, request_id: str) -> Entry | None:
    return next(
        (each for each in listing.entries if each.kind is Kind.CONTENDER and each.request_id == request_id), None
    )
