"""The changes: entries are removed and added in one transaction, and their data are rewritten.

A contender is added once in a session, and a join without a reply is withdrawn for good.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.ordered import Entry, Kind, Listing, Record
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import ANSWERS, Code, to_store_error
from tenure.stores.zookeeper.library import KazooClient, Result, Stat, codes
from tenure.stores.zookeeper.names import OURS, node_of
from tenure.stores.zookeeper.nodes import Clock, ZooKeeperNodes
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.reading import JoinedContenders, ZooKeeperReader
from tenure.stores.zookeeper.session import ZooKeeperSession


class ZooKeeperJoins:
    """Adds and withdraws the contenders of one client."""

    def __init__(
        self,
        session: ZooKeeperSession,
        nodes: ZooKeeperNodes,
        reader: ZooKeeperReader,
        joined: JoinedContenders,
        *,
        clock: Clock,
        now: Callable[[], float],
        title: str,
    ) -> None:
        """Record each join in `joined`; errors name the ensemble by its `title`."""
        self._session = session
        self._nodes = nodes
        self._reader = reader
        self._joined = joined
        self._clock = clock
        self._now = now
        self._title = title

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender, or find the one that an earlier join added; return its entry and a listing with it."""
        while True:
            await self._session.ready(until)
            found = None
            if self._joined.may_have(name, record.request_id):
                found = await self._find(name, record.request_id, until)
            if found is None:
                found = await self._add(name, record, until)
            if found is not None and found[0].session == self._session.name():
                return found
            if self._now() >= until:
                raise OutcomeUnknown(
                    f"the session at {self._title} ended while the request for {name!r} was under way: try again"
                )

    async def _add(self, name: str, record: Record, until: float) -> tuple[Entry, Listing] | None:
        """Create a contender and list the name in one round trip; None if the caller must try again."""
        parent = self._nodes.path(name)
        self._joined.send(name, record.request_id)
        self._nodes.use(name)

        def send(client: KazooClient) -> list[Result]:
            path, data = f"{parent}/{names.stem(record)}", names.write_data(0.0, record.text)
            create = client.create_async(path, data, ephemeral=True, sequence=True, include_data=True)
            return [create, client.get_children_async(parent, include_data=True)]

        answers = await self._session.exchange(until, send, writes=True)
        made, listed = answers.values
        if isinstance(made, Code) or isinstance(listed, Code):
            self._joined.forget(name, record.request_id)
            await self._nodes.make(parent, until)
            return None
        path, stat = made
        entry = _entry(path.rpartition("/")[2], stat, answers.zxid)
        if entry is None or entry.session != self._session.name():
            return None
        self._clock.wrote(stat)
        self._session.prove(answers)
        self._joined.add(name, record.request_id, entry)
        listing = self._reader.listing(name, listed, stat.czxid)
        strays = [each for each in listing.entries if _is_of(each, record.request_id) and each.order != entry.order]
        if strays:  # entries of a session that has just ended, or is about to end
            await self._nodes.delete(name, strays, until)
            listing = await self._reader.look(name, until)
        return entry, listing

    async def _find(self, name: str, request_id: str, until: float) -> tuple[Entry, Listing] | None:
        """Return the contender of an earlier join and a listing with it; None if this session has none."""
        listing = await self._reader.look(name, until)
        found = [each for each in listing.entries if _is_of(each, request_id)]
        paths = [self._nodes.path_of(name, each) for each in found]
        stats = await self._nodes.each(until, paths, lambda client, path: client.exists_async(path), writes=False)
        entries = [
            _entry(node_of(each), stat, names.since(each))
            for each, stat in zip(found, stats, strict=True)
            if stat is not None
        ]
        ours = [each for each in entries if each is not None and each.session == self._session.name()]
        keep = ours[0] if ours else None
        strays = [each for each in entries if each is not None and (keep is None or each.order != keep.order)]
        if strays:
            await self._nodes.delete(name, strays, until)
            listing = await self._reader.look(name, until)
        if keep is None:
            self._joined.forget(name, request_id)
            return None
        self._joined.add(name, request_id, keep)
        return keep, listing

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request. The server carries out a join under way before it replies to the look."""
        if entry is None:
            listing = await self._reader.look(name, until)
            found = [each for each in listing.entries if _is_of(each, request_id)]
        else:
            found = [entry]
        removed = await self._nodes.delete(name, found, until)
        self._joined.forget(name, request_id)
        return removed


def _entry(node: str, stat: Stat, since: int) -> Entry | None:
    entry = names.read_entry(node, since)
    if entry is not None:
        entry.position, entry.session = stat.czxid, names.session_name(stat.ephemeralOwner)
    return entry


def _is_of(entry: Entry, request_id: str) -> bool:
    return entry.kind is Kind.CONTENDER and entry.request_id == request_id


class ZooKeeperChanges:
    """Changes the entries of names."""

    def __init__(
        self,
        session: ZooKeeperSession,
        nodes: ZooKeeperNodes,
        joined: JoinedContenders,
        access: ZooKeeperAccess,
        now: Callable[[], float],
    ) -> None:
        """Change the nodes; `access` is named in errors."""
        self._session = session
        self._nodes = nodes
        self._joined = joined
        self._access = access
        self._now = now

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one transaction; return False if an entry of `remove`, or `beside`, was gone."""
        adds = list(add)
        while remove or adds:
            result = await self._commit(name, remove, adds, until, beside)
            if result is None:
                for entry in remove:
                    if entry.kind is Kind.CONTENDER:
                        self._joined.forget(name, entry.request_id)
                return True
            place, code = result
            demanded = len(remove) + (beside is not None)
            if place < demanded:
                if code is not Code.NO_NODE:
                    raise OutcomeUnknown(f"{self._access.title} refused to remove an entry: try again")
                return False
            if code is Code.NODE_EXISTS:  # an earlier attempt added this entry
                del adds[place - demanded]
            elif code is Code.NO_NODE:
                await self._nodes.make(self._nodes.path(name), until)
            if self._now() >= until:
                raise StoreUnavailable(
                    f"a change at {self._access.title} timed out: try again, or raise `timeout` or `operation_timeout`"
                )
        return True

    async def _commit(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None
    ) -> tuple[int, Code] | None:
        """Send a transaction; return which part of it the server refused, and why, or None."""
        self._nodes.use(name)

        def send(client: KazooClient) -> list[Result]:
            transaction = client.transaction()
            if beside is not None:
                transaction.check(self._nodes.path_of(name, beside), -1)
            for entry in remove:
                transaction.delete(self._nodes.path_of(name, entry))
            for record in add:
                node = names.whole(record) if names.is_placed(record) else names.stem(record)
                transaction.create(
                    f"{self._nodes.path(name)}/{node}",
                    names.write_data(record.counts_for, record.text),
                    ephemeral=record.kind in OURS,
                    sequence=not names.is_placed(record),
                )
            return [transaction.commit_async()]

        answers = await self._session.exchange(until, send, writes=True)
        parts: list[Any] = answers.values[0]
        refused = [(n, code) for n, code in enumerate(codes(parts)) if code in ANSWERS]
        if refused:
            return refused[0][0], Code(refused[0][1])
        errors = [part for part in parts if isinstance(part, Exception)]
        if errors:
            worst = next(
                (each for each, code in zip(parts, codes(parts), strict=True) if code not in {0, -2}), errors[0]
            )
            raise to_store_error(self._access, worst, writes=True)
        self._session.prove(answers)
        return None

    async def rewrite(self, texts: Sequence[tuple[str, Entry, str]], until: float) -> list[bool]:
        """Write new texts into contenders; return False for each that is gone."""
        data = {self._nodes.path_of(name, entry): names.write_data(0.0, text) for name, entry, text in texts}
        answers = await self._nodes.each(
            until, list(data), lambda client, path: client.set_async(path, data[path]), writes=True
        )
        return [not isinstance(answer, Code) for answer in answers]

    async def pass_over(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Remove a contender of any session if its text still is `text`."""
        path = self._nodes.path_of(name, entry)
        found = await self._nodes.get(path, until)
        if found is None or names.read_data(found[0])[2] != text:
            return False
        version = found[1].version
        answers = await self._nodes.each(
            until, [path], lambda client, path: client.delete_async(path, version), writes=True
        )
        return not isinstance(answers[0], Code)

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of entries: write their data once more, unchanged."""
        paths = [self._nodes.path_of(name, entry) for entry in entries if entry.kind in OURS]
        found = await self._nodes.each(until, paths, lambda client, path: client.get_async(path), writes=False)
        there = {path: each for path, each in zip(paths, found, strict=True) if not isinstance(each, Code)}

        def write(client: KazooClient, path: str) -> Result:
            data, stat = there[path]
            return client.set_async(path, data, stat.version)  # a changed node has woken its watchers already

        await self._nodes.each(until, list(there), write, writes=True)
