"""Simulated stores that run the grant table, each for one client.

`RemoteStore` is a server store: its operations are messages. `EmbeddedStore` works like the SQLite store: the caller
carries out an operation in place, and only notifications are messages.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from simulation.checker import Checker
from simulation.network import RECOVERY, Answer, Link
from simulation.node import TableNode
from simulation.runtime import SimRuntime
from tenure.contracts.cells import Cell
from tenure.contracts.messages import Notification, Page
from tenure.contracts.store import Capabilities
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.tabled import Steps, TabledStore
from tenure.table.step import Step

T = TypeVar("T")


class SimulatedStore(TabledStore):
    """The base of both stores: the notification channel of one client at a node."""

    capabilities: Capabilities

    def __init__(self, runtime: SimRuntime, node: TableNode, link: Link, checker: Checker) -> None:
        """Use `node` over `link`."""
        self.channel = ""
        """The notification channel; empty until the store is opened."""
        self._checker = checker
        self._link = link
        self._node = node
        self._runtime = runtime
        self._deliver: Callable[[Notification], None] = lambda notification: None  # noqa: ARG005

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:  # noqa: ARG002 - it takes no time
        """Attach a channel."""
        self._deliver = deliver
        self.channel = f"channel-{self._runtime.process.name}"
        self.subscribe()
        return self.channel

    def subscribe(self) -> None:
        """Subscribe to the channel at the node."""
        self._node.attach(self.channel, self._push)

    def vanish(self) -> None:
        """Close the channel at the node, as the death of the client does."""
        self._node.detach(self.channel)

    async def close(self) -> None:
        """Detach the channel."""
        self.vanish()

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:  # noqa: ARG002 - a simulation never calls it
        """Return the names that were ever used."""
        return Page([name for name in self._node.names() if name.startswith(prefix)])

    def _push(self, notification: Notification) -> None:
        self._link.push(lambda: self._deliver(notification), f"{notification.request_id} ({notification.kind})")

    async def _fail(self, delay: float, text: str) -> None:
        """Raise StoreUnavailable without an effect; now and then StoreError, after which a retry is useless."""
        world = self._link.world
        self._link.happened["error answered"] += 1
        self._checker.store.disturbed(self.channel, world.time + delay + RECOVERY)
        await self._runtime.sleep(delay)
        if world.random.random() < 0.2:
            raise StoreError(f"{text}, and a retry would fail as well")
        raise StoreUnavailable(text)


class EmbeddedStore(SimulatedStore):
    """A store whose operations the caller carries out in place, as in the memory and SQLite stores."""

    capabilities = Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        runs_in_caller=True,
        multi_acquire=True,
        barging=True,
        cells=True,
        hands_over=True,
    )

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Carry out `work` in place, now and then after the file was locked for a while."""
        await self._locked(until)
        return await self._back(self._node.step(name, work))

    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:  # noqa: ARG002 - found by `work`
        """Carry out `work` in place."""
        await self._locked(until)
        return await self._back(self._node.steps(work))

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read a cell in place."""
        await self._locked(until)
        return await self._back(self._node.cell(name))

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - kept for ever
        """Write a cell in place."""
        await self._locked(until)
        return await self._back(self._node.write_cell(name, value, version))

    async def _back(self, result: T) -> T:
        if self._link.has_sent():
            await self._runtime.sleep(0.0)
        return result

    async def _locked(self, until: float) -> None:
        rng = self._link.world.random
        if rng.random() < 0.1:
            await self._runtime.sleep(rng.uniform(0.0001, 0.002))
        faults = self._link.faults
        if faults.errors and rng.random() < faults.errors:
            await self._fail(min(0.05, max(0.0, until - self._runtime.now())), "the file stays locked")


class RemoteStore(SimulatedStore):
    """A store whose operations are requests to a server and replies."""

    capabilities = Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        runs_in_caller=False,
        multi_acquire=True,
        barging=True,
        cells=True,
        hands_over=True,
    )

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Send a request about one name."""
        return await self._call(lambda: self._node.step(name, work), until)

    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:  # noqa: ARG002 - found by `work`
        """Send a request about any number of names."""
        return await self._call(lambda: self._node.steps(work), until)

    async def read_cell(self, name: str, until: float) -> Cell:
        """Send a request to read a cell."""
        return await self._call(lambda: self._node.cell(name), until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - kept for ever
        """Send a request to write a cell."""
        return await self._call(lambda: self._node.write_cell(name, value, version), until)

    async def _call(self, work: Callable[[], T], until: float) -> T:
        world, link, faults = self._link.world, self._link, self._link.faults
        if self._node.is_down():
            link.happened["connection refused"] += 1
            await self._runtime.sleep(link.delay())
            raise StoreUnavailable("connection refused")
        self._subscribe_again()
        if faults.errors and world.random.random() < faults.errors:
            await self._fail(link.delay(), "the store replied with an error")

        def serve(answer: Answer[T]) -> None:
            if not self._node.is_down():
                answer.resolve(work())

        return await link.exchange(serve, until, lambda: self._node.takes(link.happened))

    def _subscribe_again(self) -> None:
        """Subscribe to the channel again after a cut or a restart, before the request is sent."""
        if self.channel and not self._node.listens(self.channel):
            self.subscribe()
