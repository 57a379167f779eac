"""Opening a lock file: create a missing file, refuse a foreign one, and end the leases of an earlier boot."""

import contextlib
import logging
import os
import sqlite3
import stat
from importlib import resources
from pathlib import Path

from tenure.contracts import forms
from tenure.errors import StoreError, UsageError
from tenure.stores import table_codec as codec
from tenure.stores.sqlite import machine
from tenure.stores.sqlite.errors import os_error_to_store_error, to_store_error
from tenure.stores.sqlite.fork_guard import fork_guard
from tenure.table.state import PLACEHOLDER, NameState, Queue

SCHEMA = resources.files("tenure.stores.sqlite").joinpath("schema.sql").read_text("utf-8")
"""Read at import time: reading a resource imports modules, and a fork must not interrupt an import."""

log = logging.getLogger("tenure")

APPLICATION_ID = 0x54454E55  # "TENU"

NO_FILE = (0, 0)
"""A device and an inode that no file has."""

IDLE_STATE = codec.dump(NameState())


class LockFiles:
    """The lock file at a path, its log and the index of the log, by their inodes at an instant.

    SQLite makes the log and the index with the first transaction of a connection, and removes them with the last
    connection to the file. In between they stay. A file system without shared memory has neither.
    """

    def __init__(self, path: Path) -> None:
        """Find the files. Raises StoreError if the system refuses to look."""
        self._path = path
        real = os.path.realpath(path) if path.is_symlink() else str(path)  # SQLite names its log after the file itself
        try:
            self.inodes = [_inode(real + suffix) for suffix in ("", "-wal", "-shm")]
        except OSError as error:
            raise os_error_to_store_error(path, error) from error

    def are_in_place(self, *, connected: bool) -> bool:
        """Return whether the files are still there. Without a connection, SQLite may have removed the log."""
        try:
            found = LockFiles(self._path).inodes
        except StoreError:
            return False
        return found == self.inodes if connected else found[0] == self.inodes[0]

    def have_another_log(self, now: "LockFiles") -> bool:
        """Return whether these are the file that is there now, with another log, or with one that is removed now."""
        return self.inodes[0] == now.inodes[0] and self.inodes != now.inodes

    def others_began_a_log(self) -> bool:
        """Return whether another log has the place of this one."""
        try:
            found = LockFiles(self._path).inodes
        except StoreError:
            return False
        return any(new not in (old, NO_FILE) for new, old in zip(found, self.inodes, strict=True))


def _inode(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return NO_FILE
    return found.st_dev, found.st_ino


def open_file(path: Path) -> tuple[sqlite3.Connection, LockFiles]:
    """Return a connection to the lock file at `path`, and the files that it uses.

    Raises LockedError while another process creates the file, and UsageError or StoreError if the file can't be used.
    """
    with fork_guard.lock:
        inode = _make_file(path)
        try:
            connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise to_store_error(path, error) from error
    try:
        _check_owner(path, connection)
        _prepare(path, connection, inode)
        return connection, LockFiles(path)
    except sqlite3.Error as error:
        failure = to_store_error(path, error)  # while the connection has its descriptors, in case there are no more
        connection.close()
        raise failure from error
    except OSError as error:
        connection.close()
        raise os_error_to_store_error(path, error) from error
    except BaseException:
        connection.close()
        raise


def _make_file(path: Path) -> int:
    try:
        mount, kind = machine.mount_of(path)
    except OSError as error:
        raise os_error_to_store_error(path, error) from error
    if kind in machine.SHARED_BETWEEN_KERNELS:
        raise UsageError(
            f"{path} is on a {kind} file system, which other machines may share; an embedded lock file "
            "coordinates one machine only. Use a file on a local disk, or a server store."
        )
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        found = os.stat(path)
    except OSError as error:
        raise os_error_to_store_error(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file; give the path of a file, or a path where one can be created.")
    if found.st_nlink > 1 or mount == os.path.realpath(path):
        raise StoreError(
            f"{path} has a second name (a hard link, or a file that is mounted alone). SQLite keeps a log beside each "
            "name, so both would be granted: remove the other links, or mount its folder and not the file."
        )
    return found.st_ino


def _check_owner(path: Path, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")  # one snapshot, so that another process cannot create the file between the queries
    application = _application(connection)
    foreign = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (application or foreign):
        raise StoreError(f"{path} is a database of another program; give Tenure a file of its own.")


def _application(connection: sqlite3.Connection) -> int:
    """Return whose file it is: 0 if it is new."""
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


def _prepare(path: Path, connection: sqlite3.Connection, inode: int) -> None:
    execute = connection.execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = OFF")
    execute("BEGIN IMMEDIATE")
    try:
        boot = machine.boot_id()
        place = f"{inode} {boot}"
        if not _application(connection):
            _create(connection, place)
        _raise_form(path, connection)
        if (before := execute("SELECT boot FROM meta").fetchone()[0]) != place:
            if before.partition(" ")[2] != boot:
                execute("UPDATE names SET state = ?, idle_after = 0", (IDLE_STATE,))
            else:
                _disown(connection)
                log.warning(
                    "%s is a copy of a lock file: its leases have no holders and block names until they end", path
                )
            execute("UPDATE meta SET boot = ?", (place,))
        execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            execute("ROLLBACK")
        raise


def _raise_form(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a file of a later form; raise an earlier form, and have each client look at it with its next step."""
    if forms.check(connection.execute("SELECT form FROM meta").fetchone()[0], str(path)) < forms.WRITES:
        connection.execute("UPDATE meta SET form = ?", (forms.mark(),))
        connection.execute("UPDATE names SET version = version + 1")


def _disown(connection: sqlite3.Connection) -> None:
    """In a copy of a lock file: take the leases from their holders, but grant nothing before these leases end.

    The holders may go on with the original file. The queue is emptied, because waiters send their requests again.
    """
    rows = connection.execute("SELECT name, counter, state FROM names").fetchall()
    for name, counter, text in rows:
        state = codec.load(name, counter, text)
        state.queue = Queue()
        for holder in state.holders:
            holder.request_id, holder.channel = PLACEHOLDER + holder.request_id.removeprefix(PLACEHOLDER), ""
        connection.execute(
            "UPDATE names SET state = ?, version = version + 1 WHERE name = ?", (codec.dump(state), name)
        )


def _create(connection: sqlite3.Connection, place: str) -> None:
    plain = "\n".join(line.partition("--")[0] for line in SCHEMA.splitlines())
    for statement in filter(str.strip, plain.split(";")):
        connection.execute(statement)
    connection.execute("INSERT INTO meta (only, boot, floor, form) VALUES (1, ?, 0, ?)", (place, forms.mark()))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
