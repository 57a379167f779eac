"""The simulated network between clients and a node, and the stores that talk over it.

`RemoteStore` is a server store: every message may be late, lost, repeated or cut off. `EmbeddedStore` is the SQLite
store's shape: an operation is carried out in place by its caller, only pushes travel.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.messages import (
    Ask,
    Busy,
    Gone,
    Leave,
    Left,
    Mismatch,
    Notice,
    NoticeKind,
    Release,
    Renewal,
    RenewReply,
    Reply,
)
from holdfast.core.table import Step
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.outcome import Outcome
from holdfast.runtimes.simulated import Future, Process, SimRuntime, World
from holdfast.stores.store import Capabilities
from holdfast.stores.tabled import Steps, TabledStore
from holdfast.testing.simulation.checker import Checker
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.node import Node

if TYPE_CHECKING:
    from collections import Counter

T = TypeVar("T")
Action = Callable[[], object]

RECOVERY = 0.6
"""How long after an error of the store a client may take to ask again, in seconds: its longest delay, and a little."""


class Link:
    """What lies between one client and the node."""

    def __init__(self, world: World, faults: Faults, happened: "Counter[str]") -> None:
        """Connect; `faults` may be replaced later, when they are to stop. Counts in `happened` what goes wrong."""
        self.world = world
        self.faults = faults
        self.happened = happened
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
        self.happened["request cut off"] += len(self.outstanding)
        for reply in list(self.outstanding.values()):
            reply.fail(OutcomeUnknown("the connection broke"))

    def delay(self) -> float:
        """Return how long a message takes."""
        rng = self.world.random
        if self.faults.straggler and rng.random() < self.faults.straggler:
            self.happened["message late"] += 1
            return rng.uniform(0.05, 4.0)
        return rng.uniform(0.0003, 0.003)

    def loses(self, what: str) -> bool:
        """Tell whether this message is lost on its way."""
        lost = bool(self.faults.loss) and self.world.random.random() < self.faults.loss / 3
        if lost:
            self.happened[f"{what} lost"] += 1
        return lost

    def drops(self, what: str, until: float) -> bool:
        """Tell whether this message meets a partition that lasts until a time."""
        dropped = until > self.world.time
        if dropped:
            self.happened[f"{what} dropped by a partition"] += 1
        return dropped


class SimulatedStore(TabledStore):
    """What the two simulated stores share: one client's inbox at a node."""

    capabilities: Capabilities

    def __init__(self, runtime: SimRuntime, node: Node, link: Link, checker: Checker) -> None:
        """Use `node` over `link`, and tell `checker` what is asked and heard."""
        self.process: Process = runtime.process
        self.link = link
        self.unsure: set[str] = set()
        """Requests that the store may know of."""
        self._unanswered: set[str] = set()
        """Requests of which an ask had no answer, so that it may still arrive."""
        self.when_sent: Action | None = None
        """What happens to the client as soon as it has sent something: the worst moment to be paused."""
        self.when_granted: Action | None = None
        """What happens to it instead of hearing of a grant: the worst moment to die."""
        self._checker = checker
        self._node = node
        self._runtime = runtime
        self.inbox = ""
        """Where the node pushes to; empty until it is opened."""
        self._deliver: Callable[[Notice], None] = lambda notice: None  # noqa: ARG005

    async def open(self, deliver: Callable[[Notice], None], until: float) -> str:  # noqa: ARG002 - takes no time
        """Attach an inbox."""
        self._deliver = deliver
        self.inbox = f"inbox-{self.process.name}"
        self.subscribe()
        return self.inbox

    def subscribe(self) -> None:
        """Have the node push to us from now on."""
        self._node.attach(self.inbox, self._push)

    def vanish(self) -> None:
        """Have the node find that nobody listens."""
        self._node.detach(self.inbox)

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
        self._say(f"{ask.request} asks for {ask.name}")
        try:
            reply = await super().acquire(ask, until)
        except OutcomeUnknown:
            self._unanswered.add(ask.request)
            raise
        self._say(f"{ask.request} hears {reply}")
        if isinstance(reply, Busy | Mismatch | Gone):
            self.unsure.discard(ask.request)
        return reply

    async def release(self, release: Release, until: float) -> Outcome:
        """Release."""
        self._say(f"{release.request} releases {release.name}")
        outcome = await super().release(release, until)
        self._say(f"{release.request} hears {outcome}")
        if release.request in self._unanswered:
            self._checker.store.gone(release.request)
        return outcome

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewReply]:
        """Renew, and note who is refused."""
        self._say(f"renews {', '.join(renewal.request for renewal in renewals)}")
        for renewal in renewals:
            self._checker.clients.renewing(renewal.request)
        replies = await super().renew(renewals, until)
        self._say(f"hears of its renewals: {', '.join(str(reply or 'renewed') for reply in replies)}")
        for renewal, reply in zip(renewals, replies, strict=True):
            self._checker.clients.heard(renewal.request, refused=reply is not None)
        return replies

    async def leave(self, leave: Leave, until: float) -> Left:
        """Leave, and note when it is acknowledged."""
        self._checker.leaving(leave.request)
        self._say(f"{leave.request} leaves {leave.name}")
        left = await super().leave(leave, until)
        self._say(f"{leave.request} has left")
        self._checker.store.gone(leave.request)
        return left

    def _push(self, notice: Notice) -> None:
        link, world = self.link, self.link.world
        if link.loses("push") or link.drops("push", link.mute_until):
            self._checker.trace("network", f"the push to {notice.request} ({notice.kind}) is lost")
        else:
            world.at(world.time + link.delay(), partial(self._hear, notice), self.process)

    def _hear(self, notice: Notice) -> None:
        if self.when_granted is not None and notice.kind is NoticeKind.GRANTED:
            self.when_granted()
            return
        what = f"granted, token {notice.token}" if notice.token else f"{notice.kind}, in {notice.after / 1e6:.3f} s"
        self._say(f"{notice.request} is told by a push: {what}")
        self._deliver(notice)

    def _has_sent(self) -> bool:
        """Let happen what was to happen now; return whether something did."""
        happen, self.when_sent = self.when_sent, None
        if happen is not None:
            happen()
        return happen is not None

    def _say(self, text: str) -> None:
        self._checker.trace(self.process.name, text)

    async def _fail(self, delay: float, text: str) -> None:
        """Answer an error instead of doing anything; now and then one after which asking again is of no use."""
        self.link.happened["error answered"] += 1
        self._checker.store.disturbed(self.inbox, self.link.world.time + delay + RECOVERY)
        await self._runtime.sleep(delay)
        if self.link.world.random.random() < 0.2:
            raise StoreError(f"{text}, and it is of no use to ask again")
        raise StoreUnavailable(text)


