"""Every lock that is measured, behind one small face, so that all of them do the same work."""

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

from holdfast import AsyncClient, AsyncLease, AsyncLock, Client, Lease, Lock

NAME = "bench"
clock = time.monotonic
"""Shared by all processes of a machine."""


class Handle(Protocol):
    """One lock as one thread or process uses it. It reads the clock itself, so that no adapter is timed."""

    def acquire(self) -> float:
        """Wait until the lock is held; return the time at which it was."""
        ...

    def release(self) -> float:
        """Let go; return the time just before."""
        ...


class Plain(Protocol):
    """A lock of the usual kind."""

    def acquire(self) -> object:
        """Wait until it is held."""
        ...

    def release(self) -> object:
        """Let go."""
        ...


class PlainHandle:
    """A lock that is its own holding: filelock, fasteners, threading.Lock."""

    def __init__(self, lock: Plain) -> None:
        """Use a lock that no other handle uses, unless it may be shared."""
        self._lock = lock

    def acquire(self) -> float:
        """Wait until the lock is held."""
        self._lock.acquire()
        return clock()

    def release(self) -> float:
        """Let go."""
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
        """Let go."""
        lease, self._lease = self._lease, None
        assert lease is not None  # noqa: S101 - a misuse by the benchmark itself
        now = clock()
        lease.release()
        return now


class AsyncHandle:
    """A lock of an AsyncClient, in an event loop that runs only while it is used."""

    def __init__(self, runner: asyncio.Runner, lock: AsyncLock) -> None:
        """Use a lock of a client that belongs to the runner's loop."""
        self._runner = runner
        self._lock = lock
        self._lease: AsyncLease | None = None

    def acquire(self) -> float:
        """Wait until the lock is held."""
        return self._runner.run(self._acquire())

    def release(self) -> float:
        """Let go."""
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
    """A byte in a named pipe is the lock: the least that waking another process can cost. A floor, not a lock."""

    def __init__(self, descriptor: int) -> None:
        """Use an open pipe."""
        self._descriptor = descriptor

    def acquire(self) -> float:
        """Take the byte out."""
        os.read(self._descriptor, 1)
        return clock()

    def release(self) -> float:
        """Put it back."""
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
        """Exclude the threads, then the processes."""
        self._threads.acquire()
        self._lock.acquire()

    def release(self) -> None:
        """Let in the processes, then the threads."""
        self._lock.release()
        self._threads.release()


def sqlite_url(folder: Path) -> str:
    """Return the store that all processes of a benchmark share."""
    return f"sqlite://{folder / 'locks.db'}"


@contextmanager
def sqlite_threads(folder: Path, ttl: float = 30.0) -> Generator[Handle]:
    """Open a Client."""
    with Client(sqlite_url(folder)) as client:
        client.names()  # opens the store, which is not what is measured
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
    """Open the pipe; who makes it puts the byte in, and must keep it open for as long as it is used."""
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
    SQLITE_THREADS: "holdfast.Client, one client a process, the embedded file",
    SQLITE_ASYNCIO: "holdfast.AsyncClient, the same file",
    FILELOCK: "filelock.FileLock, polls every 50 ms (its default)",
    FILELOCK_QUICK: "filelock.FileLock, polls without a pause and burns a core",
    FASTENERS: "fasteners.InterProcessLock, polls after 10, 20, ... 100 ms (its default)",
    PIPE: "floor: a byte in a pipe, no ttl, no fencing token, lost with its holder",
}
