"""The adapters of all measured locks: one small interface, so that all locks do the same work."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import fasteners
import filelock

from tenure import AsyncClient, AsyncLease, AsyncLock, Client, Lease, Lock

NAME = "bench"
clock = time.monotonic
"""The clock of all measurements; all processes of a machine share it."""


class Handle(Protocol):
    """The handle of one thread or process to a lock. It reads the clock itself, so that no adapter is timed."""

    def acquire(self) -> float:
        """Wait until the lock is held; return the time of the grant."""
        ...

    def release(self) -> float:
        """Release the lock; return the time just before the release."""
        ...


class Plain(Protocol):
    """A lock with `acquire` and `release`, which returns no lease."""

    def acquire(self) -> object:
        """Wait until the lock is held."""
        ...

    def release(self) -> object:
        """Release the lock."""
        ...


class PlainHandle:
    """A lock that returns no lease: filelock, fasteners, threading.Lock."""

    def __init__(self, lock: Plain) -> None:
        """Use a lock. Handles share a lock only if it is thread-safe."""
        self._lock = lock

    def acquire(self) -> float:
        """Wait until the lock is held."""
        self._lock.acquire()
        return clock()

    def release(self) -> float:
        """Release the lock."""
        now = clock()
        self._lock.release()
        return now


class LeaseHandle:
    """A lock of a Client."""

    def __init__(self, lock: Lock) -> None:
        """Use a lock, which other handles may use too."""
        self._lock = lock
        self._lease: Lease | None = None

    def acquire(self) -> float:
        """Wait until the lock is held."""
        self._lease = self._lock.acquire()
        return clock()

    def release(self) -> float:
        """Release the lock."""
        lease, self._lease = self._lease, None
        assert lease is not None  # noqa: S101 - a misuse by the benchmark itself
        now = clock()
        lease.release()
        return now


class AsyncHandle:
    """A lock of an AsyncClient, in an event loop that runs only while the lock is used."""

    def __init__(self, runner: asyncio.Runner, lock: AsyncLock) -> None:
        """Use a lock of a client that belongs to the runner's loop."""
        self._runner = runner
        self._lock = lock
        self._lease: AsyncLease | None = None

    def acquire(self) -> float:
        """Wait until the lock is held."""
        return self._runner.run(self._acquire())

    def release(self) -> float:
        """Release the lock."""
        return self._runner.run(self._release())

    async def _acquire(self) -> float:
        self._lease = await self._lock.acquire()
        return clock()

    async def _release(self) -> float:
        lease, self._lease = self._lease, None
        assert lease is not None  # noqa: S101 - a misuse by the benchmark itself
        now = clock()
        await lease.release()
        return now


class PipeHandle:
    """A floor: a byte in a named pipe serves as the lock, which is the least cost of waking another process."""

    def __init__(self, descriptor: int) -> None:
        """Use an open pipe."""
        self._descriptor = descriptor

    def acquire(self) -> float:
        """Read the byte."""
        os.read(self._descriptor, 1)
        return clock()

    def release(self) -> float:
        """Write the byte."""
        now = clock()
        os.write(self._descriptor, b".")
        return now


class ThreadSafeFasteners:
    """An InterProcessLock excludes processes but not threads; its manual says to add a threading.Lock."""

    def __init__(self, path: Path, threads: threading.Lock) -> None:
        """Add `threads`, which all handles of a process share."""
        self._lock = fasteners.InterProcessLock(path)
        self._threads = threads

    def acquire(self) -> None:
        """Acquire the threads' lock, then the processes' lock."""
        self._threads.acquire()
        self._lock.acquire()

    def release(self) -> None:
        """Release the processes' lock, then the threads' lock."""
        self._lock.release()
        self._threads.release()


def sqlite_url(folder: Path) -> str:
    """Return the URL of the store that all processes of a benchmark share."""
    return f"sqlite://{folder / 'locks.db'}"


@contextmanager
def sqlite_threads(folder: Path, ttl: float = 30.0) -> Generator[Handle]:
    """Open a Client."""
    with Client(sqlite_url(folder)) as client:
        client.names()  # opens the store, which is not measured
        yield LeaseHandle(client.lock(NAME, ttl))


@contextmanager
def sqlite_asyncio(folder: Path, ttl: float = 30.0) -> Generator[Handle]:
    """Open an AsyncClient in a loop of its own."""
    with asyncio.Runner() as runner:
        client = AsyncClient(sqlite_url(folder))
        runner.run(client.names())
        try:
            yield AsyncHandle(runner, client.lock(NAME, ttl))
        finally:
            runner.run(client.close())


@contextmanager
def file_lock(folder: Path, poll: float = 0.05) -> Generator[Handle]:
    """Make a FileLock that polls every `poll` seconds."""
    yield PlainHandle(filelock.FileLock(folder / "filelock", poll_interval=poll))


@contextmanager
def quick_file_lock(folder: Path) -> Generator[Handle]:
    """Make a FileLock that polls without a pause."""
    with file_lock(folder, poll=0.0) as handle:
        yield handle


@contextmanager
def fasteners_lock(folder: Path) -> Generator[Handle]:
    """Make an InterProcessLock with its default delays."""
    yield PlainHandle(fasteners.InterProcessLock(folder / "fasteners"))


@contextmanager
def pipe(folder: Path) -> Generator[Handle]:
    """Open the pipe. The handle that makes it writes the byte, and must keep the pipe open while it is used."""
    path = folder / "pipe"
    try:
        os.mkfifo(path)
        made = True
    except FileExistsError:
        made = False
    descriptor = os.open(path, os.O_RDWR)
    try:
        if made:
            os.write(descriptor, b".")
        yield PipeHandle(descriptor)
    finally:
        os.close(descriptor)


SQLITE_THREADS = "sqlite threads"
SQLITE_ASYNCIO = "sqlite asyncio"
FILELOCK = "filelock"
FILELOCK_QUICK = "filelock, poll 0"
FASTENERS = "fasteners"
PIPE = "named pipe"

OPENERS: dict[str, Callable[[Path], AbstractContextManager[Handle]]] = {
    SQLITE_THREADS: sqlite_threads,
    SQLITE_ASYNCIO: sqlite_asyncio,
    FILELOCK: file_lock,
    FILELOCK_QUICK: quick_file_lock,
    FASTENERS: fasteners_lock,
    PIPE: pipe,
}

MEANINGS = {
    SQLITE_THREADS: "tenure.Client, one client a process, the embedded file",
    SQLITE_ASYNCIO: "tenure.AsyncClient, the same file",
    FILELOCK: "filelock.FileLock, polls every 50 ms (its default)",
    FILELOCK_QUICK: "filelock.FileLock, polls without a pause and keeps a core busy",
    FASTENERS: "fasteners.InterProcessLock, polls after 10, 20, ... 100 ms (its default)",
    PIPE: "floor: a byte in a pipe, no ttl, no fencing token, lost with its holder",
}