class EmbeddedStore(SimulatedStore):
    """Operations are carried out in place by the caller, as in the memory and SQLite stores."""

    capabilities = Capabilities(min_ttl=0.05, queue=True, weights=True, local=True)

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Carry out `work` in place, now and then after the file was locked for a while."""
        await self._locked(until)
        return await self._back(self._node.step(name, work))

    async def steps(self, work: Callable[[Steps], T], until: float) -> T:
        """Carry out `work` in place."""
        await self._locked(until)
        return await self._back(self._node.steps(work))

    async def _back(self, result: T) -> T:
        if self._has_sent():
            await self._runtime.sleep(0.0)
        return result

    async def _locked(self, until: float) -> None:
        rng = self.link.world.random
        if rng.random() < 0.1:
            await self._runtime.sleep(rng.uniform(0.0001, 0.002))
        faults = self.link.faults
        if faults.errors and rng.random() < faults.errors:
            await self._fail(min(0.05, max(0.0, until - self._runtime.now())), "the file stays locked")


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
            link.happened["connection refused"] += 1
            await self._runtime.sleep(link.delay())
            raise StoreUnavailable("connection refused")
        self._subscribe_again()
        if faults.errors and world.random.random() < faults.errors:
            await self._fail(link.delay(), "the store answers an error")
        reply: Future[T] = Future()
        self._send(work, reply)
        if faults.duplicate and world.random.random() < faults.duplicate:
            link.happened["request repeated"] += 1
            world.after(link.delay(), lambda: self._send(work, reply))
        self._has_sent()
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
        if link.loses("request") or link.drops("request", link.deaf_until):
            self._checker.trace("network", f"a request of {self.process.name} is lost")
        else:
            world.after(self._service_time(), lambda: self._carry_out(work, reply, epoch))

    def _carry_out(self, work: Callable[[], T], reply: "Future[T]", epoch: int) -> None:
        world, link = self.link.world, self.link
        if self._node.down_until > world.time:
            return
        result = work()
        if epoch != link.epoch or link.loses("reply") or link.drops("reply", link.mute_until):
            self._checker.trace("network", f"a reply to {self.process.name} is lost")
        else:
            world.at(world.time + link.delay(), lambda: reply.resolve(result), self.process)

    def _service_time(self) -> float:
        slow = self._node.slow_until > self.link.world.time
        self.link.happened["request slow"] += slow
        return self.link.delay() + (self.link.world.random.uniform(0.05, 0.5) if slow else 0.0)

    def _subscribe_again(self) -> None:
        """After a cut or a restart: subscribe first, then have every waiter ask again."""
        if self.inbox and not self._node.listens(self.inbox):
            self.subscribe()
