"""The time from a release in one process to the grant in another process that waits."""

import random
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
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
HOLD = (0.005, 0.055)
"""The limits of the random hold time, in seconds: the whole 50 ms of a poll, so that no contender's polls fall
into step with the releases."""

Openers = Mapping[str, Callable[[], AbstractContextManager[Handle]]]
Pass = Callable[[str, int], list[float]]
"""Takes a label and a number of hand-offs each way; returns the duration of each hand-off."""


def run(size: Size, folder: Path) -> Report:
    """Hand the lock of each contender off between two processes."""
    openers = {label: partial(OPENERS[label], folder) for label in LABELS}
    with two_players(openers, HOLD) as passed:
        rounds = interleave({label: partial(passed, label, size.passes) for label in LABELS}, size.rounds)
    title = "from the start of a release in one process to the return of acquire in the next"
    report = Report("handoff", title, ["p50", "p99", f"p50 over {SQLITE_THREADS}"])
    report.rows = [
        handoff_row(label, found, rounds[SQLITE_THREADS], MEANINGS[label]) for label, found in rounds.items()
    ]
    return report


def handoff_row(label: str, rounds: list[list[float]], base: list[list[float]], meaning: str) -> Row:
    """Return the row of a contender: its hand-offs, round by round, and the contender it is compared with."""
    waits = [wait for each in rounds for wait in each]
    half, most = percentile(waits, 0.5), percentile(waits, 0.99)
    medians = list(map(statistics.median, rounds))
    over = ratios(medians, list(map(statistics.median, base)))
    figures = {"p50": half, "p99": most, "medians": medians, "passes": len(waits)}
    return Row(label, [duration(half), duration(most), str(over)], meaning, figures)


@contextmanager
def two_players(openers: Openers, hold: tuple[float, float]) -> Generator[Pass]:
    """Start two processes that hand locks off to each other, and hold each for a random time between these limits."""
    ours, theirs = CONTEXT.Pipe()
    with Worker(play, ours, openers, hold, "first") as first, Worker(play, theirs, openers, hold, "second") as second:
        ours.close()
        theirs.close()

        def passed(label: str, passes: int) -> list[float]:
            for worker in (first, second):
                worker.order((label, passes))
            waits: list[float] = first.answer() + second.answer()
            return waits

        yield passed


def play(line: Connection, peer: Connection, openers: Openers, hold: tuple[float, float], place: str) -> None:
    """Run one of the two processes."""
    with ExitStack() as stack:
        handles = {label: stack.enter_context(opener()) for label, opener in openers.items()}
        while True:
            label, passes = line.recv()
            line.send(_volley(handles[label], peer, passes, hold, holding=place == "first"))


def _volley(handle: Handle, peer: Connection, passes: int, hold: tuple[float, float], *, holding: bool) -> list[float]:
    """Hand the lock off back and forth; return the duration of each wait of this process."""
    if holding:
        handle.acquire()
        peer.send("held")
    else:
        peer.recv()
    waits: list[float] = []
    for _ in range(passes):
        if holding:
            peer.recv()
            time.sleep(random.uniform(*hold))  # until then the other process waits
            peer.send(handle.release())
            peer.recv()  # wait for the grant: without a queue, this process could acquire the lock again first
        else:
            peer.send("asking")
            got = handle.acquire()
            waits.append(got - peer.recv())
            peer.send("got")
        holding = not holding
    if holding:
        handle.release()
    return waits
