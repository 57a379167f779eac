"""The cost of one uncontended pair of acquire and release on a majority of three or five Redis servers."""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.harness import Bound, Report, Row, Size, duration, interleave, ratios, spread
from bench.redis.apart import AIOREDLOCK, REDLOCK_NG
from bench.redis.nodes import Nodes, able, running
from bench.redis.redlocks import (
    ASYNCIO,
    LEAST,
    MEANINGS,
    OWN,
    POTTERY,
    POTTERY_ASYNCIO,
    REDLOCK_NG_ASYNCIO,
    REDLOCK_PY,
    THREADS,
    measuring,
    prepare,
)
from bench.timing import BATCH
from bench.workers import Worker

OVER_ONE = 3.0
"""The greatest ratio to the time on one node, with the greatest number of nodes."""
FASTER = 2.5
"""The least ratio to the best peer's speed, with the greatest number of nodes."""

COUNTS = (3, 5)
MOST = max(COUNTS)
SHARE = 4
"""How many times fewer pairs a round has than one on a single node, for the contenders are many and slow."""

PEERS = {
    THREADS: (REDLOCK_NG, REDLOCK_PY, POTTERY),
    ASYNCIO: (REDLOCK_NG_ASYNCIO, POTTERY_ASYNCIO, AIOREDLOCK),
}
"""The contenders that each form of Tenure's API is compared with."""
FLOORS = (OWN, LEAST)

COLUMNS = (
    "median",
    "min..max of rounds",
    "over one node",
    "over least",
    "commands",
    "client each",
    "servers each",
    "keys left",
)


@dataclass(slots=True)
class Round:
    """The cost of a pair for one contender in one round."""

    seconds: float
    """The median duration of the batches."""
    client: float
    """The processor time of the client, in seconds."""
    servers: float
    """The processor time of all servers, in seconds."""
    commands: float
    left: int
    """The number of keys on the nodes while nobody held the lock, in all batches."""


@dataclass(slots=True, frozen=True)
class Case:
    """One contender with its number of nodes."""

    label: str
    nodes: int

    def __str__(self) -> str:
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {self.label}"


def run(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    labels, notes = able([label for ours, peers in PEERS.items() for label in (ours, *peers)] + list(FLOORS))
    with ExitStack() as stack:
        nodes = stack.enter_context(running(folder))
        workers = {label: stack.enter_context(Worker(serve, label, nodes.urls)) for label in labels}
        for worker in workers.values():
            worker.answer()
        cases = {
            str(case): case
            for count in (1, *COUNTS)
            for case in [Case(label, count) for label in (PEERS if count == 1 else labels)]
        }
        measures = {
            title: partial(_round, workers[case.label], nodes, case, size.pairs // SHARE)
            for title, case in cases.items()
        }
        found = {cases[title]: rounds for title, rounds in interleave(measures, size.pair_rounds).items()}
    report = Report("quorum_pair", "an uncontended acquire + release on a quorum", COLUMNS, notes=notes)
    report.rows = [_row(case, found) for case in found]
    report.bounds = [bound for ours in PEERS for bound in _bounds(ours, found)]
    return report


def _round(worker: Worker, nodes: Nodes, case: Case, pairs: int) -> Round:
    nodes = nodes.first(case.nodes)
    before = nodes.begin(case.label)
    batches: list[tuple[float, float]] = []
    left = 0
    for _ in range(max(1, pairs // BATCH)):
        worker.order(case.nodes)
        batches.append(worker.answer())
        left += nodes.sweep(case.label)  # else the next pair waits until these keys expire
    used, done = nodes.end(case.label, before), len(batches) * BATCH
    seconds, client = (statistics.median(values) for values in zip(*batches, strict=True))
    return Round(seconds, client, used.busy / done, used.commands / done, left)


def serve(line: Connection, label: str, urls: Sequence[str]) -> None:
    """Run the process of one contender."""
    prepare(label)
    counts = (1, *COUNTS) if label in PEERS else COUNTS
    with ExitStack() as stack:
        measures = {count: stack.enter_context(measuring(label, urls[:count])) for count in counts}
        for measure in measures.values():
            measure(BATCH)  # connects
        line.send("ready")
        while True:
            measure = measures[line.recv()]
            before = time.process_time()
            seconds = measure(BATCH)
            line.send((seconds, (time.process_time() - before) / BATCH))


def _row(case: Case, found: Mapping[Case, Sequence[Round]]) -> Row:
    rounds = found[case]
    middle, left = spread(_seconds(rounds)), sum(each.left for each in rounds)
    client, servers, commands = _worked(rounds)
    cells = [
        duration(middle.median),
        f"{duration(middle.low)}..{duration(middle.high)}",
        str(ratios(_seconds(rounds), _seconds(found[Case(_ours(case.label), 1)]))),
        str(ratios(_seconds(rounds), _seconds(found[Case(LEAST, case.nodes)]))) if case.nodes > 1 else "",
        f"{commands:.2f}",
        duration(client),
        duration(servers),
        str(left),
    ]
    figures = {
        "seconds": _seconds(rounds),
        "client_seconds": client,
        "server_seconds": servers,
        "commands": commands,
        "left": left,
    }
    return Row(str(case), cells, MEANINGS[case.label], figures)


def _seconds(rounds: Sequence[Round]) -> list[float]:
    return [each.seconds for each in rounds]


def _worked(rounds: Sequence[Round]) -> list[float]:
    """Return the processor times of the client and the servers, and the number of commands, for each pair."""
    each = [(one.client, one.servers, one.commands) for one in rounds]
    return [statistics.median(values) for values in zip(*each, strict=True)]


def _ours(label: str) -> str:
    """Return the form of Tenure's API that a contender is compared with."""
    return next((ours for ours, peers in PEERS.items() if label in (ours, *peers)), THREADS)


def _bounds(ours: str, found: Mapping[Case, Sequence[Round]]) -> list[Bound]:
    seconds = {case.label: _seconds(rounds) for case, rounds in found.items() if case.nodes == MOST}
    one = _seconds(found[Case(ours, 1)])
    best = min((label for label in PEERS[ours] if label in seconds), key=lambda each: statistics.median(seconds[each]))
    client, servers, _ = _worked(found[Case(ours, MOST)])
    rest = (
        f"of a pair the client works for {duration(client)} and the servers, on the same cores, for {duration(servers)}"
    )
    floors = " and ".join(f"{ratios(seconds[floor], one).median:.2f}" for floor in FLOORS)
    faster = " and ".join(f"{ratios(seconds[best], seconds[floor]).median:.2f}" for floor in FLOORS)
    return [
        Bound(
            f"{MOST} nodes / 1 node, {ours}",
            ratios(seconds[ours], one).median,
            OVER_ONE,
            why=f"the floors (own scripts, least scripts) take {floors} times as long as that one node; {rest}",
        ),
        Bound(
            f"{MOST} nodes, {best} (the fastest of such peers) / {ours}",
            ratios(seconds[best], seconds[ours]).median,
            FASTER,
            at_least=True,
            why=f"the floors (own scripts, least scripts) are {faster} times as fast as that peer; {rest}",
        ),
    ]
