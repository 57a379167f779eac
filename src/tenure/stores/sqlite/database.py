"""One client's connection to the lock file: each step is one immediate transaction.

WAL mode lets readers run beside the writer. `synchronous = OFF` is safe: the data must survive the death of a process,
but not a loss of power, because every lease ends when the machine boots.
"""

import contextlib
import logging
import sqlite3
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from tenure.contracts import forms
from tenure.contracts.cells import Cell
from tenure.errors import StoreError
from tenure.stores import table_codec as codec
from tenure.stores.sqlite.errors import LockedError, to_store_error
from tenure.stores.sqlite.fork_guard import fork_guard
from tenure.stores.sqlite.opening import LockFiles, open_file
from tenure.stores.tabled import RETENTION, Steps
from tenure.table.state import NameState
from tenure.table.step import Step

T = TypeVar("T")

log = logging.getLogger("tenure")

SWEEP_EVERY = 30_000_000
"""The time between two searches for unused names, in microseconds."""
SWEEP_AT_MOST = 500
"""How many names one transaction deletes at most, so that it does not delay other processes."""
SWEEP_ON = 50_000
"""The pause before the sweep continues if more names may be unused, in microseconds: it outpaces new names."""
LOOK_EVERY = 100_000
"""The time between two checks that the path still leads to the open file, in microseconds."""
KNOWN_AT_MOST = 256
"""How many states are cached between transactions."""

FETCH = "SELECT form, version, counter, idle_after, state FROM meta LEFT JOIN names ON name = ?"
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
FETCH_CELL = "SELECT form, version, value FROM meta LEFT JOIN cells ON name = ?"
WRITE_CELL = (
    "REPLACE INTO cells (version, name, value) "
    "SELECT max(?, coalesce(max(seq), 0) + 1), ?, ? FROM sqlite_sequence WHERE name = 'cells'"
)
"""The version is at least the clock: an old copy of the file does not count up to versions that it has not heard of."""
REMOVE_CELL = "DELETE FROM cells WHERE name = ?"
FORGET = "DELETE FROM names WHERE name IN (SELECT name FROM names WHERE idle_after < ? ORDER BY name LIMIT ?)"

_databases: WeakValueDictionary[int, "Database"] = WeakValueDictionary()
"""The databases of this process. `list(_databases.valuerefs())` is one step, whatever other threads do."""

_inherited: list[object] = []
"""Connections that a forked child must neither use nor close."""


