"""The time from a release in one process to the grant in another, for a lock in PostgreSQL, MySQL or memcached."""

import asyncio
import statistics
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.contenders import NAME, AsyncHandle, Handle
from bench.handoff import two_players
from bench.harness import Bound, Report, Row, Size, duration, interleave, percentile, ratios
from bench.sql import contenders, floor
from bench.sql.contenders import (
    AWAITED,
    PEERS,
    POLLS,
    ROWS,
    SESSION_LOCK,
    SESSIONS,
    TEST_TIMEOUT,
    THREADS,
    TTL,
    one,
    url_of,
)
from bench.sql.servers import MEMCACHED, MYSQL, POSTGRESQL, running
from tenure import AsyncClient

HOLD = (0.02, 0.12)
"""The limits of the hold time: the whole 100 ms of a poll of sherlock, after the time of a slow request."""

PUSHED = 3.0
"""The greatest median with notifications, in milliseconds."""


def postgresql(size: Size, folder: Path) -> Report:
    """Hand the locks of all contenders in PostgreSQL off."""
    return run(POSTGRESQL, size, folder)


def mysql(size: Size, folder: Path) -> Report:
    """Hand the locks of all contenders in MySQL off."""
    return run(MYSQL, size, folder)


def memcached(size: Size, folder: Path) -> Report:
    """Hand the locks of all contenders in memcached off."""
    return run(MEMCACHED, size, folder)


def run(kind: str, size: Size, folder: Path) -> Report:
    """Hand the lock of each contender off between two processes."""
    with ExitStack() as stack:
        place = stack.enter_context(running(kind, folder))
        lineup = contenders.lineup(kind, place.url, (*ROWS, *POLLS[kind], *SESSIONS[kind], *PEERS[kind]))
        labels = [*lineup.labels, *([SESSION_LOCK[kind]] if kind in SESSION_LOCK else [])]
        openers = {label: partial(opened, kind, label, place.url) for label in labels}
        passed = stack.enter_context(two_players(openers, HOLD))
        measures = {label: partial(passed, label, size.passes) for label in labels}
        interleave({label: partial(passed, label, 2) for label in labels}, 1)  # warm up
        rounds = interleave(measures, size.rounds)
    title = "from the start of a release in one process to the return of acquire in the next"
    report = Report(f"{kind}_handoff", title, ["p50", "p95", f"p50 over {THREADS}"])
    report.rows = [_row(label, found, rounds[THREADS]) for label, found in rounds.items()]
    report.bounds = _bounds(kind, rounds)
    report.notes = [f"the server is {place.version}", *lineup.notes]
    return report


def opened(kind: str, label: str, url: str) -> AbstractContextManager[Handle]:
    """Open the lock of a contender, in the process that uses it."""
    return _awaited(url_of(label, url)) if label in AWAITED else one(kind, label, url)


@contextmanager
def _awaited(url: str) -> Generator[Handle]:
    """Open an AsyncClient in a loop of its own."""
    with asyncio.Runner() as runner:
        client = AsyncClient(url, operation_timeout=TEST_TIMEOUT)
        handle = AsyncHandle(runner, client.lock(NAME, TTL))
        handle.acquire()
        handle.release()
        try:
            yield handle
        finally:
            runner.run(client.close())


def _row(label: str, rounds: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> Row:
    waits = [wait for each in rounds for wait in each]
    half, most = percentile(waits, 0.5), percentile(waits, 0.95)
    medians = list(map(statistics.median, rounds))
    over = ratios(medians, list(map(statistics.median, base)))
    figures = {"p50": half, "p95": most, "medians": medians, "passes": len(waits)}
    meaning = (contenders.MEANINGS | floor.MEANINGS)[label]
    return Row(label, [duration(half), duration(most), str(over)], meaning, figures)


def _bounds(kind: str, rounds: Mapping[str, Sequence[Sequence[float]]]) -> list[Bound]:
    if kind != POSTGRESQL:
        return []
    return [
        Bound(f"{label}: p50", percentile((wait for each in rounds[label] for wait in each), 0.5) * 1000, PUSHED, " ms")
        for label in ROWS
    ]
