"""The lock file: one connection, one immediate transaction a turn, and what can be wrong with a file, in plain words.

WAL, so that readers never block the writer. synchronous=OFF, because what must survive is the death of a process,
and what the machine forgets when it loses power was void anyway: leases end with the boot.
"""

import contextlib
import errno
import logging
import os
import sqlite3
import stat
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NoReturn, TypeVar

from holdfast import fork
from holdfast.core.state import NameState
from holdfast.core.table import Step
from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.stores.sqlite import codec, machine
from holdfast.stores.tabled import RETENTION, Steps

T = TypeVar("T")

log = logging.getLogger("holdfast")

APPLICATION_ID = 0x484F4C44  # "HOLD"
LAYOUT = 1
SWEEP_EVERY = 300_000_000
"""How often names that nobody uses are looked for, in microseconds."""
SWEEP_AT_MOST = 500
LOOK_EVERY = 100_000
"""How often it is checked that the path still leads to the open file, in microseconds."""
REST_WITHIN = 1.0
"""How long a fork waits for the turn of another thread to end, in seconds."""
KNOWN_AT_MOST = 256
"""How many names' states are remembered between turns."""

NO_FILE = (0, 0)
"""Stands for a device and inode that no file has."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL})
"""Primary error codes of conditions that may end by themselves."""

IDLE_STATE = codec.dump(NameState())

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

_opening = threading.Lock()
"""Held while a file is made and opened. Closing any descriptor of a file drops all locks that the process has on it,
SQLite's included: so a file is only ever opened beside SQLite when nobody in this process can have it open."""

_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()

_inherited: list[object] = []
"""Connections that a forked child must neither use nor close."""