@dataclass(slots=True)
class Known:
    """The state of a name, and the version of its row."""

    version: int
    state: NameState

    def row(self, name: str) -> tuple[object, ...]:
        """Return the values of the row to write after a step on the state, then the version that the row replaces."""
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
        """Prepare the connection. Nothing is opened yet."""
        self._path = path
        self._clock = clock
        self._wall = wall
        self._listening = listening
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._replace: Callable[[str, tuple[object, ...]], sqlite3.Cursor] = _not_connected
        self._closed = True
        self._files: LockFiles | None = None
        self._sweep_at = 0
        self._looked_at = 0
        self._known: dict[str, Known] = {}
        self._form = ""
        """The mark of the stored form that was checked last."""
        fork_guard.watch(self)
        _databases[id(self)] = self

    def open(self) -> None:
        """Open the lock file, and create it if there is none. Raises LockedError while another process creates it."""
        with self._guard:
            if self._connection is None:
                self._open()
            self._closed = False

    def step(self, name: str, work: Callable[[Step], T]) -> tuple[T, Step]:
        """Run `work` on one name in one transaction. Raises LockedError if another process is in a transaction.

        If this client was the last writer of the name, it has the state in its cache. It runs the step on the cached
        state and writes it with one statement that changes nothing if another client wrote the row meanwhile. Only in
        that case does it run the step again, on the state in the file. Both ways are atomic at the instant `now`: no
        other step comes between the read and the write.
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
                raise to_store_error(self._path, error) from error
            except BaseException:
                self._roll_back()
                raise

    def steps(self, work: Callable[[Steps], T]) -> tuple[T, Steps]:
        """Run `work` on any number of names in one transaction. Raises LockedError as `step` does."""
        with self._guard:
            connection = self._current(self._clock())
            try:
                return self._transact(connection, work)
            except sqlite3.Error as error:
                self._roll_back()
                raise to_store_error(self._path, error) from error
            except BaseException:
                self._roll_back()
                raise

    def look(self, name: str) -> Step:
        """Return a step on a snapshot of `name`. The step is never saved."""
        with self._guard:
            try:
                now = self._clock()
                known = self._fetch(self._current(now), name)
                return Step(known.state, now, self._wall(), self._listening)
            except sqlite3.Error as error:
                raise to_store_error(self._path, error) from error

    def names(self, prefix: str, first: str, most: int) -> list[str]:
        """Return at most `most` names in use that start with `prefix`, sorted, from the name `first` on."""
        query = "SELECT name FROM names WHERE idle_after > ? AND name >= ? ORDER BY name LIMIT ?"
        self.look("")  # refuses a later form
        with self._guard:
            try:
                now = self._clock()
                rows = self._current(now).execute(query, (now, first, most)).fetchall()
            except sqlite3.Error as error:
                raise to_store_error(self._path, error) from error
        return [name for (name,) in rows if name.startswith(prefix)]  # functions of SQLite stop at a NUL character

    def cell(self, name: str) -> Cell:
        """Return a cell."""
        with self._guard:
            try:
                return self._fetch_cell(self._current(self._clock()), name)
            except sqlite3.Error as error:
                raise to_store_error(self._path, error) from error

    def write_cell(self, name: str, value: bytes, version: int) -> Cell:
        """Write a cell if it has this version; b"" removes it. Raises LockedError as `step` does."""
        with self._guard:
            connection = self._current(self._clock())
            try:
                connection.execute("BEGIN IMMEDIATE")
                cell = self._fetch_cell(connection, name)
                if cell.version == version:
                    if value:
                        connection.execute(WRITE_CELL, (self._wall(), name, value))
                    else:
                        connection.execute(REMOVE_CELL, (name,))
                    cell = replace(self._fetch_cell(connection, name), written=True)
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise to_store_error(self._path, error) from error
            except BaseException:
                self._roll_back()
                raise
            return cell

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            self._closed = True
            self._disconnect()

    def quiesce(self, within: float) -> bool:
        """Disconnect and block all threads until `go_on`. Return False if another thread's transaction does not end."""
        resting = self._guard.acquire(timeout=within)
        if resting:
            self._disconnect()
        return resting

    def go_on(self) -> None:
        """Unblock the threads; the next transaction connects again."""
        self._guard.release()

    def forget(self) -> None:
        """In a forked child: drop the connection without closing it. SQLite forbids a child to use or to close it."""
        _inherited.append((self._connection, self._replace))
        self._connection = None
        self._replace = _not_connected
        self._closed = True
        self._guard = threading.Lock()

    # -- opening -------------------------------------------------------------------------------------------

    def _current(self, now: int) -> sqlite3.Connection:
        """Return the connection. Open a new one if the file was removed or replaced since it was opened."""
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        if self._connection is None or abs(now - self._looked_at) > LOOK_EVERY:
            self._looked_at = now
            self._leave_removed_file()
        return self._connection or self._open()

    def leave_removed_log(self, now: LockFiles) -> bool:
        """Close a connection whose log is not the one that the lock file has now. Return False if it is in use.

        The connections of a process share the index of the log: a new one would read its own log by the index of ours.
        """
        files = self._files  # another thread may leave them at any time
        if self._connection is None or files is None or not files.have_another_log(now):
            return True
        if idle := self._guard.acquire(blocking=False):
            try:
                self._leave_removed_file()
            finally:
                self._guard.release()
        return idle

    def _leave_removed_file(self) -> None:
        if self._files is not None and not self._files.are_in_place(connected=self._connection is not None):
            log.error("%s or its log was removed or replaced while in use: its leases may be lost", self._path)
            self._disconnect()
            self._files = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            if sys.version_info >= (3, 12) and self._files is not None and self._files.others_began_a_log():
                # The last connection to the file would copy a removed log over what others wrote since.
                self._connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
            self._connection.close()
            self._connection = None
            self._replace = _not_connected

    def _open(self) -> sqlite3.Connection:
        self._known.clear()
        now = LockFiles(self._path)
        if not all(each.leave_removed_log(now) for ref in _databases.valuerefs() if (each := ref()) is not None):
            raise LockedError
        self._connection, self._files = open_file(self._path)
        self._replace = self._connection.cursor().execute  # one cursor for all: a new one each time is slower
        return self._connection

    def _check(self, form: str) -> None:
        """Refuse a file whose form was raised since it was opened to one that this client does not read."""
        if form != self._form:
            forms.check(form, str(self._path))
            self._form = form

    # -- in a transaction ----------------------------------------------------------------------------------

    def _fetch_cell(self, connection: sqlite3.Connection, name: str) -> Cell:
        form, version, value = connection.execute(FETCH_CELL, (name,)).fetchone()
        self._check(form)
        return Cell(value or b"", version or 0, self._wall())

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
        form, version, counter, idle_after, state = connection.execute(FETCH, (name,)).fetchone()
        self._check(form)
        if version is not None:
            return Known(version, codec.load(name, counter, state, idle_after))
        # A client may still cache a version of a deleted row, so a new row starts with a version that no row had.
        return Known(self._clock(), NameState(connection.execute("SELECT floor FROM meta").fetchone()[0]))

    def _keep(self, name: str, written: Known) -> None:
        """Cache the state just written, unless the name has waiters: another client will write the row next."""
        if written.state.queue:
            return
        if len(self._known) >= KNOWN_AT_MOST:
            self._known.clear()
        written.version += 1
        self._known[name] = written

    def _sweep(self, execute: Callable[..., sqlite3.Cursor], now: int) -> None:
        """Delete names unused for longer than RETENTION, and raise the floor of all new names to their counters."""
        self._sweep_at = now + SWEEP_EVERY
        limits = (now - RETENTION, SWEEP_AT_MOST)
        execute(RAISE_FLOOR, limits)
        if execute(FORGET, limits).rowcount == SWEEP_AT_MOST:
            self._sweep_at = now + SWEEP_ON

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
