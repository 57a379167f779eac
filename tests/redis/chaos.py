"""Who hurts the nodes of a quorum, by the draw of a generator, and what may be demanded of the locks meanwhile."""

import random
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.runtimes.clocks import steady
from holdfast.testing.servers import Clock, RedisServer
from tests.redis.chaos_workers import Staff, Tenure

MOST_OUT = 2
"""How many of five nodes are down or stopped at a time, at most."""

RETURN = 4.0
"""Within how many seconds of its return every client asks a node again: twice the longest rest that it is given."""

LONGEST_STEP, FARTHEST = 300.0, 1200.0
"""How far a clock is set at once, and how far from the truth at most, in seconds: less than proposals are cut at."""

HANDED_ON = 0.1
"""If a process has a name again after so short a time, in seconds, it may be the same lease to the nodes."""


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
        for node in nodes:
            node.sure_from = steady() + max_ttl

    def rage(self, seconds: float) -> None:
        """Hurt for so long, then mend everything."""
        ends = steady() + seconds
        strikes_at = steady()
        while (now := steady()) < ends:
            self._mend(now)
            if now >= strikes_at:
                self._strike()
                strikes_at = steady() + self._chance.uniform(0.2, 1.5)
            wakes_at = min([strikes_at, ends, *(due for due, _, _ in self._due[:1])])
            time.sleep(max(0.0, min(wakes_at - steady(), 1.0)))
        self._mend(float("inf"))
        for node in self._nodes:
            node.doubt()

    def _mend(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self._due.pop(0)[2]()

    def _later(self, shortest: float, longest: float, mend: Callable[[], None]) -> None:
        insort(self._due, (steady() + self._chance.uniform(shortest, longest), len(self.history.lines), mend))

    def _strike(self) -> None:
        kind, rash = self._chance.choice(STRIKES), self._chance.random() < 0.25
        if kind is Nemesis._freeze:
            self._freeze(self._chance.randrange(len(self._staff)))
            return
        order = self._chance.sample(self._nodes, len(self._nodes))
        unsure = {node.number for node in self._nodes if not node.is_sure()}
        out = sum(node.out for node in self._nodes)
        for node in order:
            if not node.out and out < MOST_OUT and (rash or len(unsure | {node.number}) <= MOST_OUT):
                kind(self, node)
                return

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
        if number in self._frozen:
            return
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


# -- what may be demanded ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Overlap:
    """Two leases of one name that were valid at once, each by its own holder's reckoning."""

    first: Tenure
    second: Tenure
    seconds: float
    excused: bool
    """Whether a living node's clock was set forward since the first was asked for."""


def overlaps(tenures: Sequence[Tenure], forward: Sequence[float]) -> list[Overlap]:
    """Return all pairs that overlap."""
    began = _asked_at_first(tenures)
    found: list[Overlap] = []
    valid: list[Tenure] = []
    for tenure in sorted(tenures, key=lambda each: each.since):
        valid = [each for each in valid if each.until > tenure.since]
        for each in valid:
            if each.name == tenure.name:
                excused = any(began[id(each)] <= step <= tenure.since for step in forward)
                seconds = min(each.until, tenure.until) - tenure.since
                if seconds > 0:
                    found.append(Overlap(each, tenure, seconds, excused))
        valid.append(tenure)
    return found


def _asked_at_first(tenures: Sequence[Tenure]) -> dict[int, float]:
    """Return of each tenure since when its votes may be there: it may have been handed on within its process."""
    began: dict[int, float] = {}
    last: dict[tuple[str, int], Tenure] = {}
    for tenure in sorted(tenures, key=lambda each: each.since):
        key = tenure.name, tenure.process
        before = last.get(key)
        handed_on = before is not None and tenure.since - before.until < HANDED_ON
        began[id(tenure)] = began[id(before)] if handed_on else tenure.asked
        last[key] = tenure
    return began


def disorder(tenures: Sequence[Tenure]) -> list[tuple[Tenure, Tenure]]:
    """Return pairs of which the second was asked for after the first was there, and has no greater token; or equal."""
    found: list[tuple[Tenure, Tenure]] = []
    for name in {each.name for each in tenures}:
        by_asked = sorted((each for each in tenures if each.name == name), key=lambda each: each.asked)
        arriving = sorted(by_asked, key=lambda each: each.since, reverse=True)
        greatest: Tenure | None = None
        for tenure in by_asked:
            while arriving[-1].since < tenure.asked:
                arrived = arriving.pop()
                greatest = arrived if greatest is None or arrived.token > greatest.token else greatest
            if greatest is not None and tenure.token <= greatest.token:
                found.append((greatest, tenure))
        by_token = sorted(by_asked, key=lambda each: each.token)
        found += [(one, other) for one, other in pairwise(by_token) if one.token == other.token]
    return found


def voting(sure: Sequence[Sequence[tuple[float, float]]], quorum: int) -> Iterator[tuple[float, float]]:
    """Find the times in which at least a quorum certainly voted, given of each node when it did."""
    changes = sorted(change for spans in sure for a, b in spans for change in ((a, 1), (b, -1)))
    count, since = 0, 0.0
    for instant, change in changes:
        before, count = count, count + change
        if before < quorum <= count:
            since = instant
        elif count < quorum <= before and instant > since:
            yield since, instant


def stalls(instants: Sequence[float], spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return how long nothing happened, within each of these spans; and when that began. The longest comes first."""
    found: list[tuple[float, float]] = []
    for begin, end in spans:
        marks = [begin, *sorted(each for each in instants if begin < each < end), end]
        found += [(after - before, before) for before, after in pairwise(marks)]
    return sorted(found, reverse=True)
