"""The lock file: one connection, one immediate transaction a turn.

WAL, so that readers never block the writer. synchronous=OFF, because what must survive is the death of a process,
and what the machine forgets when it loses power was void anyway: leases end with the boot.
"""

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.errors import StoreError
from holdfast.stores.sqlite import codec
from holdfast.stores.sqlite.errors import explain
from holdfast.stores.sqlite.fork_guard import fork_guard
from holdfast.stores.sqlite.opening import open_file
from holdfast.stores.tabled import RETENTION, Steps
from holdfast.table.state import NameState
from holdfast.table.step import Step

T = TypeVar("T")

log = logging.getLogger("holdfast")

SWEEP_EVERY = 30_000_000
"""How often names that nobody uses are looked for, in microseconds."""
SWEEP_AT_MOST = 500
"""How many names one turn forgets at most, so that it takes others no time."""
SWEEP_ON = 50_000
"""After how many microseconds the next turn goes on if there may be more: sooner than names can come."""
LOOK_EVERY = 100_000
"""How often it is checked that the path still leads to the open file, in microseconds."""
KNOWN_AT_MOST = 256
"""How many names' states are remembered between turns."""

NO_FILE = (0, 0)
"""Stands for a device and inode that no file has."""

FETCH = "SELECT version, counter, state FROM names WHERE name = ?"
REPLACE = "UPDATE names SET version = ?, counter = ?, idle_after = ?, state = ? WHERE name = ? AND version = ?"
STORE = (
    "INSERT INTO names (version, counter, idle_after, state, name) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO "
    "UPDATE SET version = excluded.version, counter = excluded.counter, idle_after = excluded.idle_after, "
    "state = excluded.state"
)
RAISE_FLOOR = (
    "UPDATE meta SET floor = max(floor, (SELECT coalesce(max(counter), 0) FROM "
    "(SELECT counter FROM names WHERE idle_after < ? ORDER BY name LIMIT ?)))"
)
FORGET = "DELETE FROM names WHERE name IN (SELECT name FROM names WHERE idle_after < ? ORDER BY name LIMIT ?)"

_inherited: list[object] = []
"""Connections that a forked child must neither use nor close."""


@dataclass(slots=True)
class Known:
    """The state of a name at a version of its row."""

    version: int
    state: NameState

    def row(self, name: str) -> tuple[object, ...]:
        """Return the row to write after a step on the state, and the version that it replaces."""
        state, version = self.state, self.version
        return version + 1, state.counter, state.idle_after(), codec.dump(state), name, version


def _not_connected(_statement: str, _values: tuple[object, ...]) -> sqlite3.Cursor:
    raise sqlite3.ProgrammingError("not connected")


