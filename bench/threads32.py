"""Many threads of one process contend for one name."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import filelock

from bench.contenders import (
    FASTENERS,
    FILELOCK,
    NAME,
    SQLITE_THREADS,
    Handle,
    LeaseHandle,
    PlainHandle,
    ThreadSafeFasteners,
    clock,
    sqlite_url,
)
from bench.crowd import START_AFTER, Crowd, crowd_report
from bench.harness import Report, Size, interleave
from tenure import Client

MEANINGS = {
    SQLITE_THREADS: "tenure.Client, the embedded file",
    "memory threads": "tenure.Client, memory://",
    FILELOCK: "filelock.FileLock, one for each thread",
    FASTENERS: "fasteners.InterProcessLock, one for each thread, with the threading.Lock that its manual asks for",
    "threading.Lock": "floor: no ttl, no fencing token, no order",
}


def run(size: Size, folder: Path) -> Report:
    """Let the threads of each contender contend for some seconds in turns."""
    with ExitStack() as stack:
        crowds = _open_all(stack, folder, size.threads)
        contenders = {label: _round(handles, size.seconds) for label, handles in crowds.items()}
        rounds = interleave(contenders, size.rounds)
    title = f"{size.threads} threads of one process on one name"
    return crowd_report("threads32", title, rounds, MEANINGS, "threading.Lock")


def _open_all(stack: ExitStack, folder: Path, threads: int) -> dict[str, Sequence[Handle]]:
    sqlite_lock = stack.enter_context(Client(sqlite_url(folder))).lock(NAME)
    memory_lock = stack.enter_context(Client("memory://bench-threads")).lock(NAME)
    plain, beside_fasteners = threading.Lock(), threading.Lock()
    each = range(threads)
    return {
        SQLITE_THREADS: [LeaseHandle(sqlite_lock) for _ in each],
        "memory threads": [LeaseHandle(memory_lock) for _ in each],
        FILELOCK: [PlainHandle(filelock.FileLock(folder / "filelock")) for _ in each],
        FASTENERS: [PlainHandle(ThreadSafeFasteners(folder / "fasteners", beside_fasteners)) for _ in each],
        "threading.Lock": [PlainHandle(plain) for _ in each],
    }


def _round(handles: Sequence[Handle], seconds: float) -> Callable[[], Crowd]:
    return lambda: contend(handles, seconds)


def contend(handles: Sequence[Handle], seconds: float) -> Crowd:
    """Acquire and release for a while, with one thread for each handle."""
    crowd = Crowd(len(handles), clock() + START_AFTER, seconds)
    threads = [
        threading.Thread(target=_acquire_on, args=(place, handle, crowd), daemon=True)
        for place, handle in enumerate(handles)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return crowd


def _acquire_on(place: int, handle: Handle, crowd: Crowd) -> None:
    time.sleep(max(0.0, crowd.start - clock()))
    while handle.acquire() < crowd.until:
        crowd.enter(place)
        crowd.withdraw()
        handle.release()
    handle.release()
