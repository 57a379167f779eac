"""The child processes of a server, from /proc. A signal to a server with several processes must reach them all."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers.waiting import wait_until

PROC = Path("/proc")
STATE, PARENT, STARTED = 0, 1, 19
"""Fields of /proc/PID/stat, counted from the one behind the name."""


@dataclass(frozen=True)
class Child:
    """One process. Its time of start tells it from a later process with its id."""

    pid: int
    started: str

    @property
    def lives(self) -> bool:
        """Whether it is alive, stopped or not."""
        fields = _fields(self.pid)
        return bool(fields) and fields[STARTED] == self.started and fields[STATE] not in "ZX"

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is alive."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def children(pid: int) -> list[Child]:
    """Return the children of a process."""
    return [Child(child, fields[STARTED]) for child, fields in _all() if fields[PARENT] == str(pid)]


def freeze(pid: int) -> list[Child]:
    """Stop a process, and return its children: it starts no further ones."""
    os.kill(pid, signal.SIGSTOP)
    await_stopped(pid)
    return children(pid)


def await_stopped(pid: int) -> None:
    """Return when all threads of a process that was sent SIGSTOP are stopped: a busy machine takes a moment for it."""
    if PROC.is_dir():
        wait_until(lambda: _is_stopped(pid), f"process {pid} is stopped")


def end(processes: list[Child]) -> None:
    """Kill processes, and return when they are gone."""
    for each in processes:
        each.send(signal.SIGKILL)
    wait_until(lambda: not any(each.lives for each in processes), "the end of a server's children")


def _is_stopped(pid: int) -> bool:
    """Tell whether all threads of a process are stopped, or gone."""
    with suppress(OSError):
        threads = [_fields_in(each) for each in (PROC / str(pid) / "task").iterdir()]
        return all(not fields or fields[STATE] in "TZX" for fields in threads)
    return True


def _all() -> Iterator[tuple[int, list[str]]]:
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (fields := _fields(int(entry.name))):
            yield int(entry.name), fields


def _fields(pid: int) -> list[str]:
    """Return the fields of a process, none if it does not exist."""
    return _fields_in(PROC / str(pid))


def _fields_in(folder: Path) -> list[str]:
    with suppress(OSError):
        return (folder / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
    return []
