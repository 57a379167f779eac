"""What one uncontended acquire and release cost together."""

import asyncio
import sqlite3
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import fasteners
import filelock

from bench.contenders import FASTENERS, FILELOCK, NAME, SQLITE_ASYNCIO, SQLITE_THREADS, Plain, sqlite_url
from bench.harness import Bound, Report, Row, Size, duration, interleave, ratios, spread
from holdfast import AsyncClient, AsyncLock, Client, Lock

BATCH = 10
"""How many pairs are timed together, so that reading the clock costs nothing beside them."""
LIMIT = 3.0

BARE = "bare SQLite pair"
UPSERT = (
    "INSERT INTO bench (name, holder, expires_at) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
    "SET holder = excluded.holder, expires_at = excluded.expires_at"
)
DELETE = "DELETE FROM bench WHERE name = ?"

MEANINGS = {
    SQLITE_THREADS: "holdfast.Client, the embedded file",
    BARE: "floor: UPSERT, then DELETE, two transactions on the same file with the same settings",
    SQLITE_ASYNCIO: "holdfast.AsyncClient, the embedded file",
    "memory threads": "holdfast.Client, memory:// (the protocol without a store)",
    "memory asyncio": "holdfast.AsyncClient, memory://",
    "threading.Lock": "floor: one process, no ttl, no fencing token",
    FILELOCK: "filelock.FileLock: opens, locks and closes a file",
    FASTENERS: "fasteners.InterProcessLock: opens, locks and closes a file",
}

Measure = Callable[[int], float]
"""Takes how many pairs to do, returns the seconds that one took."""


def run(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    with ExitStack() as stack:
        measures = _open_all(stack, folder)
        contenders = {label: _round(measure, size.pairs) for label, measure in measures.items()}
        interleave(contenders, 1)  # warm up
        medians = interleave(contenders, size.pair_rounds)
    report = Report("pair", "an uncontended acquire + release", ["median", "min..max of rounds", "over bare"])
    report.rows = [_row(label, rounds, medians[BARE]) for label, rounds in medians.items()]
    over_bare = ratios(medians[SQLITE_THREADS], medians[BARE])
    report.bounds = [Bound(f"{SQLITE_THREADS} / {BARE}, median of the rounds' ratios", over_bare.median, LIMIT)]
    return report


def _row(label: str, rounds: list[float], bare: list[float]) -> Row:
    found, over_bare = spread(rounds), ratios(rounds, bare)
    cells = [duration(found.median), f"{duration(found.low)}..{duration(found.high)}", str(over_bare)]
    return Row(label, cells, MEANINGS[label], {"seconds": rounds, "over_bare": over_bare.median})


def _round(measure: Measure, pairs: int) -> Callable[[], float]:
    return lambda: statistics.median(measure(BATCH) for _ in range(max(1, pairs // BATCH)))


def _open_all(stack: ExitStack, folder: Path) -> dict[str, Measure]:
    enter = stack.enter_context
    return {
        SQLITE_THREADS: _blocking(_lease_pair(enter(Client(sqlite_url(folder))).lock(NAME))),
        BARE: _blocking(enter(_bare_pair(folder / "locks.db"))),
        SQLITE_ASYNCIO: enter(_awaiting(sqlite_url(folder))),
        "memory threads": _blocking(_lease_pair(enter(Client("memory://bench")).lock(NAME))),
        "memory asyncio": enter(_awaiting("memory://bench-asyncio")),
        "threading.Lock": _blocking(_plain_pair(threading.Lock())),
        FILELOCK: _blocking(_plain_pair(filelock.FileLock(folder / "filelock"))),
        FASTENERS: _blocking(_plain_pair(fasteners.InterProcessLock(folder / "fasteners"))),
    }


def _lease_pair(lock: Lock) -> Callable[[], object]:
    lock.acquire().release()  # opens the store and makes its file
    return lambda: lock.acquire().release()


def _plain_pair(lock: Plain) -> Callable[[], object]:
    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


@contextmanager
def _bare_pair(path: Path) -> Generator[Callable[[], object]]:
    """Yield the least that a lock in this file can be: a row put in, a row taken out."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        execute = connection.execute
        execute("PRAGMA synchronous = OFF")  # like the store; WAL is a property of the file
        execute("CREATE TABLE bench (name TEXT PRIMARY KEY, holder TEXT, expires_at INTEGER) WITHOUT ROWID")

        def pair() -> None:
            execute(UPSERT, (NAME, "0123456789abcdef0123456789abcdef", 1_700_000_000_000_000))
            execute(DELETE, (NAME,))

        yield pair


@contextmanager
def _awaiting(url: str) -> Generator[Measure]:
    with asyncio.Runner() as runner:
        client = AsyncClient(url)
        pair = _async_pair(client.lock(NAME))
        try:
            yield lambda count: runner.run(_time_awaited(pair, count))
        finally:
            runner.run(client.close())


def _async_pair(lock: AsyncLock) -> Callable[[], Awaitable[object]]:
    async def pair() -> None:
        await (await lock.acquire()).release()

    return pair


def _blocking(pair: Callable[[], object]) -> Measure:
    def measure(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            pair()
        return (time.perf_counter() - started) / count

    return measure


async def _time_awaited(pair: Callable[[], Awaitable[object]], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        await pair()
    return (time.perf_counter() - started) / count
