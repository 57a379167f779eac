"""The error mapping of the SQLite store: errors of sqlite3 and of the file system become errors of Tenure."""

import errno
import os
import sqlite3
from pathlib import Path

from tenure.errors import StoreError, StoreUnavailable

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL})
"""The primary error codes of conditions that may end by themselves."""


AMPLE = 8 * 2**20
"""The free space, in bytes, that is enough for a lock file, its log of up to 4 MB and its index."""

SHORTAGES = {
    errno.EMFILE: "this process has no file descriptor left: raise `ulimit -n`",
    errno.ENFILE: "this machine has no file descriptor left: raise `sysctl fs.file-max`",
    errno.ENOMEM: "this process gets no more memory",
}
"""By error number: what the process or the machine has too little of, for a while."""

FULL = "the disk is full, so no lock can be taken or renewed; nothing was changed. Free some space: 8 MB are ample."


class LockedError(Exception):
    """Another process is in a transaction, which takes microseconds."""


def to_store_error(path: Path, error: sqlite3.Error) -> StoreError | LockedError:
    """Return the error of Tenure that stands for a database error; LockedError if another process is at work."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in BUSY:
        return LockedError()
    if code == sqlite3.SQLITE_FULL:
        message = f"{path}: {FULL}"
    elif code == sqlite3.SQLITE_IOERR and _is_short_of_space(path):
        message = f"{path}: {FULL}"  # SQLite reports only that it could not create the index beside the file
    elif code == sqlite3.SQLITE_IOERR:
        name = getattr(error, "sqlite_errorname", "")
        message = f"{path}: {error} ({name}). Look for a failure of the disk in the system log, or give another path."
    elif code == sqlite3.SQLITE_NOTADB:
        message = f"{path} is not a lock file (not a SQLite database); it was not touched. Give another path."
    elif code == sqlite3.SQLITE_CORRUPT:
        message = f"{path} is damaged. Stop all programs that use its locks, then remove it: it contains only locks."
    elif code == sqlite3.SQLITE_CANTOPEN and (shortage := _shortage()) is not None:
        return os_error_to_store_error(path, shortage)
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        message = f"{path} cannot be written ({error}); the file and its folder must be writable by this user."
    else:
        message = f"{path}: {error}"
    return (StoreUnavailable if code in PASSING else StoreError)(message)


def _is_short_of_space(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < AMPLE


def _shortage() -> OSError | None:
    """Return why no file can be opened. SQLite does not tell, and opening the lock file would drop its file locks."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error if error.errno in SHORTAGES else None
    return None


def os_error_to_store_error(path: Path, error: OSError) -> StoreError:
    """Return the error of Tenure that stands for an error of opening or creating the lock file."""
    if error.errno in SHORTAGES:
        return StoreUnavailable(f"{path} cannot be opened: {SHORTAGES[error.errno]}.")
    if error.errno == errno.ENOENT and path.parent.is_dir():
        message = f"{path} cannot be made in this folder; give a path on a disk."
    elif error.errno == errno.ENOENT:
        message = f"the folder {path.parent} does not exist; create it, or give another path."
    elif error.errno == errno.EISDIR:
        message = f"{path} is a folder; give the path of a file in it."
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"{path} cannot be made: the disk is full. Free some space: 8 MB are ample."
    else:
        message = f"{path} cannot be opened for writing ({error.strerror}); give a path that this user owns."
    return StoreError(message)
