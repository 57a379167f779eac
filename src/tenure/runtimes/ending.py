"""Release the leases of a process at its end, so that waiters elsewhere need not wait for the ttl.

At the end of the interpreter all open clients are closed, after the functions that the program has registered with
`atexit` since it imported Tenure: those may use a client, or make one. A child of `multiprocessing` skips `atexit`, so
there a finalizer of `multiprocessing` closes them. SIGTERM ends a process without any of this, unless the program has
called `release_on_sigterm`.
"""

import atexit
import contextlib
import inspect
import logging
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, Protocol, cast

from tenure.errors import UsageError

log = logging.getLogger("tenure")

AGAIN = 0.1
"""After how many seconds a signal is sent again that Python has not handled."""

CLOSING = 10.0
"""How long a client may take to close after it was drained, in seconds, before the process ends without that."""

EXECUTORS = "concurrent.futures.thread"


class Closable(Protocol):
    """A client that can be closed."""

    def close(self) -> None:
        """Release all leases."""


_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_at_the_end(client: Closable) -> None:
    """Close a client at the end of this process, if the client still exists then."""
    _open.add(client)
    processes, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if processes is not None and util is not None and processes.parent_process() is not None:
        util.Finalize(None, _close_all, exitpriority=0)


def import_executors_at_exit() -> None:
    """Import what client libraries import, and what would refuse that in a function that `atexit` calls.

    `concurrent.futures.thread` registers a function that ends its threads, which Python refuses by then. It has none.
    """
    if threading.main_thread().is_alive() or EXECUTORS in sys.modules:
        return
    register = threading.__dict__["_register_atexit"]
    threading.__dict__["_register_atexit"] = _register_nothing
    try:
        import_module(EXECUTORS)
    finally:
        threading.__dict__["_register_atexit"] = register


def _register_nothing(*_: object, **__: object) -> None:
    """Stand for the function of `threading` that refuses to register anything by now."""


def release_on_sigterm(*clients: "Drainable", timeout: float = 20.0) -> None:
    """Have SIGTERM end this process as `sys.exit(143)` does, so that all leases are released; first drain `clients`.

    The main thread leaves its `with` blocks, other threads go on to their end (daemon threads to the end of the
    process), and then all clients are closed. If the program had a handler for SIGTERM before, that handler is called
    and decides whether the process ends; if SIGTERM was ignored, it still is. Call this once, in the main thread.

    With `clients`, the first SIGTERM drains them all side by side, for up to `timeout` seconds each: see
    `Client.drain`. The process ends after that, or at a second SIGTERM. A handler that the program had before is called
    at once, and the process then ends when that handler, or the program, says so. An `AsyncClient` is drained in the
    event loop in which this is called. The signal may come in the middle of any call. Python may notice a signal that
    comes just as the main thread begins to wait for something only when that wait ends, or at the next signal: so the
    first SIGTERM is repeated when all is drained.

    Raises UsageError in another thread, or for an `AsyncClient` without a running event loop.
    """
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        elif before is not signal.SIG_IGN:
            raise SystemExit(128 + number)

    drains = [_drain_of(client, timeout) for client in clients]
    draining = None if not drains or before is signal.SIG_IGN else _Draining(drains, end, exits=not callable(before))
    try:
        signal.signal(signal.SIGTERM, end if draining is None else draining.handle)
    except ValueError:
        raise UsageError("release_on_sigterm() sets a signal handler: call it once, in the main thread") from None
    if draining is not None:
        draining.start()


class Drainable(Protocol):
    """A client that can be drained: a `Client` or an `AsyncClient`."""

    def drain(self, timeout: float = ...) -> bool | Coroutine[Any, Any, bool]:
        """Acquire nothing new, wait until all is released, and close."""
        ...


def _drain_of(client: Drainable, timeout: float) -> Callable[[], object]:
    """Return a function for a thread that drains a client. An `AsyncClient` is drained in the present event loop."""
    if not inspect.iscoroutinefunction(client.drain):
        return partial(client.drain, timeout)
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError("release_on_sigterm(client) of an AsyncClient: call it in the client's event loop") from None
    drain = cast("Callable[[float], Coroutine[Any, Any, bool]]", client.drain)

    def wait() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it what the client held in it
            asyncio.run_coroutine_threadsafe(drain(timeout), loop).result(2 * timeout + CLOSING)

    return wait


class _Draining:
    """Drains clients when SIGTERM comes. A thread waits for that from the beginning, as a handler may start none.

    The handler does one thing that is safe wherever a signal may come: `SimpleQueue.put` is reentrant.
    """

    def __init__(
        self, drains: list[Callable[[], object]], end: Callable[[int, FrameType | None], None], *, exits: bool
    ) -> None:
        """Prepare to call `drains`; `end` is the handler without clients, `exits` whether it ends the process."""
        self._drains = drains
        self._end = end
        self._exits = exits
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._began = False
        self._over = False
        """Whether the handler has begun to end the process."""
        self._process = os.getpid()

    def start(self) -> None:
        """Start the thread that waits for the signal. It ends with the process."""
        threading.Thread(target=self._run, name="tenure-sigterm", daemon=True).start()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Begin to drain at the first signal; at a later one, or in a forked child, end as without clients."""
        if os.getpid() != self._process:
            self._end(number, frame)
            return
        if not self._began:
            self._began = True
            self._signals.put(number)
            if self._exits:
                return
        elif self._over:  # the main thread is leaving its `with` blocks already
            return
        if self._exits:
            self._over = True
        self._end(number, frame)

    def _run(self) -> None:
        number = self._signals.get()
        threads = [threading.Thread(target=self._drain, args=(each,), daemon=True) for each in self._drains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while self._exits and not (_ending or self._over):
            # Python may look at signals just before it blocks in a call: then only the next one wakes it.
            os.kill(self._process, number)
            time.sleep(AGAIN)

    @staticmethod
    def _drain(drain: Callable[[], object]) -> None:
        try:
            drain()
        except Exception:
            log.exception("a client could not be drained after SIGTERM; its leases are released at the end")


_ending: list[bool] = []
"""Not empty once the interpreter ends: then no signal is sent any more."""

_last: list[Callable[[], None]] = []


def call_at_the_very_end(function: Callable[[], None]) -> None:
    """Call a function at the end of this process, after all clients are closed."""
    _last.append(function)


def ending() -> bool:
    """Return whether the interpreter ends."""
    return bool(_ending)


def _close_all() -> None:
    _ending.append(True)
    for client in list(_open):
        with contextlib.suppress(Exception):
            client.close()
    for function in _last:
        function()


atexit.register(_close_all)
