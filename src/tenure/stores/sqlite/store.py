"""The SQLite store: a grant table in a lock file, with notification channels through sockets beside it.

A transaction takes some tens of microseconds and never waits inside SQLite. While another process is in a transaction,
the store sleeps for a short random time in the runtime and tries again, so that it does not block an event loop.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tenure.contracts.cells import Cell
from tenure.contracts.findings import Finding, Report, ignore_findings
from tenure.contracts.messages import NameView, Notification, Page
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, StoreSource
from tenure.doctor.lock_file import RULES
from tenure.errors import StoreUnavailable
from tenure.posix import require_posix
from tenure.runtimes import clocks
from tenure.stores.sqlite import machine
from tenure.stores.sqlite.channel import SqliteChannel
from tenure.stores.sqlite.database import Database
from tenure.stores.sqlite.errors import LockedError
from tenure.stores.sqlite.examining import facts_of
from tenure.stores.tabled import Steps, TabledStore
from tenure.table.step import Step

T = TypeVar("T")

FIRST_PAUSE = 0.0001
LONGEST_PAUSE = 0.1
"""The pauses between two tries while the file is locked, in seconds; long enough that hundreds of clients succeed."""

PAGE = 1000
"""How many names one request lists: few enough that it delays other requests only briefly."""


class SqliteStore(TabledStore):
    """One client's access to a lock file."""

    capabilities = Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        runs_in_caller=True,
        multi_acquire=True,
        barging=True,
        cells=True,
        hands_over=True,
    )

    def __init__(
        self,
        runtime: Runtime,
        path: Path,
        clock: Callable[[], int] | None = None,
        wall: Callable[[], int] = clocks.wall_micros,
    ) -> None:
        """Create a store on the lock file at `path`. Opening it creates the file if there is none."""
        self._title = f"sqlite://{path}"
        self._path = path
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        self._runtime = runtime
        beside = os.path.realpath(path)  # as SQLite places its log: all links to the file share one folder
        self._channel = SqliteChannel(Path(f"{beside}.channel"), f"{os.getpid()}-{runtime.new_id()[16:]}")
        self._database = Database(path, clock or machine.BootClock(), wall, self._channel.listening)

    def identity(self) -> str:
        """Return the URL of the lock file."""
        return self._title

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Open the lock file, then the notification channel; return the address of the channel."""
        await self._unlocked(self._database.open, until)
        return self._channel.open(self._runtime, deliver)

    async def examine(self, ttl: float, timeout: float) -> Report:  # noqa: ARG002 - nothing waits, nothing depends on the ttl
        """Look at the file system, whether or not the file is there."""
        report = Report("")
        report.add(facts_of(self._path), RULES)
        return report

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Run `work` on one name in one transaction, then send the notifications of the step."""
        try:
            result, step = self._database.step(name, work)
        except LockedError:
            result, step = await self._unlocked(lambda: self._database.step(name, work), until)
        self._send(step)
        return result

    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:  # noqa: ARG002 - read when `work` asks
        """Run `work` on any number of names in one transaction, then send the notifications of the steps."""
        result, steps = await self._unlocked(lambda: self._database.steps(work), until)
        for step in steps.taken.values():
            self._send(step)
        return result

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the state of one name, from a snapshot."""
        step = await self._unlocked(lambda: self._database.look(name), until)
        return step.view(name)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use, sorted. Each page comes from a snapshot of its own."""
        first = rest if isinstance(rest, str) else prefix
        found = await self._unlocked(lambda: self._database.names(prefix, first, PAGE), until)
        return Page(found, found[-1] + "\0" if len(found) == PAGE else None)

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell."""
        return await self._unlocked(lambda: self._database.cell(name), until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - a file keeps all
        """Write a cell if it has this version, in one transaction."""
        return await self._unlocked(lambda: self._database.write_cell(name, value, version), until)

    async def close(self) -> None:
        """Remove the notification channel and close the file."""
        self._channel.close()
        self._database.close()

    def abandon(self) -> None:
        """Close the inherited sockets. The fork guard tells the database of the fork."""
        self._channel.abandon()

    def _send(self, step: Step) -> None:
        for notification in step.notifications:
            self._channel.send(notification)

    async def _unlocked(self, work: Callable[[], T], until: float) -> T:
        pause = FIRST_PAUSE
        while True:
            try:
                return work()
            except LockedError as error:
                if (left := until - self._runtime.now()) <= 0:
                    message = f"{self._title}: other processes kept the file locked until the timeout; raise `timeout`"
                    raise StoreUnavailable(message) from error
            await self._runtime.sleep(min(left, pause * (0.5 + self._runtime.random())))
            pause = min(pause * 1.5, LONGEST_PAUSE)


def sqlite_source(path: Path) -> StoreSource:
    """Return the source of stores that share the lock file at `path`. Raises UsageError if this is no POSIX system."""
    require_posix("a lock file", "use a server store, or memory:// for the threads of one process")
    return StoreSource(f"sqlite://{path}", SqliteStore.capabilities, lambda runtime: SqliteStore(runtime, path))
