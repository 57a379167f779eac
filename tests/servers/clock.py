"""Clocks that a test sets, for servers and other processes. They need Linux and a C compiler.

A small library, preloaded into the process, reads the settings from a file at every read of the clock. So a running
process sees its clock step, drift or have slept. (libfaketime can't do this for Redis, which hangs under it.)
"""

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Self

from tests.servers.waiting import ServerFailedError

SOURCE = Path(__file__).with_name("clock.c")

COUNTS = struct.Struct("q")
SETTING = struct.Struct("qqdqq")
"""The real time and the shown wall time at one instant, the rate since, the offsets of the monotonic and boot clocks.

Times are in nanoseconds. The layout of the file is `struct settings` in clock.c.
"""

SECOND = 1_000_000_000


class Clock:
    """The clocks of every process that is started with `environment()`.

    Settings take effect at once, also in running processes. Times are in seconds. A server that counts the processor's
    ticks, as Valkey does, does not see a change of its monotonic clock.
    """

    def __init__(self, folder: Path) -> None:
        """Make clocks that show the true time, and keep their files in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._library = _compile(folder / "clock.so")
        self._file = folder / "clock"
        self._file.write_bytes(bytes(COUNTS.size + 2 * SETTING.size))
        with self._file.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._real_base = self._wall_base = time.time_ns()
        self._rate = 1.0
        self._monotonic = self._boot = 0
        self._write()

    def environment(self) -> dict[str, str]:
        """Return the environment variables by which a process uses these clocks."""
        return _environment(self._library, self._file)

    def environment_in(self, folder: Path) -> dict[str, str]:
        """Return such variables for a process of another user, that reaches `folder` but not the folder of the files.

        Both folders must be on one disk.
        """
        library, file = folder / self._library.name, folder / self._file.name
        if not file.exists():
            shutil.copy(self._library, library)
            os.link(self._file, file)  # and no copy: settings of this process must be seen there
        file.chmod(0o644)
        return _environment(library, file)

    def now(self) -> float:
        """Return the time of the wall clock."""
        return self._shown(time.time_ns()) / SECOND

    def step(self, seconds: float) -> None:
        """Step the wall clock forward, or back if `seconds` is negative."""
        self._rebase(seconds)
        self._write()

    def set(
        self,
        *,
        wall: float | None = None,
        rate: float | None = None,
        monotonic: float | None = None,
        boot: float | None = None,
    ) -> None:
        """Set the given clocks, and leave the others unchanged.

        `wall` is how far the wall clock is ahead of the true time from now on, `rate` how many of its seconds pass in
        a true second. `monotonic` and `boot` are how far those clocks are ahead. `boot` alone is a machine that slept.
        """
        self._rebase()
        if wall is not None:
            self._wall_base = self._real_base + round(wall * SECOND)
        if rate is not None:
            self._rate = rate
        if monotonic is not None:
            self._monotonic = round(monotonic * SECOND)
        if boot is not None:
            self._boot = round(boot * SECOND)
        self._write()

    def reset(self) -> None:
        """Show the true time again."""
        self.set(wall=0, rate=1, monotonic=0, boot=0)

    def close(self) -> None:
        """Close the file. Running processes keep these clocks."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _shown(self, real: int) -> int:
        return self._wall_base + round((real - self._real_base) * self._rate)

    def _rebase(self, seconds: float = 0.0) -> None:
        """Count from this instant on, with the wall clock later by `seconds`."""
        real = time.time_ns()
        self._real_base, self._wall_base = real, self._shown(real) + round(seconds * SECOND)

    def _write(self) -> None:
        """Write the inactive setting, then make it the active one."""
        (counts,) = COUNTS.unpack_from(self._memory)
        other = 1 - counts
        setting = (self._real_base, self._wall_base, self._rate, self._monotonic, self._boot)
        SETTING.pack_into(self._memory, COUNTS.size + other * SETTING.size, *setting)
        COUNTS.pack_into(self._memory, 0, other)


def _environment(library: Path, file: Path) -> dict[str, str]:
    preloaded = filter(None, (str(library), os.environ.get("LD_PRELOAD")))
    return {"LD_PRELOAD": ":".join(preloaded), "TENURE_CLOCK": str(file)}


def _compile(library: Path) -> Path:
    """Compile the library if it is missing. Raises `ServerFailedError` without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise ServerFailedError("To set clocks a C compiler is needed: install gcc and libc6-dev.")
    if not library.exists():
        command = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True, timeout=60)
    return library
