"""A holder is killed with SIGKILL while another process waits: how soon the waiter has the lock.

The store ends the lease one ttl after its last renewal, so a waiter can't have it sooner, and should not have it much
later. Locks of the kernel end with the process, which is as soon as can be, on one machine.
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
from holdfast import Client

LIMIT = 50.0
"""How late, in milliseconds after the end of the dead holder's lease, the waiter may be."""


@dataclass(slots=True)
class Case:
    """One kind of waiter, and the kind of holder that it waits for."""

    waiter: Handle
    holder: Callable[[], AbstractContextManager[Handle]]
    """Opens the lock in the process that will be killed."""
    left: Callable[[], float]
    """How long the lease of the dead holder will last."""


@dataclass(slots=True)
class Wait:
    """One wait for a dead holder, in seconds."""

    since_kill: float
    since_end: float
    """Since the lease of the dead holder ended."""


def run(size: Size, folder: Path) -> Report:
    """Kill holders."""
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
    """Return how many seconds the lease on the name still has, by the store's clock."""
    return max((holder.expires_in for holder in watcher.inspect(NAME).holders), default=0.0)


def kill(cases: Mapping[str, Case], size: Size) -> dict[str, list[Wait]]:
    """Kill holders, in turns, and return how long the waiters waited."""
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
    report = Report(
        name, f"a holder with ttl {size.ttl:g} s is killed while another waits: when that one is granted", columns
    )
    for label, found in waits.items():
        kills, ends = [wait.since_kill for wait in found], [wait.since_end for wait in found]
        cells = [duration(pick(values)) for values in (kills, ends) for pick in (median, max)]
        report.rows.append(Row(label, cells, meanings[label], {"since_kill": kills, "since_end": ends}))
    return report


class Killing(threading.Thread):
    """Kills a holder after a while, from beside the thread that waits for its lock."""

    def __init__(self, holder: Worker, after: float, left: Callable[[], float]) -> None:
        """Prepare to kill, and to ask how long the dead holder's lease will last."""
        super().__init__(daemon=True)
        self.at = 0.0
        self.lease_ends_at = 0.0
        self._holder = holder
        self._after = after
        self._left = left

    def run(self) -> None:
        """Wait, kill, and ask."""
        time.sleep(self._after)
        self.at = clock()
        self._holder.kill()
        asked = clock()
        self.lease_ends_at = asked + self._left()


def hold(line: Connection, opener: Callable[[], AbstractContextManager[Handle]]) -> None:
    """Hold, and be renewed if that is the lock's way, until killed."""
    with opener() as handle:
        handle.acquire()
        line.send("held")
        line.recv()
