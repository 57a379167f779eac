"""Several processes, each with its own client, contend for one lock on a majority of five Redis servers.

The benchmark measures the grants a second, the waits and timeouts, the share of each process, the cost of a grant for
the servers, whether two processes ever held the lock at once, and the keys that are left behind.
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
from bench.redis.redlocks import BLOCKING, FOLDERS, MEANINGS, POTTERY, REDLOCK_PY, THREADS, Contender, prepare
from bench.workers import Worker

HOLDS = (0.0, 0.002)
TIMEOUT = 1.0
"""The timeout of each attempt to acquire the lock, in seconds."""
START_AFTER = 0.05

LABELS = (THREADS, REDLOCK_NG, REDLOCK_PY, POTTERY)
SHARED = ""
"""Stands for the folder of the contenders that need no folder of their own."""


@dataclass(slots=True)
class Share:
    """The grants and waits of one process."""

    grants: int = 0
    """The grants within the window."""
    waits: list[float] = field(default_factory=list[float])
    """All waits, in seconds, including failed ones and the last wait, which ended after the window."""
    failures: int = 0
    """The number of attempts that failed or exceeded the timeout: some peers check the clock only between attempts."""
    held: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The periods in which the process certainly held the lock."""


@dataclass(slots=True)
class Contest:
    """The grants of all processes in one window, and their cost for the servers."""

    shares: Sequence[Share]
    seconds: float
    used: Used
    left: int
    """The number of keys on the nodes at the end."""

    @property
    def acquired(self) -> int:
        """The number of acquisitions, including those after the window."""
        return sum(len(share.held) for share in self.shares)

    @property
    def failures(self) -> int:
        """The number of attempts that failed or exceeded the timeout."""
        return sum(share.failures for share in self.shares)

    @property
    def rate(self) -> float:
        """The number of acquisitions a second."""
        return sum(share.grants for share in self.shares) / self.seconds

    @property
    def fairness(self) -> float:
        """The ratio of the fewest grants to the most."""
        grants = [share.grants for share in self.shares]
        return min(grants) / max(grants) if any(grants) else 0.0

    @property
    def commands(self) -> float:
        """The commands of clients, for each acquisition."""
        return self.used.commands / self.acquired if self.acquired else float("nan")

    @property
    def busy(self) -> float:
        """The processor time of all servers for each acquisition, in seconds."""
        return self.used.busy / self.acquired if self.acquired else float("nan")

    @property
    def overlaps(self) -> int:
        """The number of grants while another process held the lock."""
        return overlaps([each for share in self.shares for each in share.held])


def overlaps(held: Sequence[tuple[float, float]]) -> int:
    """Return how many of some periods begin before an earlier one has ended."""
    found, until = 0, float("-inf")
    for begin, end in sorted(held):
        found += begin < until
        until = max(until, end)
    return found


def run(size: Size, folder: Path) -> Report:
    """Let processes contend, one window each in turns."""
    labels, notes = able(LABELS)
    with ExitStack() as stack:
        nodes = stack.enter_context(running(folder))
        groups = {
            folder_name: [stack.enter_context(Worker(serve, folder_name, nodes.urls)) for _ in range(size.processes)]
            for folder_name in dict.fromkeys(FOLDERS.get(label, SHARED) for label in labels)
        }
        for worker in (each for group in groups.values() for each in group):
            worker.answer()
        contests: dict[Case, list[Contest]] = {}
        for hold in HOLDS:
            cases = {label: Case(label, size.processes, hold) for label in labels}
            measures = {
                label: partial(_contest, nodes, groups[FOLDERS.get(label, SHARED)], case, size.window)
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


def _contest(nodes: Nodes, group: Sequence[Worker], case: Case, seconds: float) -> Contest:
    for worker in group:
        worker.order((case.label, case.hold))
    for worker in group:
        worker.answer()
    before = nodes.begin(case.label)
    start = clock() + START_AFTER
    for worker in group:
        worker.order((start, start + seconds))
    shares: list[Share] = [worker.answer() for worker in group]
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
    """Return the bounds of overlaps and left keys, which must be zero."""
    ours = [contest for case, found in contests.items() if case.label == THREADS for contest in found]
    return [Bound(f"{THREADS}: overlaps", sum(contest.overlaps for contest in ours), 0)]


def serve(line: Connection, folder_name: str, urls: Sequence[str]) -> None:
    """Run one of the processes, for all contenders with the same folder."""
    prepare(folder_name)
    line.send("there")
    while True:
        label, hold = line.recv()
        with BLOCKING[label](urls) as contender:
            line.send("ready")
            start, until = line.recv()
            time.sleep(max(0.0, start - clock()))
            line.send(contend(contender, hold, until))


def contend(contender: Contender, hold: float, until: float) -> Share:
    """Acquire, hold and release in a loop."""
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
