"""Who hurts the nodes of a quorum, by the draw of a generator."""

import random
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tenure.runtimes.clocks import steady
from tests.faults.workers import Staff
from tests.servers import Clock, RedisServer

MOST_OUT = 2
"""How many of five nodes are down or stopped at a time, at most."""

RETURN = 4.0
"""Within how many seconds of its return every client asks a node again: twice the longest rest that it is given."""

LONGEST_STEP, FARTHEST = 300.0, 1200.0
"""How far a clock is set at once, and how far from the truth at most, in seconds: less than proposals are cut at."""


@dataclass(slots=True)
class Node:
    """A node, and since when it is certain that every client that asks it gets a vote if the name is free."""

    number: int
    server: RedisServer
    clock: Clock
    sure_from: float = 0.0
    out: bool = False
    offset: float = 0.0
    sure: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When it was, up to the last time that it was hurt."""

    def is_sure(self) -> bool:
        """Tell whether it gives votes now."""
        return not self.out and steady() >= self.sure_from

    def doubt(self) -> None:
        """From now on it may give none."""
        now = steady()
        if not self.out and now > self.sure_from:
            self.sure.append((self.sure_from, now))
        self.sure_from = now


@dataclass(slots=True)
class History:
    """What was done to whom."""

    seed: int
    began: float = field(default_factory=steady)
    lines: list[str] = field(default_factory=list[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    forward: list[float] = field(default_factory=list[float])
    """When a clock was set forward at a node that lived, and so ended leases."""

    def note(self, kind: str, whom: str, how: str = "") -> None:
        """Note that something was done just now."""
        self.lines.append(f"{steady() - self.began:8.3f}  {whom}: {kind} {how}".rstrip())
        self.kinds[kind] += 1

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}, and what was done when:", *self.lines])


class Nemesis:
    """Hurts nodes, at most two at a time, and workers. What is drawn depends on the seed alone; when, on the machine.

    Mostly it leaves three nodes that certainly vote. At times it is rash: it does not wait until those that it hurt
    before have served their quarantine. Then nobody may be granted anything for a while; but nothing twice.
    """

    def __init__(self, nodes: Sequence[Node], staff: Staff, max_ttl: float, seed: int) -> None:
        """Prepare."""
        self.history = History(seed)
        self._nodes = nodes
        self._staff = staff
        self._max_ttl = max_ttl
        self._chance = random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        """What mends what was hurt, and when."""
        self._frozen: set[int] = set()
        self._deck: list[Callable[..., None]] = []
        """The kinds of strikes that have not had their turn yet, in the order of theirs."""
        for node in nodes:
            node.sure_from = steady() + max_ttl

    def rage(self, rounds: int, seconds: float) -> None:
        """Strike in each way so many times, and for so long at least; then mend everything."""
        ends = steady() + seconds
        strikes_at = steady()
        left = rounds * len(STRIKES)
        while (now := steady()) < ends or left > 0:
            self._mend(now)
            if now >= strikes_at:
                left -= self._strike()
                strikes_at = steady() + self._chance.uniform(0.2, 1.5)
            wakes_at = min([strikes_at, *(due for due, _, _ in self._due[:1])])
            time.sleep(max(0.0, min(wakes_at - steady(), 1.0)))
        self._mend(float("inf"))
        for node in self._nodes:
            node.doubt()

    def _mend(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self._due.pop(0)[2]()

    def _later(self, shortest: float, longest: float, mend: Callable[[], None]) -> None:
        insort(self._due, (steady() + self._chance.uniform(shortest, longest), len(self.history.lines), mend))

    def _strike(self) -> bool:
        """Strike in the way whose turn it is; False if nobody is to be struck so now."""
        if not self._deck:
            self._deck = self._chance.sample(STRIKES, len(STRIKES))
        kind, rash = self._deck[-1], self._chance.random() < 0.25
        if kind is Nemesis._freeze:
            moving = [each for each in range(len(self._staff)) if each not in self._frozen]
            if moving:
                self._freeze(self._chance.choice(moving))
                self._deck.pop()
            return bool(moving)
        order = self._chance.sample(self._nodes, len(self._nodes))
        unsure = {node.number for node in self._nodes if not node.is_sure()}
        out = sum(node.out for node in self._nodes)
        for node in order:
            if not node.out and out < MOST_OUT and (rash or len(unsure | {node.number}) <= MOST_OUT):
                kind(self, node)
                self._deck.pop()
                return True
        return False

    # -- what it does --------------------------------------------------------------------------------------

    def _crash(self, node: Node, *, empty: bool) -> None:
        if not empty:
            node.server.command("SAVE")
        node.doubt()
        node.server.kill()
        node.out = True
        self.history.note("killed, to be empty" if empty else "killed, to keep data", f"node {node.number}")
        if empty:
            (node.server.folder / "dump.rdb").unlink(missing_ok=True)
        if self._chance.random() < 0.3:
            self._set_clock(node, self._chance.choice((1, -1)), "while it was down")

        def start() -> None:
            node.server.start()
            self.history.note("started", f"node {node.number}")
            self._back(node, RETURN + self._max_ttl)

        self._later(0.0, 2.5, start)

    def _kill_keeping(self, node: Node) -> None:
        self._crash(node, empty=False)

    def _kill_emptying(self, node: Node) -> None:
        self._crash(node, empty=True)

    def _stop(self, node: Node) -> None:
        node.doubt()
        node.server.pause()
        node.out = True
        self.history.note("stopped", f"node {node.number}")

        def resume() -> None:
            node.server.resume()
            self.history.note("resumed", f"node {node.number}")
            self._back(node, RETURN)

        self._later(0.1, 3.0, resume)

    def _back(self, node: Node, after: float) -> None:
        node.out = False
        node.sure_from = steady() + after

    def _step_forward(self, node: Node) -> None:
        self._step(node, 1)

    def _step_back(self, node: Node) -> None:
        self._step(node, -1)

    def _step(self, node: Node, direction: int) -> None:
        """Set the clock of a node that lives: leases last there for up to a ttl more, and so does a quarantine."""
        since = max(node.sure_from, steady() + self._max_ttl)
        node.doubt()
        self._set_clock(node, direction, "")
        node.sure_from = since

    def _set_clock(self, node: Node, direction: int, when: str) -> None:
        seconds = direction * self._chance.uniform(10.0, LONGEST_STEP)
        if abs(node.offset + seconds) > FARTHEST:
            seconds = -seconds
        node.offset += seconds
        began = steady()
        node.clock.step(seconds)
        if seconds > 0 and not when:
            self.history.forward += [began, steady()]
        kind = "clock set forward" if seconds > 0 else "clock set back"
        self.history.note(f"{kind} {when}".rstrip(), f"node {node.number}", f"by {abs(seconds):.1f} s")

    def _freeze(self, number: int) -> None:
        self._frozen.add(number)
        self._staff.freeze(number)
        self.history.note("worker stopped", f"worker {number}")

        def thaw() -> None:
            self._staff.thaw(number)
            self._frozen.discard(number)
            self.history.note("worker resumed", f"worker {number}")

        self._later(0.3, 2 * self._max_ttl, thaw)


STRIKES: Sequence[Callable[..., None]] = (
    Nemesis._kill_keeping,
    Nemesis._kill_keeping,
    Nemesis._kill_emptying,
    Nemesis._kill_emptying,
    Nemesis._stop,
    Nemesis._stop,
    Nemesis._step_forward,
    Nemesis._step_back,
    Nemesis._freeze,
    Nemesis._freeze,
)
