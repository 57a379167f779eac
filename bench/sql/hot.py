"""Many clients contend for one lock in PostgreSQL, MySQL or memcached: the grants a second, the waits, the shares.

The clients are threads of one process, processes, or threads of several processes. A client that has released the lock
wants it again at once.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import NAME, Handle, clock
from bench.contest import Share, contend, contend_asyncio
from bench.fair import LIMIT, unfairness
from bench.harness import Bound, Report, Row, Size, duration, interleave, percentile, ratios
from bench.sql import contenders, floor
from bench.sql.contenders import (
    AWAITED,
    OPENERS,
    PEERS,
    ROWS,
    SESSION_LOCK,
    SESSIONS,
    TEST_TIMEOUT,
    THREADS,
    TTL,
    url_of,
)
from bench.sql.servers import MEMCACHED, MYSQL, POSTGRESQL, running
from bench.workers import Worker
from tenure import AsyncClient

START_AFTER = 0.05

FASTER = 3.0
"""The least ratio to the best peer's speed, with the most clients and no hold time."""
NO_QUEUE = "memcached keeps no queue: who has released may be the next to poll"
GREEDY = 0.1
"""Below this share of fewest to most grants a lock does not pass from client to client."""
FAIR_HOLD = 0.001
"""How long each process holds the lock where the bound is fairness, in seconds."""


@dataclass(slots=True, frozen=True)
class Crowd:
    """Who contends: processes with some clients each, of which each holds the lock for so long."""

    processes: int
    clients: int
    hold: float

    def __str__(self) -> str:
        return f"{self.processes} x {self.clients}, {self.hold * 1000:g} ms"


@dataclass(slots=True, frozen=True)
class Case:
    """One contender in one crowd."""

    label: str
    crowd: Crowd

    def __str__(self) -> str:
        return f"{self.crowd}, {self.label}"


@dataclass(slots=True)
class Contest:
    """The grants of all clients in one window."""

    shares: Sequence[Sequence[Share]]
    """By process."""
    seconds: float

    def rate(self) -> float:
        """Return the acquisitions a second."""
        return sum(map(sum, self._grants())) / self.seconds

    def fairness(self) -> float:
        """Return the fewest grants of a client over the most."""
        grants = [each for process in self._grants() for each in process]
        return min(grants) / max(grants) if any(grants) else 0.0

    def of_processes(self) -> list[int]:
        """Return the grants of each process."""
        return [sum(process) for process in self._grants()]

    def waits(self) -> list[float]:
        """Return the waits of all clients."""
        return [wait for process in self.shares for share in process for wait in share.waits]

    def _grants(self) -> list[list[int]]:
        return [[share.grants for share in process] for process in self.shares]


def postgresql(size: Size, folder: Path) -> Report:
    """Contend for a lock in PostgreSQL."""
    return run(POSTGRESQL, size, folder)


def mysql(size: Size, folder: Path) -> Report:
    """Contend for a lock in MySQL."""
    return run(MYSQL, size, folder)


def memcached(size: Size, folder: Path) -> Report:
    """Contend for a lock in memcached."""
    return run(MEMCACHED, size, folder)


