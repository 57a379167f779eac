"""The changes: entries are removed and added in one transaction, and their data are rewritten."""

from collections.abc import Callable, Sequence
from typing import Any

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.ordered import Entry, Kind, Record
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import ANSWERS, Code, to_store_error
from tenure.stores.zookeeper.joined import JoinedContenders
from tenure.stores.zookeeper.library import KazooClient, Result, codes
from tenure.stores.zookeeper.names import OURS
from tenure.stores.zookeeper.nodes import ZooKeeperNodes
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.session import ZooKeeperSession


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

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Write a new text into an entry, and keep the rest of its data."""
        path = self._nodes.path_of(name, entry)
        if entry.kind in OURS:
            return not isinstance(await self._nodes.set(path, names.write_data(0.0, text), -1, until), Code)
        while True:
            found = await self._nodes.get(path, until)
            if found is None:
                return False
            counts_for, began, _ = names.read_data(found[0])
            if began:  # a write would start the time of the entry again
                return True
            written = await self._nodes.set(path, names.write_data(counts_for, text), found[1].version, until)
            if not isinstance(written, Code):
                return True
            self._nodes.in_time(until)

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of entries: write their data once more, unchanged."""
        paths = [self._nodes.path_of(name, entry) for entry in entries if entry.kind in OURS]
        found = await self._nodes.each(until, paths, lambda client, path: client.get_async(path), writes=False)
        there = {path: each for path, each in zip(paths, found, strict=True) if not isinstance(each, Code)}

        def write(client: KazooClient, path: str) -> Result:
            data, stat = there[path]
            return client.set_async(path, data, stat.version)  # a changed node has woken its watchers already

        await self._nodes.each(until, list(there), write, writes=True)
