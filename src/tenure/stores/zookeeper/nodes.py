"""The nodes of names and entries: their paths, and the requests that several operations need.

ZooKeeper tells its time only in the nodes that it writes. From then on the local clock continues, a little slower, so
that the estimate is never ahead of the ensemble's time.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tenure.contracts import forms
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.ordered import Entry
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.library import KazooClient, Result, Stat
from tenure.stores.zookeeper.names import node_of
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.session import ZooKeeperSession

PACE = 0.99
"""The rate of the local clock in the estimate; it is certainly slower than the ensemble's clock."""

FRESH = 5.0
"""How many seconds after a write the estimate is exact enough."""


class Clock:
    """The earliest time that the ensemble may have."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ahead = float("-inf")
        """The ensemble's time minus `PACE` times the local time: the largest difference seen so far."""
        self._written_at = float("-inf")

    def see(self, stat: Stat) -> None:
        """Learn from the times of a node: they are not in the future."""
        self._ahead = max(self._ahead, max(stat.ctime, stat.mtime) / 1000 - self._now() * PACE)

    def wrote(self, stat: Stat) -> None:
        """Learn from the times of a node that this client has just written."""
        self.see(stat)
        self._written_at = self._now()

    def is_fresh(self) -> bool:
        """Return whether the estimate is exact enough."""
        return self._now() - self._written_at < FRESH

    def since(self, milliseconds: int) -> float:
        """Return how many seconds have certainly passed since an instant of the ensemble."""
        return max(0.0, self._ahead + self._now() * PACE - milliseconds / 1000)


UNUSED = 60.0
"""After how many seconds without use the empty node of a name that this client used is removed."""

MANY = 200
"""How many requests are sent at once, at most."""


class ZooKeeperNodes:
    """Reads and writes nodes in a session, and removes the empty nodes of names that this client used."""

    def __init__(
        self, session: ZooKeeperSession, access: ZooKeeperAccess, clock: Clock, now: Callable[[], float]
    ) -> None:
        """Use the nodes below the root of `access`; `clock` learns from what is written."""
        self.root = access.root
        self._title = access.title
        self._session = session
        self._clock = clock
        self._now = now
        self._used: dict[str, float] = {}
        """The instant at which each name was last used."""

    def path(self, name: str) -> str:
        """Return the path of a name."""
        return f"{self.root}/{names.encode(name)}"

    def path_of(self, name: str, entry: Entry) -> str:
        """Return the path of an entry."""
        return f"{self.path(name)}/{node_of(entry)}"

    async def get(self, path: str, until: float) -> tuple[bytes, Stat] | None:
        """Return the data and the Stat of a node; None if there is no such node."""
        answers = await self._session.exchange(until, lambda client: [client.get_async(path)], writes=False)
        self._session.contact(answers)
        found = answers.values[0]
        return None if isinstance(found, Code) else found

    async def agree_on_form(self, until: float) -> None:
        """Write the mark of the stored form if there is none, or an earlier one.

        Raises StoreError if it is later, and ends the session for good.
        """
        path, data = f"{self.root}/{names.FORM}", forms.mark().encode()
        while True:
            found = await self.get(path, until)
            if found is None:
                await self._session.exchange(
                    until, lambda client: [client.create_async(path, data, makepath=True)], writes=True
                )
            elif await self._form_of(found[0]) >= forms.WRITES:
                return
            else:
                await self.set(path, data, found[1].version, until)
            self.in_time(until)

    async def _form_of(self, data: bytes) -> int:
        try:
            return forms.check(data.decode("ascii", "replace"), self._title)
        except StoreError as error:
            await self._session.refuse(error)
            raise

    async def set(self, path: str, data: bytes, version: int, until: float) -> Stat | Code:
        """Write the data of a node with this version (-1: any); return its new Stat, or the refusal."""
        answers = await self._session.exchange(
            until, lambda client: [client.set_async(path, data, version)], writes=True
        )
        self._session.prove(answers)
        written: Stat | Code = answers.values[0]
        if not isinstance(written, Code):
            self._clock.wrote(written)
        return written

    async def each(
        self, until: float, paths: Sequence[str], send: Callable[[KazooClient, str], Result], *, writes: bool
    ) -> list[Any]:
        """Send the same request for several nodes, in parallel; return the replies in order."""
        values: list[Any] = []
        for first in range(0, len(paths), MANY):
            some = paths[first : first + MANY]
            answers = await self._session.exchange(until, partial(_send_each, send, some), writes=writes)
            self._session.contact(answers)
            values += answers.values
        return values

    async def make(self, path: str, until: float) -> None:
        """Create a node without data, and the nodes above it."""
        await self._session.exchange(until, lambda client: [client.create_async(path, makepath=True)], writes=True)

    async def delete(self, name: str, entries: Sequence[Entry], until: float) -> bool:
        """Remove entries one by one; return whether one of them existed."""
        self.use(name)  # its node may be empty after this
        paths = [self.path_of(name, entry) for entry in entries]
        answers = await self.each(until, paths, lambda client, path: client.delete_async(path), writes=True)
        return any(not isinstance(answer, Code) for answer in answers)

    def use(self, name: str) -> None:
        """Record that this client uses a name now."""
        self._used[name] = self._now()

    async def remove_unused(self, until: float) -> None:
        """Remove the empty nodes of names that were not used for a while."""
        now = self._now()
        if unused := [name for name, used in list(self._used.items()) if used < now - UNUSED]:
            await self._tidy(unused, until)

    async def remove_all(self, until: float) -> None:
        """Remove the empty nodes of all names that this client used."""
        if self._used:
            await self._tidy(list(self._used), until)

    async def _tidy(self, unused: Sequence[str], until: float) -> None:
        """Remove the empty nodes of names. A client that joins a name at this moment creates its node again."""
        for name in unused:
            self._used.pop(name, None)
        paths = [self.path(name) for name in unused]
        await self.each(until, paths, lambda client, path: client.delete_async(path), writes=True)

    def in_time(self, until: float) -> None:
        """Raise StoreUnavailable if there is no time left for another attempt."""
        if self._now() >= until:
            raise StoreUnavailable(
                f"other clients of {self._title} changed a node before each attempt to write it: try again"
            )


def _send_each(send: Callable[[KazooClient, str], Result], paths: Sequence[str], client: KazooClient) -> list[Result]:
    return [send(client, path) for path in paths]
