"""A holder is killed with SIGKILL while another process waits: the time until the waiter is granted.

The store ends the lease one ttl after its last renewal, so the waiter cannot be granted sooner, and should not be
granted much later. A lock of the kernel ends with the process. That is the earliest possible time on one machine.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from bench.contenders import (
    FILELOCK,
    MEANINGS,
    NAME,
    SQLITE_ASYNCIO,
    SQLITE_THREADS,
    Handle,
    clock,
    file_lock,
    sqlite_asyncio,
    sqlite_threads,
    sqlite_url,
)
from bench.harness import Bound, Report, Row, Size, duration, interleave
from bench.workers import Worker
from tenure import Client

LIMIT = 50.0
"""How late the waiter may be granted, in milliseconds after the end of the dead holder's lease."""


@dataclass(slots=True)
class Case:
    """One kind of waiter, and the kind of holder for which it waits."""

    waiter: Handle
    holder: Callable[[], AbstractContextManager[Handle]]
    """Opens the lock in the process of the holder, which is killed."""
    left: Callable[[], float]
    """Returns how long the lease of the dead holder still lasts."""


@dataclass(slots=True)
class Wait:
    """One wait for a dead holder, in seconds."""

    since_kill: float
    since_end: float
    """The wait after the end of the dead holder's lease."""


def run(size: Size, folder: Path) -> Report:
    """Kill holders, and report how long their waiters wait."""
    with ExitStack() as stack:
        waits = kill(_open_all(stack, size, folder), size)
    report = killed_report("killed", size, waits, MEANINGS)
    for label in (SQLITE_THREADS, SQLITE_ASYNCIO):
        late = max(wait.since_end for wait in waits[label]) * 1000
        report.bounds.append(Bound(f"{label}: granted after the last renewal + ttl, latest", late, LIMIT, " ms"))
    return report


def _open_all(stack: ExitStack, size: Size, folder: Path) -> dict[str, Case]:
    enter = stack.enter_context
    left = partial(lease_left, enter(Client(sqlite_url(folder))))
    holder = partial(sqlite_threads, folder, size.ttl)
    return {
        SQLITE_THREADS: Case(enter(sqlite_threads(folder, size.ttl)), holder, left),
        SQLITE_ASYNCIO: Case(enter(sqlite_asyncio(folder, size.ttl)), holder, left),
        FILELOCK: Case(enter(file_lock(folder)), partial(file_lock, folder), lambda: 0.0),
    }


def lease_left(watcher: Client) -> float:
    """Return how many seconds the lease of the name still lasts, by the store's clock."""
    return max((holder.expires_in for holder in watcher.inspect(NAME).holders), default=0.0)


def kill(cases: Mapping[str, Case], size: Size) -> dict[str, list[Wait]]:
    """Kill the holders of all contenders in turns, and return the waits."""
    return interleave({label: partial(_kill_one, case, size.ttl) for label, case in cases.items()}, size.kills)


def _kill_one(case: Case, ttl: float) -> Wait:
    with Worker(hold, case.holder) as holder:
        holder.answer()
        killing = Killing(holder, ttl * random.uniform(0.5, 0.9), case.left)
        killing.start()
        got = case.waiter.acquire()
        case.waiter.release()
        killing.join()
    return Wait(got - killing.at, got - killing.lease_ends_at)


def killed_report(name: str, size: Size, waits: Mapping[str, Sequence[Wait]], meanings: Mapping[str, str]) -> Report:
    """Report on waits for dead holders."""
    columns = ["after the kill", "at most", "after the lease's end", "at most"]
    report = Report(name, f"a holder with ttl {size.ttl:g} s is killed: the time until the waiter is granted", columns)
    for label, found in waits.items():
        kills, ends = [wait.since_kill for wait in found], [wait.since_end for wait in found]
        cells = [duration(pick(values)) for values in (kills, ends) for pick in (median, max)]
        report.rows.append(Row(label, cells, meanings[label], {"since_kill": kills, "since_end": ends}))
    return report


class Killing(threading.Thread):
    """Kills a holder after a while, in a thread of its own."""

    def __init__(self, holder: Worker, after: float, left: Callable[[], float]) -> None:
        """Prepare to kill the holder, and to query how long its lease still lasts."""
        super().__init__(daemon=True)
        self.at = 0.0
        self.lease_ends_at = 0.0
        self._holder = holder
        self._after = after
        self._left = left

    def run(self) -> None:
        """Wait, kill the holder, and query its lease."""
        time.sleep(self._after)
        self.at = clock()
        self._holder.kill()
        asked = clock()
        self.lease_ends_at = asked + self._left()


def hold(line: Connection, opener: Callable[[], AbstractContextManager[Handle]]) -> None:
    """Hold the lock until the process is killed; a lock with renewal is renewed meanwhile."""
    with opener() as handle:
        handle.acquire()
        line.send("held")
        line.recv()
