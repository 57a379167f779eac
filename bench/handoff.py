"""How long after a release in one process the lock is held in another that waits for it."""

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
"""Between what times the lock is held, at random, in seconds: all of a poll's 50 ms, so that none falls into step."""

Openers = Mapping[str, Callable[[], AbstractContextManager[Handle]]]
Pass = Callable[[str, int], list[float]]
"""Takes a label and how often to pass its lock, each way; returns how long each pass took."""


def run(size: Size, folder: Path) -> Report:
    """Pass the lock of each contender between two processes."""
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
    """Return the row of a contender: its passes, round by round, and what it is compared with."""
    waits = [wait for each in rounds for wait in each]
    half, most = percentile(waits, 0.5), percentile(waits, 0.99)
    medians = list(map(statistics.median, rounds))
    over = ratios(medians, list(map(statistics.median, base)))
    figures = {"p50": half, "p99": most, "medians": medians, "passes": len(waits)}
    return Row(label, [duration(half), duration(most), str(over)], meaning, figures)


@contextmanager
def two_players(openers: Openers, hold: tuple[float, float]) -> Generator[Pass]:
    """Start two processes that pass locks to each other, each held for a time between these."""
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
    """Be one of the two processes."""
    with ExitStack() as stack:
        handles = {label: stack.enter_context(opener()) for label, opener in openers.items()}
        while True:
            label, passes = line.recv()
            line.send(_volley(handles[label], peer, passes, hold, holding=place == "first"))


def _volley(handle: Handle, peer: Connection, passes: int, hold: tuple[float, float], *, holding: bool) -> list[float]:
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
            time.sleep(random.uniform(*hold))  # by then the other waits
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
