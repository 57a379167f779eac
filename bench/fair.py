"""The fairness among several processes that contend all the time."""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import (
    FASTENERS,
    FILELOCK,
    MEANINGS,
    OPENERS,
    PIPE,
    SQLITE_ASYNCIO,
    SQLITE_THREADS,
    Handle,
    clock,
    pipe,
)
from bench.harness import Bound, Report, Row, Size, interleave
from bench.workers import Worker

LABELS = (SQLITE_THREADS, SQLITE_ASYNCIO, FILELOCK, FASTENERS, PIPE)
BOUND = (SQLITE_THREADS, SQLITE_ASYNCIO)
HOLD = 0.001
START_AFTER = 0.05
LIMIT = 20.0
"""How far any process may be from the mean, in percent of the mean."""


def run(size: Size, folder: Path) -> Report:
    """Let the processes of each contender contend for some seconds in turns."""
    with ExitStack() as stack:
        stack.enter_context(pipe(folder))
        workers = [stack.enter_context(Worker(serve, folder)) for _ in range(size.processes)]
        for worker in workers:
            worker.answer()
        rounds = interleave({label: _round(workers, label, size.seconds) for label in LABELS}, size.rounds)
    title = (
        f"{size.processes} processes contend, each holds for {HOLD * 1000:g} ms; grants a process in {size.seconds:g} s"
    )
    report = Report("fair", title, ["grants/s", "least", "mean", "most", "farthest from mean"])
    for label, found in rounds.items():
        report.rows.append(_row(label, found, size.seconds))
        if label in BOUND:
            farthest = statistics.median(map(unfairness, found))
            text = f"{label}: farthest of a process from the mean, median of rounds"
            report.bounds.append(Bound(text, farthest, LIMIT, " %"))
    return report


def unfairness(grants: list[int]) -> float:
    """Return the greatest distance from the mean, in percent of the mean."""
    mean = statistics.mean(grants)
    return max(abs(each - mean) for each in grants) / mean * 100 if mean else float("inf")


def _row(label: str, rounds: list[list[int]], seconds: float) -> Row:
    farthest = [unfairness(grants) for grants in rounds]
    rate = statistics.median(sum(grants) / seconds for grants in rounds)
    least, most = (statistics.median(pick(grants) for grants in rounds) for pick in (min, max))
    mean = statistics.median(statistics.mean(grants) for grants in rounds)
    worst = f"{statistics.median(farthest):.0f} % ({min(farthest):.0f}..{max(farthest):.0f})"
    cells = [f"{rate:,.0f}", f"{least:.0f}", f"{mean:.1f}", f"{most:.0f}", worst]
    return Row(label, cells, MEANINGS[label], {"grants": rounds, "farthest_percent": farthest})


def _round(workers: list[Worker], label: str, seconds: float) -> Callable[[], list[int]]:
    def measure() -> list[int]:
        start = clock() + START_AFTER
        for worker in workers:
            worker.order((label, start, start + seconds))
        return [worker.answer() for worker in workers]

    return measure


def serve(line: Connection, folder: Path) -> None:
    """Run one of the processes."""
    with ExitStack() as stack:
        handles = {label: stack.enter_context(OPENERS[label](folder)) for label in LABELS}
        line.send("ready")
        while True:
            label, start, until = line.recv()
            time.sleep(max(0.0, start - clock()))
            line.send(_contend(handles[label], until))


def _contend(handle: Handle, until: float) -> int:
    grants = 0
    while handle.acquire() < until:
        time.sleep(HOLD)
        handle.release()
        grants += 1
    handle.release()
    return grants
