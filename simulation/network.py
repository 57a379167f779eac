"""The simulated network between one client and a node: a message may be late, lost, repeated or cut off."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from simulation.faults import Faults
from simulation.invariants import Trace
from simulation.runtime import Future, Process
from tenure.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections import Counter

T = TypeVar("T")
Action = Callable[[], object]

RECOVERY = 0.6
"""How long after an error of the store a client may wait before its retry, in seconds: a bit more than its longest
delay."""


SHARES = {"request": 1 / 3, "reply": 1 / 3, "push": 1.0}
"""The share of the loss rate for each kind of message. Notifications are few, as many hand-offs are local."""


class Link:
    """The network between one client and the node."""

    def __init__(self, process: Process, faults: Faults, happened: "Counter[str]", trace: Trace) -> None:
        """Connect a client. `happened` counts the faults that occur; `faults` is replaced to stop them."""
        self.process = process
        self.world = process.world
        self.faults = faults
        self.happened = happened
        self.deaf_until = 0.0
        """Until when no message of the client arrives at the node."""
        self.mute_until = 0.0
        """Until when no message of the node arrives at the client."""
        self.epoch = 0
        """The number of times that the connection was cut."""
        self.when_cut: list[Action] = []
        """The callbacks for a cut connection."""
        self.when_sent: Action | None = None
        """The disaster just after the client's next request: the worst instant for a pause."""
        self.when_granted: Action | None = None
        """The disaster instead of the notification of a grant: the worst instant for a crash."""
        self._outstanding: dict[int, Future[Any]] = {}
        self._trace = trace

    def another(self, process: Process) -> "Link":
        """Make another link of a process over the same network."""
        return Link(process, self.faults, self.happened, self._trace)

    def cut(self) -> None:
        """Break the connection: every request without a reply fails with OutcomeUnknown."""
        self.epoch += 1
        self.happened["request cut off"] += len(self._outstanding)
        for reply in list(self._outstanding.values()):
            reply.fail(OutcomeUnknown("the connection broke"))
        for tell in self.when_cut:
            tell()

    # -- messages ------------------------------------------------------------------------------------------

    async def exchange(self, serve: "Callable[[Answer[T]], None]", until: float, slow: Callable[[], float]) -> T:
        """Carry a request to a server and its reply back. Raises OutcomeUnknown without a reply by `until`, local time.

        `slow()` seconds after the request has arrived, `serve` is called, which replies at once or later.
        """
        world = self.world
        reply: Future[T] = Future()
        self._send(serve, reply, slow)
        if self.faults.duplicate and world.random.random() < self.faults.duplicate:
            self.happened["request repeated"] += 1
            world.after(self.delay(), lambda: self._send(serve, reply, slow))
        self.has_sent()
        timer = self.process.later(until - self.process.clock(), lambda: reply.fail(OutcomeUnknown("no reply")))
        self._outstanding[id(reply)] = reply
        try:
            return await reply
        finally:
            timer.cancel()
            del self._outstanding[id(reply)]

    def has_sent(self) -> bool:
        """Cause the disaster that was planned for this instant; return whether there was one."""
        happen, self.when_sent = self.when_sent, None
        if happen is not None:
            happen()
        return happen is not None

    def push(self, hear: Action, what: str) -> None:
        """Carry a notification to the client. Neither side notices if it is lost."""
        if self._is_lost("push", self.mute_until):
            self._trace("network", f"the notification of {what} is lost")
        else:
            self.world.at(self.world.time + self.delay(), hear, self.process)

    def _send(self, serve: "Callable[[Answer[T]], None]", reply: Future[T], slow: Callable[[], float]) -> None:
        answer = Answer(self, reply)
        if self._is_lost("request", self.deaf_until):
            self._trace("network", f"a request of {self.process.name} is lost")
        else:
            self.world.after(self.delay() + slow(), lambda: serve(answer))

    def carry_back(self, arrive: Action, epoch: int) -> None:
        """Carry a reply to the client, unless the connection of its request was cut."""
        if epoch != self.epoch or self._is_lost("reply", self.mute_until):
            self._trace("network", f"a reply to {self.process.name} is lost")
        else:
            self.world.at(self.world.time + self.delay(), arrive, self.process)

    # -- faults --------------------------------------------------------------------------------------------

    def delay(self) -> float:
        """Return the delay of a message, in seconds."""
        rng = self.world.random
        if self.faults.straggler and rng.random() < self.faults.straggler:
            self.happened["message late"] += 1
            return rng.uniform(0.05, 4.0)
        return rng.uniform(0.0003, 0.003)

    def _is_lost(self, what: str, split_until: float) -> bool:
        """Tell whether a message is lost, at random or by a partition that lasts until `split_until`."""
        loss = self.faults.loss
        if loss and self.world.random.random() < loss * SHARES[what]:
            self.happened[f"{what} lost"] += 1
            return True
        if split_until > self.world.time:
            self.happened[f"{what} dropped by a partition"] += 1
            return True
        return False


class Answer(Generic[T]):
    """The reply to a request that has arrived at a server. The reply may be lost."""

    def __init__(self, link: Link, reply: Future[T]) -> None:
        """Reply over the present connection."""
        self._link = link
        self._reply = reply
        self._epoch = link.epoch

    def resolve(self, value: T) -> None:
        """Reply with a value."""
        self._link.carry_back(lambda: self._reply.resolve(value), self._epoch)

    def fail(self, error: Exception) -> None:
        """Reply with an error."""
        self._link.carry_back(lambda: self._reply.fail(error), self._epoch)
