"""The lock file: one connection, one immediate transaction a turn, and what can be wrong with a file, in plain words.

WAL, so that readers never block the writer. synchronous=OFF, because what must survive is the death of a process,
and what the machine forgets when it loses power was void anyway: leases end with the boot.
"""

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import NoReturn, TypeVar

from holdfast.core.state import NameState
from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.stores.sqlite import codec, machine
from holdfast.stores.tabled import RETENTION, Steps

T = TypeVar("T")

APPLICATION_ID = 0x484F4C44  # "HOLD"
LAYOUT = 1
SWEEP_EVERY = 300_000_000
"""How often names that nobody uses are looked for, in microseconds."""
SWEEP_AT_MOST = 500

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL})
"""Primary error codes of conditions that may end by themselves."""

IDLE_STATE = codec.dump(NameState())

FETCH = "SELECT counter, state FROM names WHERE name = ?"
STORE = (
    "INSERT INTO names (name, counter, idle_after, state) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
    "SET counter = excluded.counter, idle_after = excluded.idle_after, state = excluded.state"
)
RAISE_FLOOR = (
    "UPDATE meta SET floor = max(floor, (SELECT coalesce(max(counter), 0) FROM "
    "(SELECT counter FROM names WHERE idle_after < ? ORDER BY name LIMIT ?)))"
)
FORGET = "DELETE FROM names WHERE name IN (SELECT name FROM names WHERE idle_after < ? ORDER BY name LIMIT ?)"

_inherited: list[object] = []
"""Connections that a forked child must neither use nor close."""


class LockedError(Exception):
    """Another process is in a transaction; it takes microseconds."""


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
        self._file: tuple[int, int] = (0, 0)
        self._sweep_at = 0

    def open(self) -> None:
        """Open the file, making it if there is none. Raises LockedError if another process is just doing so."""
        with self._guard:
            self._open()

    def turn(self, work: Callable[[Steps], T]) -> tuple[T, Steps]:
        """Carry out `work` in one transaction. Raises LockedError if another process is in one."""
        with self._guard:
            execute = self._current().execute
            try:
                execute("BEGIN IMMEDIATE")
                now = self._clock()
                steps = Steps(self._load, now, self._wall(), self._listening)
                result = work(steps)
                for name, step in steps.taken.items():
                    state = step.state
                    execute(STORE, (name, state.counter, state.idle_after(), codec.dump(state)))
                if now >= self._sweep_at:
                    self._sweep(now)
                execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                self._explain(error)
            except BaseException:
                self._roll_back()
                raise
        return result, steps

    def read(self, name: str) -> Steps:
        """Return a turn that has `name` in it and will not be stored."""
        with self._guard:
            try:
                self._current()
                steps = Steps(self._load, self._clock(), self._wall(), self._listening)
                steps.on(name)
            except sqlite3.Error as error:
                self._explain(error)
        return steps

    def names(self, prefix: str) -> list[str]:
        """List the names in use."""
        query = "SELECT name FROM names WHERE idle_after > ? AND substr(name, 1, ?) = ? ORDER BY name"
        with self._guard:
            try:
                rows = self._current().execute(query, (self._clock(), len(prefix), prefix)).fetchall()
            except sqlite3.Error as error:
                self._explain(error)
        return [row[0] for row in rows]

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def abandon(self) -> None:
        """Forget the parent's connection, without closing it: SQLite forbids both use and closing in a child."""
        _inherited.append(self._connection)
        self._connection = None

    # -- opening -------------------------------------------------------------------------------------------

    def _current(self) -> sqlite3.Connection:
        """Return the connection; a new one if the file was removed or replaced under us."""
        if self._connection is None:
            message = f"{self._path}: the store is closed"
            raise StoreError(message)
        try:
            found = os.stat(self._path)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._file:
            self._connection.close()
            self._connection = None
            return self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
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
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._explain_file(error)
        try:
            found = os.fstat(descriptor)
            self._file = (found.st_dev, found.st_ino)
        finally:
            os.close(descriptor)

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
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        layout = connection.execute("PRAGMA user_version").fetchone()[0]
        foreign = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
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

    def _load(self, name: str) -> NameState:
        assert self._connection is not None  # noqa: S101 - only called inside a turn
        row = self._connection.execute(FETCH, (name,)).fetchone()
        if row is not None:
            return codec.load(name, row[0], row[1])
        return NameState(self._connection.execute("SELECT floor FROM meta").fetchone()[0])

    def _sweep(self, now: int) -> None:
        """Forget names that nobody used for long, and keep their counters in the floor of all new names."""
        self._sweep_at = now + SWEEP_EVERY
        assert self._connection is not None  # noqa: S101 - only called inside a turn
        execute = self._connection.execute
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
