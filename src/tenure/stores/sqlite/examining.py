"""What the system tells of a lock file and the file system below it. Nothing is opened or created."""

import os
import stat
from pathlib import Path

from tenure.doctor.lock_file import LockFileFacts
from tenure.escaping import escape, shown
from tenure.stores.sqlite import machine


def facts_of(path: Path) -> LockFileFacts:
    """Return what is known of the lock file at `path`, which need not exist."""
    facts = LockFileFacts(escape(str(path)))
    folder = next(each for each in path.absolute().parents if each.exists())
    try:
        facts.file_system = machine.mount_of(folder)[1] or None
        if facts.file_system is not None:
            facts.shared = facts.file_system in machine.SHARED_BETWEEN_KERNELS
        space = os.statvfs(folder)
        facts.free = space.f_bavail * space.f_frsize
        mode = folder.stat().st_mode
        facts.exposed = bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
    except OSError as error:
        why = shown(error.strerror or str(error))
        facts.unseen.update(free=why, exposed=why)
    facts.writable = os.access(folder, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.R_OK | os.W_OK))
    return facts
