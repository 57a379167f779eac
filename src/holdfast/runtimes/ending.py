"""The end of a process gives back what it holds, so that others need not wait for a ttl.

An interpreter that ends closes the clients that are left. A child of `multiprocessing` skips what `atexit` knows, so it
is told in another way. SIGTERM ends a process on the spot, unless `release_on_sigterm` was called.
"""

import atexit
import contextlib
import signal
import sys
import weakref
from types import FrameType
from typing import Protocol

from holdfast.errors import UsageError


class Closable(Protocol):
    """A client."""

    def close(self) -> None:
        """Release what is held."""


_open: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_at_the_end(client: Closable) -> None:
    """Close a client when this process ends, if it is still there."""
    _open.add(client)
    processes, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if processes is not None and util is not None and processes.parent_process() is not None:
        util.Finalize(None, _close_all, exitpriority=0)


def release_on_sigterm() -> None:
    """Have SIGTERM end this process as `sys.exit(143)` does, so that what it holds is released.

    The main thread leaves its `with` blocks, other threads go on until they end (daemon threads until the process
    does), and then all clients are closed. If a handler for SIGTERM was there already, it is called, and decides
    whether the process ends; if SIGTERM was ignored, it still is. Call it once. Raises UsageError unless the main
    thread calls it.
    """
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        elif before is not signal.SIG_IGN:
            raise SystemExit(128 + number)

    try:
        signal.signal(signal.SIGTERM, end)
    except ValueError:
        raise UsageError("release_on_sigterm sets a signal handler: call it in the main thread, once.") from None


def _close_all() -> None:
    for client in list(_open):
        with contextlib.suppress(Exception):
            client.close()


atexit.register(_close_all)