def crowds(size: Size) -> list[Crowd]:
    """Return who contends: as many clients in three ways, and the processes that are to be fair."""
    most = size.threads
    few = max(1, most // 8)
    return [
        Crowd(1, most, 0.0),
        Crowd(few, most // few, 0.0),
        Crowd(most, 1, 0.0),
        Crowd(min(size.processes, most), 1, FAIR_HOLD),
    ]


def run(kind: str, size: Size, folder: Path) -> Report:
    """Let clients contend, one window for each contender in turns."""
    found: dict[Case, list[Contest]] = {}
    with ExitStack() as stack:
        place = stack.enter_context(running(kind, folder))
        lineup = contenders.lineup(kind, place.url, (*ROWS, *SESSIONS[kind], *PEERS[kind]))
        labels = [*lineup.labels, *([SESSION_LOCK[kind]] if kind in SESSION_LOCK else [])]
        most = max(crowd.processes for crowd in crowds(size))
        workers = [stack.enter_context(Worker(serve, kind, place.url)) for _ in range(most)]
        for worker in workers:
            worker.answer()
        for crowd in crowds(size):
            found |= _contend_in_turns(workers, [Case(label, crowd) for label in labels], size)
    report = Report(f"{kind}_hot", _title(size), ["acquired/s", "wait p50", "p99", "max", "fewest/most"])
    report.rows = [_row(case, contests) for case, contests in found.items()]
    report.bounds = [*_faster(kind, found), *_fair(kind, found)]
    report.notes = [f"the server is {place.version}", *lineup.notes]
    return report


def _title(size: Size) -> str:
    return (
        "processes x clients in each (threads, or tasks of asyncio) contend for one hot lock, each holds it for so "
        f"long, {size.window:g} s"
    )


def _contend_in_turns(workers: Sequence[Worker], cases: Sequence[Case], size: Size) -> dict[Case, list[Contest]]:
    measures = {case.label: partial(_contest, workers[: case.crowd.processes], case, size.window) for case in cases}
    rounds = interleave(measures, size.hot_rounds)
    return {case: rounds[case.label] for case in cases}


def _contest(workers: Sequence[Worker], case: Case, seconds: float) -> Contest:
    for worker in workers:
        worker.order((case.label, case.crowd))
    for worker in workers:
        worker.answer()
    start = clock() + START_AFTER
    for worker in workers:
        worker.order((start, start + seconds))
    return Contest([worker.answer() for worker in workers], seconds)


def _row(case: Case, contests: Sequence[Contest]) -> Row:
    waits = [wait for contest in contests for wait in contest.waits()]
    half, most, longest = percentile(waits, 0.5), percentile(waits, 0.99), percentile(waits, 1.0)
    rates, fairness = [each.rate() for each in contests], [each.fairness() for each in contests]
    cells = [
        f"{statistics.median(rates):,.0f}",
        *map(duration, (half, most, longest)),
        f"{statistics.median(fairness):.2f}",
    ]
    figures = {"rates": rates, "fairness": fairness, "p50": half, "p99": most, "max": longest}
    return Row(str(case), cells, (contenders.MEANINGS | floor.MEANINGS)[case.label], figures)


def _faster(kind: str, found: Mapping[Case, Sequence[Contest]]) -> list[Bound]:
    """Compare the rate of threads with the fastest peer's, in each crowd without a hold time."""
    bounds: list[Bound] = []
    for case in found:
        if case.label != THREADS or case.crowd.hold:
            continue
        rates = {label: _rates(found[Case(label, case.crowd)]) for label in PEERS[kind]}
        best = max(rates, key=lambda label: statistics.median(rates[label]))
        over = ratios(_rates(found[case]), rates[best]).median
        bounds.append(Bound(f"{case} / {best}", over, FASTER, at_least=True, why=_why(kind, case.crowd, found, best)))
    return bounds


def _why(kind: str, crowd: Crowd, found: Mapping[Case, Sequence[Contest]], best: str) -> str:
    served = statistics.median(each.fairness() for each in found[Case(best, crowd)])
    if served < GREEDY:
        return (
            f"{best} does not pass the lock on: the client with the fewest grants has {served:.2f} times as many as "
            "the one with the most"
        )
    if kind not in SESSION_LOCK:
        return f"{best} has no queue either, and a client that has released the lock takes it again"
    bare = SESSION_LOCK[kind]
    reached = ratios(_rates(found[Case(bare, crowd)]), _rates(found[Case(best, crowd)])).median
    return f"the {bare} itself is {reached:.2f} times as fast: the server wakes a waiter without a message"


def _rates(contests: Sequence[Contest]) -> list[float]:
    return [each.rate() for each in contests]


def _fair(kind: str, found: Mapping[Case, Sequence[Contest]]) -> list[Bound]:
    return [
        Bound(
            f"{case}: farthest of a process from the mean, median of rounds",
            statistics.median(unfairness(each.of_processes()) for each in contests),
            LIMIT,
            " %",
            why=NO_QUEUE if kind == MEMCACHED else "",
        )
        for case, contests in found.items()
        if case.label in ROWS and case.crowd.hold
    ]


# -- a process --------------------------------------------------------------------------------------------------


def serve(line: Connection, kind: str, url: str) -> None:
    """Run one of the processes."""
    line.send("there")
    while True:
        label, crowd = line.recv()
        if label in AWAITED:
            _serve_tasks(line, url_of(label, url), crowd)
        else:
            with OPENERS[kind][label](url, crowd.clients) as handles:
                line.send("ready")
                start, until = line.recv()
                time.sleep(max(0.0, start - clock()))
                line.send(_contend_in_threads(handles, crowd.hold, until))


def _contend_in_threads(handles: Sequence[Handle], hold: float, until: float) -> list[Share]:
    if len(handles) == 1:
        return [contend(handles[0], hold, until)]
    shares: list[Share] = []

    def work(handle: Handle) -> None:
        shares.append(contend(handle, hold, until))

    threads = [threading.Thread(target=work, args=(handle,), daemon=True) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(shares) < len(handles):
        message = f"{len(handles) - len(shares)} of {len(handles)} clients failed"
        raise RuntimeError(message)
    return shares


def _serve_tasks(line: Connection, url: str, crowd: Crowd) -> None:
    with asyncio.Runner() as runner:
        client = AsyncClient(url, operation_timeout=TEST_TIMEOUT)
        runner.run(_connect(client))
        line.send("ready")
        start, until = line.recv()
        time.sleep(max(0.0, start - clock()))
        line.send(runner.run(_contend_in_tasks(client, crowd, until)))
        runner.run(client.close())


async def _connect(client: AsyncClient) -> None:
    await (await client.lock(NAME, TTL).acquire(timeout=TEST_TIMEOUT)).release()


async def _contend_in_tasks(client: AsyncClient, crowd: Crowd, until: float) -> list[Share]:
    lock = client.lock(NAME, TTL)
    return list(await asyncio.gather(*(contend_asyncio(lock, crowd.hold, until) for _ in range(crowd.clients))))
