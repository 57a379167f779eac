"""The joins: a contender is added once in a session, and a join without a reply is withdrawn for good."""

from collections.abc import Callable

from tenure.errors import OutcomeUnknown
from tenure.stores.ordered import Entry, Kind, Listing, Record
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.clock import Clock
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.joined import JoinedContenders
from tenure.stores.zookeeper.library import KazooClient, Result, Stat
from tenure.stores.zookeeper.names import node_of
from tenure.stores.zookeeper.nodes import ZooKeeperNodes
from tenure.stores.zookeeper.reading import ZooKeeperReader
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
