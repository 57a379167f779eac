"""The cost of one uncontended pair of acquire and release."""

import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import fasteners
import filelock

from bench.contenders import FASTENERS, FILELOCK, NAME, SQLITE_ASYNCIO, SQLITE_THREADS, sqlite_url
from bench.harness import Bound, Report, Size, ratios
from bench.timing import Measure, awaiting, blocking, lease_pair, measure_pairs, pair_report, plain_pair
from tenure import Client

LIMIT = 3.0

BARE = "bare SQLite pair"
MEMORY_THREADS = "memory threads"
UPSERT = (
    "INSERT INTO bench (name, holder, expires_at) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
    "SET holder = excluded.holder, expires_at = excluded.expires_at"
)
DELETE = "DELETE FROM bench WHERE name = ?"

MEANINGS = {
    SQLITE_THREADS: "tenure.Client, the embedded file",
    BARE: "floor: UPSERT, then DELETE, two transactions on the same file with the same settings",
    SQLITE_ASYNCIO: "tenure.AsyncClient, the embedded file",
    MEMORY_THREADS: "tenure.Client, memory:// (the protocol without a store)",
    "memory asyncio": "tenure.AsyncClient, memory://",
    "threading.Lock": "floor: one process, no ttl, no fencing token",
    FILELOCK: "filelock.FileLock: opens, locks and closes a file",
    FASTENERS: "fasteners.InterProcessLock: opens, locks and closes a file",
}


def run(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    with ExitStack() as stack:
        medians = measure_pairs(_open_all(stack, folder), size.pairs, size.pair_rounds)
    report = pair_report("pair", medians, MEANINGS, {"over bare": BARE})
    over_bare, memory = (ratios(medians[label], medians[BARE]).median for label in (SQLITE_THREADS, MEMORY_THREADS))
    why = f"the protocol without a store ({MEMORY_THREADS}), in Python, takes {memory:.2f} bare pairs by itself"
    report.bounds = [Bound(f"{SQLITE_THREADS} / {BARE}, median of the rounds' ratios", over_bare, LIMIT, why=why)]
    return report


def _open_all(stack: ExitStack, folder: Path) -> dict[str, Measure]:
    enter = stack.enter_context
    return {
        SQLITE_THREADS: blocking(lease_pair(enter(Client(sqlite_url(folder))).lock(NAME))),
        BARE: blocking(enter(_bare_pair(folder / "locks.db"))),
        SQLITE_ASYNCIO: enter(awaiting(sqlite_url(folder))),
        MEMORY_THREADS: blocking(lease_pair(enter(Client("memory://bench")).lock(NAME))),
        "memory asyncio": enter(awaiting("memory://bench-asyncio")),
        "threading.Lock": blocking(plain_pair(threading.Lock())),
        FILELOCK: blocking(plain_pair(filelock.FileLock(folder / "filelock"))),
        FASTENERS: blocking(plain_pair(fasteners.InterProcessLock(folder / "fasteners"))),
    }


@contextmanager
def _bare_pair(path: Path) -> Generator[Callable[[], object]]:
    """Yield the floor of a lock in a database file: one row inserted, one row deleted."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        execute = connection.execute
        execute("PRAGMA synchronous = OFF")  # as the store does; WAL mode is a property of the file
        execute("CREATE TABLE bench (name TEXT PRIMARY KEY, holder TEXT, expires_at INTEGER) WITHOUT ROWID")

        def pair() -> None:
            execute(UPSERT, (NAME, "0123456789abcdef0123456789abcdef", 1_700_000_000_000_000))
            execute(DELETE, (NAME,))

        yield pair
