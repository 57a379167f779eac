"""How long after a release in one process the lock is held in another that waits for it."""

import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import (
    FASTENERS,
    FILELOCK,
    FILELOCK_QUICK,
    MEANINGS,
    OPENERS,
    PIPE,
    SQLITE_ASYNCIO,
    SQLITE_THREADS,
    Handle,
)
from bench.harness import Report, Row, Size, duration, interleave, percentile, ratios
from bench.workers import CONTEXT, Worker

LABELS = (SQLITE_THREADS, SQLITE_ASYNCIO, FILELOCK, FILELOCK_QUICK, FASTENERS, PIPE)
HOLD = (0.005, 0.02)
"""Between what times the lock is held, at random, so that no poll falls into step; seconds."""


def run(size: Size, folder: Path) -> Report:
    """Pass the lock of each contender between two processes."""
    ours, theirs = CONTEXT.Pipe()
    with Worker(play, ours, folder, "first") as first, Worker(play, theirs, folder, "second") as second:
        ours.close()
        theirs.close()
        rounds = interleave({label: _round(first, second, label, size.passes) for label in LABELS}, size.rounds)
    report = Report(
        "handoff",
        "from the start of a release in one process to the return of acquire in the next",
        ["p50", "p99", f"p50 over {SQLITE_THREADS}"],
    )
    medians = {label: [statistics.median(waits) for waits in found] for label, found in rounds.items()}
    for label, found in rounds.items():
        waits = [wait for each in found for wait in each]
        half, most = percentile(waits, 0.5), percentile(waits, 0.99)
        over = ratios(medians[label], medians[SQLITE_THREADS])
        figures = {"p50": half, "p99": most, "medians": medians[label], "passes": len(waits)}
        report.rows.append(Row(label, [duration(half), duration(most), str(over)], MEANINGS[label], figures))
    return report


def _round(first: Worker, second: Worker, label: str, passes: int) -> Callable[[], list[float]]:
    def measure() -> list[float]:
        for worker in (first, second):
            worker.order((label, passes))
        waits: list[float] = first.answer() + second.answer()
        return waits

    return measure


def play(line: Connection, peer: Connection, folder: Path, place: str) -> None:
    """Be one of the two processes."""
    with ExitStack() as stack:
        handles = {label: stack.enter_context(OPENERS[label](folder)) for label in LABELS}
        while True:
            label, passes = line.recv()
            line.send(_volley(handles[label], peer, passes, holding=place == "first"))


def _volley(handle: Handle, peer: Connection, passes: int, *, holding: bool) -> list[float]:
    """Pass the lock to and fro; return what each of our waits took."""
    if holding:
        handle.acquire()
        peer.send("held")
    else:
        peer.recv()
    waits: list[float] = []
    for _ in range(passes):
        if holding:
            peer.recv()
            time.sleep(random.uniform(*HOLD))  # by then the other waits
            peer.send(handle.release())
            peer.recv()  # only now may we ask: a lock without a queue would let us overtake
        else:
            peer.send("asking")
            got = handle.acquire()
            waits.append(got - peer.recv())
            peer.send("got")
        holding = not holding
    if holding:
        handle.release()
    return waits
