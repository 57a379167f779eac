"""The simulated network between clients and a node, and the stores that talk over it.

`RemoteStore` is a server store: every message may be late, lost, repeated or cut off. `EmbeddedStore` is the SQLite
store's shape: an operation is carried out in place by its caller, only pushes travel.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.core.messages import (
    Ask,
    Busy,
    Gone,
    Leave,
    Left,
    Mismatch,
    Notice,
    Release,
    Renewal,
    RenewReply,
    Reply,
)
from holdfast.core.table import Step
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.outcome import Outcome
from holdfast.runtimes.simulated import Future, Process, SimRuntime, World
from holdfast.stores.store import Capabilities
from holdfast.stores.tabled import Steps, TabledStore
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.node import Node

T = TypeVar("T")


class Link:
    """What lies between one client and the node."""

    def __init__(self, world: World, faults: Faults) -> None:
        """Connect; `faults` may be replaced later, when they are to stop."""
        self.world = world
        self.faults = faults
        self.deaf_until = 0.0
        """Until when nothing from the client arrives."""
        self.mute_until = 0.0
        """Until when nothing from the node arrives."""
        self.epoch = 0
        """Counts the times that the connection was cut."""
        self.outstanding: dict[int, Future[Any]] = {}

    def cut(self) -> None:
        """Break the connection: whoever awaits a reply learns that none will come."""
        self.epoch += 1
        for reply in list(self.outstanding.values()):
            reply.fail(OutcomeUnknown("the connection broke"))

    def delay(self) -> float:
        """Return how long a message takes."""
        rng = self.world.random
        if self.faults.straggler and rng.random() < self.faults.straggler:
            return rng.uniform(0.05, 4.0)
        return rng.uniform(0.0003, 0.003)

    def loses(self) -> bool:
        """Tell whether this message is lost."""
        return bool(self.faults.loss) and self.world.random.random() < self.faults.loss / 3


class SimulatedStore(TabledStore):
    """What the two simulated stores share: one client's inbox at a node."""

    capabilities: Capabilities

    def __init__(self, runtime: SimRuntime, node: Node, link: Link) -> None:
        """Use `node` over `link`."""
        self.process: Process = runtime.process
        self.link = link
        self.refused: Callable[[str], None] = lambda request: None  # noqa: ARG005 - told of refused renewals
        self.left: Callable[[str], None] = lambda request: None  # noqa: ARG005 - told of acknowledged leaves
        self.leaving: Callable[[str], None] = lambda request: None  # noqa: ARG005 - told of attempted leaves
        self.trace: Callable[[str, str], None] = lambda who, text: None  # noqa: ARG005
        self.unsure: set[str] = set()
        """Requests that the store may know of."""
        self._node = node
        self._runtime = runtime
        self._inbox = ""
        self._deliver: Callable[[Notice], None] = lambda notice: None  # noqa: ARG005

    async def open(self, deliver: Callable[[Notice], None], until: float) -> str:  # noqa: ARG002 - takes no time
        """Attach an inbox."""
        self._deliver = deliver
        self._inbox = f"inbox-{self.process.name}"
        self.subscribe()
        return self._inbox

    def subscribe(self) -> None:
        """Have the node push to us from now on."""
        self._node.attach(self._inbox, self._push)

    def vanish(self) -> None:
        """Have the node find that nobody listens."""
        self._node.detach(self._inbox)

    async def close(self) -> None:
        """Detach the inbox."""
        self.vanish()

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""

    async def names(self, prefix: str, until: float) -> list[str]:  # noqa: ARG002 - nobody asks in a simulation
        """List the names that were ever used."""
        return [name for name in self._node.names() if name.startswith(prefix)]

    async def acquire(self, ask: Ask, until: float) -> Reply:
        """Ask, and note on the asking task whether the store may know of it."""
        task = self.link.world.running
        if task is not None:
            task.note = ask.request
        self.unsure.add(ask.request)
        self.trace(self.process.name, f"{ask.request} asks for {ask.name}")
        reply = await super().acquire(ask, until)
        self.trace(self.process.name, f"{ask.request} hears {reply}")
        if isinstance(reply, Busy | Mismatch | Gone):
            self.unsure.discard(ask.request)
        return reply

    async def release(self, release: Release, until: float) -> Outcome:
        """Release."""
        self.trace(self.process.name, f"{release.request} releases {release.name}")
        outcome = await super().release(release, until)
        self.trace(self.process.name, f"{release.request} hears {outcome}")
        return outcome

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewReply]:
        """Renew, and note who is refused."""
        self.trace(self.process.name, f"renews {', '.join(renewal.request for renewal in renewals)}")
        replies = await super().renew(renewals, until)
        self.trace(self.process.name, f"hears of its renewals: {', '.join(str(reply) for reply in replies)}")
        for renewal, reply in zip(renewals, replies, strict=True):
            if reply is not None:
                self.refused(renewal.request)
        return replies

    async def leave(self, leave: Leave, until: float) -> Left:
        """Leave, and note when it is acknowledged."""
        self.leaving(leave.request)
        self.trace(self.process.name, f"{leave.request} leaves {leave.name}")
        left = await super().leave(leave, until)
        self.left(leave.request)
        return left

    def _push(self, notice: Notice) -> None:
        if not (self.link.loses() or self.link.mute_until > self.link.world.time):
            self.link.world.after(self.link.delay(), partial(self.process.enter, partial(self._deliver, notice)))


