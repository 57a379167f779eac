"""What the embedded store must know of the machine: its boot, its clock, and where a file lives.

Expiry is judged by CLOCK_BOOTTIME: it does not step when somebody sets the wall clock, and all processes of the
machine read the same one. It starts anew at each boot, which the boot id tells.
"""

import os
import re
from pathlib import Path

from holdfast.runtimes import clocks

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
"""File systems whose other users may run on another kernel, with another clock and without our locks."""


def boot_id() -> str:
    """Return what identifies this boot, or "" where the system doesn't say.

    Without it leases still end in time: a lease from before a reboot is cut down to its ttl.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def clock_offset() -> int:
    """Return by how many microseconds this process's boot clock is ahead of the machine's.

    It is not 0 in a time namespace: containers with one of their own would else judge expiry differently.
    """
    try:
        lines = _TIME_OFFSETS.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        clock, seconds, nanoseconds = line.split()
        if clock == "boottime":
            return int(seconds) * 1_000_000 + int(nanoseconds) // 1000
    return 0


class BootClock:
    """The machine's boot clock in whole microseconds, the same in every container."""

    def __init__(self) -> None:
        """Note this process's time namespace."""
        self._offset = clock_offset()

    def __call__(self) -> int:
        """Return the time since boot."""
        return clocks.steady_micros() - self._offset


def file_system(path: Path) -> str:
    """Return the type of the file system that a path is on, or "" where the system doesn't say."""
    try:
        lines = os.fsdecode(_MOUNTS.read_bytes()).splitlines()
    except OSError:
        return ""
    target = os.path.realpath(path)
    best, found = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), before.split()[4])
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, found = mount, after.split()[0]
    return found