class LockedError(Exception):
    """Another process is in a transaction; it takes microseconds."""


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
        _databases.add(self)

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
                self._explain(error)
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
                self._explain(error)
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
                self._explain(error)

    def names(self, prefix: str) -> list[str]:
        """List the names in use."""
        query = "SELECT name FROM names WHERE idle_after > ? AND name >= ? ORDER BY name"
        with self._guard:
            try:
                now = self._clock()
                rows = self._current(now).execute(query, (now, prefix)).fetchall()
            except sqlite3.Error as error:
                self._explain(error)
        return [name for (name,) in rows if name.startswith(prefix)]  # SQLite's own functions stop at a NUL

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            self._closed = True
            self._disconnect()

    def rest(self) -> bool:
        """Disconnect and let nobody in until `go_on`; return False if another thread's turn does not end."""
        resting = self._guard.acquire(timeout=REST_WITHIN)
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

    def abandon(self) -> None:
        """Do nothing: the fork was noticed."""

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
        with _opening:
            self._make_file()
            try:
                connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            except sqlite3.Error as error:
                self._explain(error)
        try:
            self._prepare(connection)
        except sqlite3.Error as error:
            connection.close()
            self._explain(error)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._replace = connection.cursor().execute  # a cursor of its own saves making one each time
        return connection

    def _make_file(self) -> None:
        kind = machine.file_system(self._path.parent)
        if kind in machine.SHARED_BETWEEN_KERNELS:
            message = (
                f"{self._path} is on a {kind} file system, which other machines may share; an embedded lock file "
                "coordinates one machine only. Use a file on a local disk, or a server store."
            )
            raise UsageError(message)
        try:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            found = os.stat(self._path)
        except OSError as error:
            self._explain_file(error)
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{self._path} is not a file; give the path of a file, or of one that can be made.")
        self._file = (found.st_dev, found.st_ino)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        execute = connection.execute
        self._check_owner(connection)
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = OFF")
        execute("BEGIN IMMEDIATE")
        try:
            boot = machine.boot_id()
            if execute("PRAGMA user_version").fetchone()[0] == 0:
                self._create(connection, boot)
            elif execute("SELECT boot FROM meta").fetchone()[0] != boot:
                execute("UPDATE names SET state = ?, idle_after = 0", (IDLE_STATE,))
                execute("UPDATE meta SET boot = ?", (boot,))
            execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                execute("ROLLBACK")
            raise

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")  # all in one look, or whoever makes the file could come between two questions
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        layout = connection.execute("PRAGMA user_version").fetchone()[0]
        foreign = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        connection.execute("COMMIT")
        if application != APPLICATION_ID and (application or layout or foreign):
            message = f"{self._path} is a database of another program; give Holdfast a file of its own."
            raise StoreError(message)
        if layout > LAYOUT:
            message = f"{self._path} was made by a newer version of Holdfast (layout {layout}); upgrade this one."
            raise StoreError(message)

    def _create(self, connection: sqlite3.Connection, boot: str) -> None:
        schema = resources.files("holdfast.stores.sqlite").joinpath("schema.sql").read_text("utf-8")
        plain = "\n".join(line.partition("--")[0] for line in schema.splitlines())
        for statement in filter(str.strip, plain.split(";")):
            connection.execute(statement)
        connection.execute("INSERT INTO meta (only, boot, floor) VALUES (1, ?, 0)", (boot,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {LAYOUT}")

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

    def _sweep(self, execute: Callable[..., object], now: int) -> None:
        """Forget names that nobody used for long, and keep their counters in the floor of all new names."""
        self._sweep_at = now + SWEEP_EVERY
        limits = (now - RETENTION, SWEEP_AT_MOST)
        execute(RAISE_FLOOR, limits)
        execute(FORGET, limits)

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    # -- what went wrong -----------------------------------------------------------------------------------

    def _explain(self, error: sqlite3.Error) -> NoReturn:
        """Raise what a database error means to a user of locks."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in BUSY:
            raise LockedError from error
        path = self._path
        if code == sqlite3.SQLITE_FULL:
            message = f"{path}: the disk is full, so no lock can be taken or renewed; nothing was changed. Free space."
        elif code == sqlite3.SQLITE_NOTADB:
            message = f"{path} is not a lock file (not a SQLite database); it was not touched. Give another path."
        elif code == sqlite3.SQLITE_CORRUPT:
            message = f"{path} is damaged. Stop all users of its locks, then remove it: it holds nothing but locks."
        elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            message = f"{path} cannot be written ({error}); the file and its folder must be writable by this user."
        else:
            message = f"{path}: {error}"
        raise (StoreUnavailable if code in PASSING else StoreError)(message) from error

    def _explain_file(self, error: OSError) -> NoReturn:
        if error.errno == errno.ENOENT:
            message = f"the folder {self._path.parent} does not exist; create it, or give another path."
        elif error.errno == errno.EISDIR:
            message = f"{self._path} is a folder; give the path of a file in it."
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"{self._path} cannot be made: the disk is full. Free space."
        else:
            message = f"{self._path} cannot be opened for writing ({error.strerror}); give a path that this user owns."
        raise StoreError(message) from error


class _Rest:
    """Sees to it that no connection is open, and no thread is inside SQLite, at the moment of a fork.

    SQLite counts the locks of all connections of a process to a file. A child that inherits the count believes that
    it has locks that it has not: a new connection of its own would go on in a WAL that its parent removes, and two
    holders would follow. A mutex inside SQLite that another thread held at the fork would never be released.
    """

    def __init__(self) -> None:
        self._resting: list[Database] = []
        self._holds_opening = False

    def before_fork(self) -> None:
        """Bring every database to rest. Once none is left, `_opening` keeps new ones out."""
        seen: set[int] = set()
        while True:
            for database in [each for each in list(_databases) if id(each) not in seen]:
                seen.add(id(database))
                if database.rest():
                    self._resting.append(database)
            self._holds_opening = _opening.acquire(timeout=REST_WITHIN)
            if not self._holds_opening or all(id(each) in seen for each in list(_databases)):
                return
            _opening.release()

    def after_fork_in_parent(self) -> None:
        """Let everything go on."""
        if self._holds_opening:
            self._holds_opening = False
            _opening.release()
        resting, self._resting = self._resting, []
        for database in resting:
            database.go_on()

    def after_fork_in_child(self) -> None:
        """Start anew: whoever held a lock may be a thread that is not here."""
        global _opening  # noqa: PLW0603
        _opening = threading.Lock()
        self._holds_opening = False
        self._resting.clear()
        for database in list(_databases):
            database.forget()


_rest = _Rest()
fork.watch_shy(_rest)