class EmbeddedStore(SimulatedStore):
    """Operations are carried out in place by the caller, as in the memory and SQLite stores."""

    capabilities = Capabilities(min_ttl=0.05, queue=True, weights=True, local=True)

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Carry out `work` in place, now and then after the file was locked for a while."""
        await self._locked(until)
        return self._node.step(name, work)

    async def steps(self, work: Callable[[Steps], T], until: float) -> T:
        """Carry out `work` in place."""
        await self._locked(until)
        return self._node.steps(work)

    async def _locked(self, until: float) -> None:
        rng = self.link.world.random
        if rng.random() < 0.1:
            await self._runtime.sleep(rng.uniform(0.0001, 0.002))
        faults = self.link.faults
        if faults.errors and rng.random() < faults.errors:
            await self._runtime.sleep(min(0.05, max(0.0, until - self._runtime.now())))
            raise StoreUnavailable("the file stays locked")


class RemoteStore(SimulatedStore):
    """Operations are messages to a server, and replies."""

    capabilities = Capabilities(min_ttl=0.05, queue=True, weights=True, local=False)

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Send a request about one name."""
        return await self._call(lambda: self._node.step(name, work), until)

    async def steps(self, work: Callable[[Steps], T], until: float) -> T:
        """Send a request about any number of names."""
        return await self._call(lambda: self._node.steps(work), until)

    async def _call(self, work: Callable[[], T], until: float) -> T:
        world, link, faults = self.link.world, self.link, self.link.faults
        if self._node.down_until > world.time:
            await self._runtime.sleep(link.delay())
            raise StoreUnavailable("connection refused")
        self._subscribe_again()
        if faults.errors and world.random.random() < faults.errors:
            await self._runtime.sleep(link.delay())
            raise StoreUnavailable("the store answers an error")
        reply: Future[T] = Future()
        self._send(work, reply)
        if faults.duplicate and world.random.random() < faults.duplicate:
            world.after(link.delay(), lambda: self._send(work, reply))
        timer = self.process.later(until - self._runtime.now(), lambda: reply.fail(OutcomeUnknown("no reply")))
        link.outstanding[id(reply)] = reply
        try:
            return await reply
        finally:
            timer.cancel()
            del link.outstanding[id(reply)]

    def _send(self, work: Callable[[], T], reply: "Future[T]") -> None:
        world, link = self.link.world, self.link
        epoch = link.epoch
        if not link.loses() and link.deaf_until <= world.time:
            world.after(self._service_time(), lambda: self._carry_out(work, reply, epoch))

    def _carry_out(self, work: Callable[[], T], reply: "Future[T]", epoch: int) -> None:
        world, link = self.link.world, self.link
        if self._node.down_until > world.time:
            return
        result = work()
        if epoch == link.epoch and not link.loses() and link.mute_until <= world.time:
            world.after(link.delay(), lambda: self.process.enter(lambda: reply.resolve(result)))

    def _service_time(self) -> float:
        slow = self._node.slow_until > self.link.world.time
        return self.link.delay() + (self.link.world.random.uniform(0.05, 0.5) if slow else 0.0)

    def _subscribe_again(self) -> None:
        """After a cut or a restart: subscribe first, then have every waiter ask again."""
        if self._inbox and not self._node.listens(self._inbox):
            self.subscribe()