class Database:
    """One client's connection to a lock file, safe for its threads."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], int],
        wall: Callable[[], int],
        listening: Callable[[str], bool],
    ) -> None:
        """Prepare; nothing is opened yet."""
        self._path = path
        self._clock = clock
        self._wall = wall
        self._listening = listening
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._replace: Callable[[str, tuple[object, ...]], sqlite3.Cursor] = _not_connected
        self._closed = True
        self._file = NO_FILE
        self._sweep_at = 0
        self._looked_at = 0
        self._known: dict[str, Known] = {}
        fork_guard.watch(self)

    def open(self) -> None:
        """Open the file, making it if there is none. Raises LockedError if another process is just doing so."""
        with self._guard:
            self._open()
            self._closed = False

    def step(self, name: str, work: Callable[[Step], T]) -> tuple[T, Step]:
        """Carry out `work` on one name, atomically. Raises LockedError if another process is in a transaction.

        If we were the last to write the name, we know its state. Then the step is taken on what we know, and
        stored by a single statement that does nothing if somebody has written since; only then is it taken again,
        on what the file says. Both are atomic at the instant `now`: no other step came between it and the write.
        """
        with self._guard:
            now = self._clock()
            connection = self._current(now)
            known = self._known.pop(name, None)
            try:
                if known is not None and now < self._sweep_at:
                    step = Step(known.state, now, self._wall(), self._listening)
                    result = work(step)
                    if self._replace(REPLACE, known.row(name)).rowcount:
                        self._keep(name, known)
                        return result, step
                return self._step_slowly(connection, name, work)
            except sqlite3.Error as error:
                self._roll_back()
                explain(self._path, error)
            except BaseException:
                self._roll_back()
                raise

    def steps(self, work: Callable[[Steps], T]) -> tuple[T, Steps]:
        """Carry out `work` on any number of names at once. Raises LockedError as `step` does."""
        with self._guard:
            connection = self._current(self._clock())
            try:
                return self._transact(connection, work)
            except sqlite3.Error as error:
                self._roll_back()
                explain(self._path, error)
            except BaseException:
                self._roll_back()
                raise

    def look(self, name: str) -> Step:
        """Return a step on a snapshot of `name`, which will not be stored."""
        with self._guard:
            try:
                now = self._clock()
                known = self._fetch(self._current(now), name)
                return Step(known.state, now, self._wall(), self._listening)
            except sqlite3.Error as error:
                explain(self._path, error)

    def names(self, prefix: str, first: str, most: int) -> list[str]:
        """List the names in use that start with a prefix, sorted, from the `first` on, and `most` at most."""
        query = "SELECT name FROM names WHERE idle_after > ? AND name >= ? ORDER BY name LIMIT ?"
        with self._guard:
            try:
                now = self._clock()
                rows = self._current(now).execute(query, (now, first, most)).fetchall()
            except sqlite3.Error as error:
                explain(self._path, error)
        return [name for (name,) in rows if name.startswith(prefix)]  # SQLite's own functions stop at a NUL

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            self._closed = True
            self._disconnect()

    def quiesce(self, within: float) -> bool:
        """Disconnect and let nobody in until `go_on`; return False if another thread's turn does not end."""
        resting = self._guard.acquire(timeout=within)
        if resting:
            self._disconnect()
        return resting

    def go_on(self) -> None:
        """Let the next turn connect again."""
        self._guard.release()

    def forget(self) -> None:
        """In a child: drop what is still connected, without closing it; SQLite forbids use and closing there."""
        _inherited.append((self._connection, self._replace))
        self._connection = None
        self._replace = _not_connected
        self._closed = True
        self._guard = threading.Lock()

    # -- opening -------------------------------------------------------------------------------------------

    def _current(self, now: int) -> sqlite3.Connection:
        """Return the connection; a new one if it is found that the file was removed or replaced under us."""
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        if self._connection is None or abs(now - self._looked_at) > LOOK_EVERY:
            self._looked_at = now
            if self._file != NO_FILE and not self._is_in_place():
                self._file = NO_FILE
                log.error("%s was removed or replaced while in use: its leases are lost", self._path)
                self._disconnect()
        return self._connection or self._open()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._replace = _not_connected

    def _is_in_place(self) -> bool:
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def _open(self) -> sqlite3.Connection:
        self._known.clear()
        self._connection, self._file = open_file(self._path)
        self._replace = self._connection.cursor().execute  # a cursor of its own saves making one each time
        return self._connection

    # -- in a transaction ----------------------------------------------------------------------------------

    def _step_slowly(self, connection: sqlite3.Connection, name: str, work: Callable[[Step], T]) -> tuple[T, Step]:
        result, steps = self._transact(connection, lambda steps: work(steps.on(name)))
        return result, steps.taken[name]

    def _transact(self, connection: sqlite3.Connection, work: Callable[[Steps], T]) -> tuple[T, Steps]:
        execute = connection.execute
        found: dict[str, Known] = {}

        def load(name: str) -> NameState:
            found[name] = self._fetch(connection, name)
            return found[name].state

        execute("BEGIN IMMEDIATE")
        now = self._clock()
        steps = Steps(load, now, self._wall(), self._listening)
        result = work(steps)
        for name, known in found.items():
            self._known.pop(name, None)
            execute(STORE, known.row(name)[:-1])
        if now >= self._sweep_at:
            self._sweep(execute, now)
        execute("COMMIT")
        for name, known in found.items():
            self._keep(name, known)
        return result, steps

    def _fetch(self, connection: sqlite3.Connection, name: str) -> Known:
        row = connection.execute(FETCH, (name,)).fetchone()
        if row is not None:
            return Known(row[0], codec.load(name, row[1], row[2]))
        # A name that was forgotten and made anew must not come to a version that somebody still knows.
        return Known(self._clock(), NameState(connection.execute("SELECT floor FROM meta").fetchone()[0]))

    def _keep(self, name: str, written: Known) -> None:
        """Remember what we wrote, unless others wait for the name: then they will write next."""
        if written.state.queue:
            return
        if len(self._known) >= KNOWN_AT_MOST:
            self._known.clear()
        written.version += 1
        self._known[name] = written

    def _sweep(self, execute: Callable[..., sqlite3.Cursor], now: int) -> None:
        """Forget names that nobody used for long, and keep their counters in the floor of all new names."""
        self._sweep_at = now + SWEEP_EVERY
        limits = (now - RETENTION, SWEEP_AT_MOST)
        execute(RAISE_FLOOR, limits)
        if execute(FORGET, limits).rowcount == SWEEP_AT_MOST:
            self._sweep_at = now + SWEEP_ON

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
