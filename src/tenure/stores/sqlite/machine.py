"""What the SQLite store reads from the machine: its boot id, its clock and the type of a file system.

CLOCK_BOOTTIME decides when a lease expires: it does not step when somebody sets the wall clock, and all processes of
the machine read the same one. It restarts at zero at each boot; the boot id tells one boot from another.
"""

import os
import re
from pathlib import Path

from tenure.runtimes import clocks
from tenure.stores.sqlite.errors import SHORTAGES

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_OFFSETS = Path("/proc/self/timens_offsets")
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")

SHARED_BETWEEN_KERNELS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
        "virtiofs",
    ]
)
"""File systems that other machines may share: their kernels have other clocks and do not see our file locks."""


def _read(path: Path) -> str:
    """Return what the system tells in a file, or "" where it has no such file.

    Raises OSError if nothing can be read for a while: without its boot id a lock file would seem to be of another boot.
    """
    try:
        return os.fsdecode(path.read_bytes())
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return ""


def boot_id() -> str:
    """Return the id of this boot, or "" where the system doesn't tell.

    Leases end in time without it, too: a lease from before a reboot is cut down to its ttl.
    """
    return _read(_BOOT_ID).strip()


def clock_offset() -> int:
    """Return by how many microseconds this process's boot clock is ahead of the machine's.

    It differs from 0 in a time namespace. Containers with their own time namespace would disagree on expiry without it.
    """
    for line in _read(_TIME_OFFSETS).splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock == "boottime":
            return int(seconds) * 1_000_000 + int(nanoseconds) // 1000
    return 0


class BootClock:
    """The machine's boot clock in whole microseconds, the same in every container."""

    def __init__(self) -> None:
        """Read the offset of this process's time namespace."""
        self._offset = clock_offset()

    def __call__(self) -> int:
        """Return the time since boot, in microseconds."""
        return clocks.steady_micros() - self._offset


def mount_of(path: Path) -> tuple[str, str]:
    """Return where the file system that contains `path` is mounted, and its type; "" where the system doesn't tell.

    A file that is mounted alone, as by `docker run -v FILE:FILE`, is its own mount point.
    """
    target = os.path.realpath(path)
    best, found = "", ""
    for line in _read(_MOUNTS).splitlines():
        before, _, after = line.partition(" - ")
        mount = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), before.split()[4])
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, found = mount, after.split()[0]
    return best, found
