"""A holder is killed with SIGKILL while another process waits: how soon the waiter has the lock.

The store ends the lease one ttl after its last renewal, so a waiter can't have it sooner, and should not have it much
later. Locks of the kernel end with the process, which is as soon as can be, on one machine.
"""

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

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
from bench.harness import Bound, Report, Row, Size, duration, interleave, spread
from bench.workers import Worker
from holdfast import Client

LIMIT = 50.0
"""How late, in milliseconds after the end of the dead holder's lease, the waiter may be."""


@dataclass(slots=True)
class Case:
    """One kind of waiter, and the kind of holder that it waits for."""

    waiter: Handle
    hold: Callable[[Connection, Path, float], None]
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
        contenders = {label: _round(case, size, folder) for label, case in _open_all(stack, size, folder).items()}
        waits = interleave(contenders, size.kills)
    columns = ["after the kill", "at most", "after the lease's end", "at most"]
    report = Report("killed", f"a holder with ttl {size.ttl:g} s is killed while another waits; granted ...", columns)
    for label, found in waits.items():
        kills, ends = [wait.since_kill for wait in found], [wait.since_end for wait in found]
        cells = [
            duration(spread(kills).median),
            duration(max(kills)),
            duration(spread(ends).median),
            duration(max(ends)),
        ]
        report.rows.append(Row(label, cells, MEANINGS[label], {"since_kill": kills, "since_end": ends}))
        if label != FILELOCK:
            late = max(ends) * 1000
            report.bounds.append(Bound(f"{label}: granted after the last renewal + ttl, latest", late, LIMIT, " ms"))
    return report


def _open_all(stack: ExitStack, size: Size, folder: Path) -> dict[str, Case]:
    enter = stack.enter_context
    watcher = enter(Client(sqlite_url(folder)))

    def left() -> float:
        return max((holder.expires_in for holder in watcher.inspect(NAME).holders), default=0.0)

    return {
        SQLITE_THREADS: Case(enter(sqlite_threads(folder, size.ttl)), hold_lease, left),
        SQLITE_ASYNCIO: Case(enter(sqlite_asyncio(folder, size.ttl)), hold_lease, left),
        FILELOCK: Case(enter(file_lock(folder)), hold_file, lambda: 0.0),
    }


def _round(case: Case, size: Size, folder: Path) -> Callable[[], Wait]:
    def measure() -> Wait:
        with Worker(case.hold, folder, size.ttl) as holder:
            holder.answer()
            killing = Killing(holder, size.ttl * random.uniform(0.5, 0.9), case.left)
            killing.start()
            got = case.waiter.acquire()
            case.waiter.release()
            killing.join()
        return Wait(got - killing.at, got - killing.lease_ends_at)

    return measure


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


def hold_lease(line: Connection, folder: Path, ttl: float) -> None:
    """Hold, and be renewed, until killed."""
    with sqlite_threads(folder, ttl) as handle:
        _hold(line, handle)


def hold_file(line: Connection, folder: Path, _ttl: float) -> None:
    """Hold until killed."""
    with file_lock(folder) as handle:
        _hold(line, handle)


def _hold(line: Connection, handle: Handle) -> None:
    handle.acquire()
    line.send("held")
    line.recv()
