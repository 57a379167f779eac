"""Several processes, each with a client of its own, contend for one lock on a majority of five Redis servers.

What is asked of a lock there: how often it changes hands, how long one waits and whether one gets it in time, whether
everybody gets a share, what each time costs the servers, whether two ever had it at once, and what is left behind.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import clock
from bench.harness import Bound, Case, Report, Row, Size, duration, interleave, percentile
from bench.redis.apart import REDLOCK_NG
from bench.redis.nodes import Nodes, Used, able, running
from bench.redis.redlocks import BLOCKING, HOMES, MEANINGS, POTTERY, REDLOCK_PY, THREADS, Contender, prepare
from bench.workers import Worker

HOLDS = (0.0, 0.002)
TIMEOUT = 1.0
"""How long, in seconds, each waits for the lock before it gives up and asks again."""
START_AFTER = 0.05

LABELS = (THREADS, REDLOCK_NG, REDLOCK_PY, POTTERY)
HERE = ""
"""The home of those that need none of their own."""


@dataclass(slots=True)
class Share:
    """What one process got."""

    grants: int = 0
    """Within the window."""
    waits: list[float] = field(default_factory=list[float])
    """All of them, in seconds, also those in vain and the one that ended after the window."""
    failures: int = 0
    """How often it did not get the lock, or only after the timeout: some peers look at the clock between attempts."""
    held: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """From when until when it had the lock for sure."""


@dataclass(slots=True)
class Contest:
    """What all of them got in one window, and what it cost the servers."""

    shares: Sequence[Share]
    seconds: float
    used: Used
    left: int
    """How many keys were found on the nodes at the end."""

    @property
    def acquired(self) -> int:
        """How often the lock was acquired, also after the window."""
        return sum(len(share.held) for share in self.shares)

    @property
    def failures(self) -> int:
        """How often somebody did not get it in time."""
        return sum(share.failures for share in self.shares)

    @property
    def rate(self) -> float:
        """The acquisitions a second."""
        return sum(share.grants for share in self.shares) / self.seconds

    @property
    def fairness(self) -> float:
        """The fewest over the most."""
        grants = [share.grants for share in self.shares]
        return min(grants) / max(grants) if any(grants) else 0.0

    @property
    def commands(self) -> float:
        """Those of clients, for each acquisition."""
        return self.used.commands / self.acquired if self.acquired else float("nan")

    @property
    def busy(self) -> float:
        """How long the servers' processors worked together, in seconds, for each acquisition."""
        return self.used.busy / self.acquired if self.acquired else float("nan")

    @property
    def overlaps(self) -> int:
        """How often somebody got the lock while another had it."""
        return overlaps([each for share in self.shares for each in share.held])


def overlaps(held: Sequence[tuple[float, float]]) -> int:
    """Return how many of some stretches of time begin before another that began earlier has ended."""
    found, until = 0, float("-inf")
    for begin, end in sorted(held):
        found += begin < until
        until = max(until, end)
    return found


def run(size: Size, folder: Path) -> Report:
    """Let processes contend, a window each in turns."""
    labels, notes = able(LABELS)
    with ExitStack() as stack:
        nodes = stack.enter_context(running(folder))
        crews = {
            home: [stack.enter_context(Worker(serve, home, nodes.urls)) for _ in range(size.processes)]
            for home in dict.fromkeys(HOMES.get(label, HERE) for label in labels)
        }
        for worker in (each for crew in crews.values() for each in crew):
            worker.answer()
        contests: dict[Case, list[Contest]] = {}
        for hold in HOLDS:
            cases = {label: Case(label, size.processes, hold) for label in labels}
            measures = {
                label: partial(_contest, nodes, crews[HOMES.get(label, HERE)], case, size.window)
                for label, case in cases.items()
            }
            contests |= {cases[label]: found for label, found in interleave(measures, size.hot_rounds).items()}
    columns = [
        "acquired/s", "commands each", "servers each", "wait p50", "p99", "max", f"not within {TIMEOUT:g} s",
        "fewest/most", "overlaps", "keys left",
    ]  # fmt: skip
    title = f"processes on one hot lock on {len(nodes.servers)} nodes, each holds it for so long, {size.window:g} s"
    report = Report("quorum_hot", title, columns, notes=notes)
    report.rows = [_row(case, found) for case, found in contests.items()]
    report.bounds = _bounds(contests)
    return report


def _contest(nodes: Nodes, crew: Sequence[Worker], case: Case, seconds: float) -> Contest:
    for worker in crew:
        worker.order((case.label, case.hold))
    for worker in crew:
        worker.answer()
    before = nodes.begin(case.label)
    start = clock() + START_AFTER
    for worker in crew:
        worker.order((start, start + seconds))
    shares: list[Share] = [worker.answer() for worker in crew]
    return Contest(shares, seconds, nodes.end(case.label, before), nodes.sweep(case.label))


def _row(case: Case, contests: Sequence[Contest]) -> Row:
    waits = [wait for contest in contests for share in contest.shares for wait in share.waits]
    half, most, longest = percentile(waits, 0.5), percentile(waits, 0.99), percentile(waits, 1.0)
    rates, commands, busy, fairness = (
        [getattr(contest, name) for contest in contests] for name in ("rate", "commands", "busy", "fairness")
    )
    failures, twice, left = (
        sum(getattr(contest, name) for contest in contests) for name in ("failures", "overlaps", "left")
    )
    cells = [
        f"{statistics.median(rates):,.0f}",
        f"{statistics.median(commands):.2f}",
        duration(statistics.median(busy)),
        *map(duration, (half, most, longest)),
        f"{failures} of {len(waits)}",
        f"{statistics.median(fairness):.2f}",
        str(twice),
        str(left),
    ]
    figures = {
        "rates": rates,
        "commands": commands,
        "server_seconds": busy,
        "fairness": fairness,
        "p50": half,
        "p99": most,
        "max": longest,
        "tries": len(waits),
        "failures": failures,
        "overlaps": twice,
        "left": left,
    }
    return Row(str(case), cells, MEANINGS[case.label], figures)


def _bounds(contests: Mapping[Case, Sequence[Contest]]) -> list[Bound]:
    """Bound what must never happen."""
    ours = [contest for case, found in contests.items() if case.label == THREADS for contest in found]
    return [Bound(f"{THREADS}: held by two at once", sum(contest.overlaps for contest in ours), 0)]


def serve(line: Connection, home: str, urls: Sequence[str]) -> None:
    """Be one of the processes, for all contenders that have the same home."""
    prepare(home)
    line.send("there")
    while True:
        label, hold = line.recv()
        with BLOCKING[label](urls) as contender:
            line.send("ready")
            start, until = line.recv()
            time.sleep(max(0.0, start - clock()))
            line.send(contend(contender, hold, until))


def contend(contender: Contender, hold: float, until: float) -> Share:
    """Acquire, hold, release, again and again."""
    share = Share()
    while (asked := clock()) < until:
        acquired = contender.acquire(TIMEOUT)
        got = clock()
        share.waits.append(got - asked)
        share.failures += not acquired or got - asked > TIMEOUT
        if not acquired:
            continue
        share.grants += got < until
        if hold:
            time.sleep(hold)
        share.held.append((got, clock()))
        contender.release()
    return share
