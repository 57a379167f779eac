"""Critical sections of a test, which record overlaps of threads, tasks and processes.

A thread or task inside a section holds a lock on a file. It opens the file anew each time, so that threads, tasks and
processes exclude each other alike. One that does not get the lock at once records an overlap and goes on; the test
fails at its end.
"""

import hashlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tenure.errors import UsageError
from tenure.posix import require_posix
from tenure_testing.pytest.leases import current_task, mark
from tenure_testing.pytest.places import caller

LONGEST = 4096
"""The longest description of the thread or task inside, in bytes."""

NO_LOCK = -1
"""Stands for the descriptor of an entry that locked no file: the same or another thread or task was inside."""

_inside: dict[object, list[int]] = {}
"""The descriptors of each thread or task inside each section. The key contains the process, for a fork copies this."""


class Section:
    """A critical section, for `with` and `async with`. It can be pickled, to be used in other processes."""

    def __init__(self, name: str, folder: Path) -> None:
        """Make the section `name`, and record its overlaps in `folder`."""
        self.name = name
        self._folder = folder

    def __reduce__(self) -> tuple[type["Section"], tuple[str, Path]]:
        return Section, (self.name, self._folder)

    def __enter__(self) -> Self:
        """Enter the section, and record an overlap. A thread or task that is inside may enter again."""
        stack = _inside.setdefault(self._key(), [])
        stack.append(NO_LOCK if stack else self._lock())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the section. Raises UsageError in a thread or task that is not inside."""
        stack = _inside.get(self._key())
        if stack is None:
            raise UsageError(
                f"the section {self.name!r} was left by {_who()}, which did not enter it. Leave a section in the "
                "thread or task that entered it."
            )
        descriptor = stack.pop()
        if not stack:
            del _inside[self._key()]
        if descriptor != NO_LOCK:
            import fcntl

            os.ftruncate(descriptor, 0)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of the descriptor
            os.close(descriptor)

    async def __aenter__(self) -> Self:
        """Enter the section, and record an overlap."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the section."""
        self.__exit__(kind, error, trace)

    def _key(self) -> object:
        return self._folder, self.name, os.getpid(), mark()

    def _lock(self) -> int:
        """Return a locked descriptor; if another thread or task has the lock, record the overlap and return NO_LOCK."""
        require_posix("assert_never_overlap, which locks files,", "run this test on Linux or macOS")
        import fcntl  # Windows has no such module

        who = _who()
        file = self._folder / hashlib.sha256(self.name.encode()).hexdigest()
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._note(who, _read(descriptor))
            os.close(descriptor)
            return NO_LOCK
        os.pwrite(descriptor, who.encode()[:LONGEST], 0)
        return descriptor

    def _note(self, who: str, other: str) -> None:
        line = f"{self.name!r} was entered by {who}\n  while {other} was in\n"
        descriptor = os.open(overlaps(self._folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(descriptor, line.encode())
        os.close(descriptor)


class Sections:
    """The critical sections of one test."""

    def __init__(self, folder: Path) -> None:
        """Keep the files of the sections in `folder`."""
        self._folder = folder

    def __call__(self, name: str) -> Section:
        """Make the section `name`. Sections of the same name are one section in the whole test."""
        return Section(name, self._folder)

    def verdict(self) -> str:
        """Return the report of all overlaps; "" if there was none."""
        file = overlaps(self._folder)
        if not file.exists():
            return ""
        return (
            f"two were in a critical section at once:\n{file.read_text('utf-8')}Hold a lock of the same name around "
            "both, and call `lease.check()` right before the work that must not happen twice."
        )


def overlaps(folder: Path) -> Path:
    """Return the file that lists overlaps."""
    return folder / "overlaps"


def _read(descriptor: int) -> str:
    """Return the description of the thread or task inside; wait for it, as it may be about to be written."""
    for _ in range(100):
        if text := os.pread(descriptor, LONGEST, 0):
            return text.decode(errors="replace")
        time.sleep(0.001)
    return "another thread or task, which has left since,"


def _who() -> str:
    task = current_task()
    name = threading.current_thread().name if task is None else task.get_name()
    return f"{name} of process {os.getpid()} at {caller()}"
