"""Release the leases of a process at its end, so that waiters elsewhere need not wait for the ttl.

At the end of the interpreter all open clients are closed. A child of `multiprocessing` skips `atexit`, so there a
finalizer of `multiprocessing` closes them. SIGTERM ends a process without any of this, unless the program has called
`release_on_sigterm`.
"""

import atexit
import contextlib
import signal
import sys
import weakref
from types import FrameType
from typing import Protocol

from tenure.errors import UsageError


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


def release_on_sigterm() -> None:
    """Have SIGTERM end this process as `sys.exit(143)` does, so that all leases are released.

    The main thread leaves its `with` blocks, other threads go on to their end (daemon threads to the end of the
    process), and then all clients are closed. If the program had a handler for SIGTERM before, that handler is called
    and decides whether the process ends; if SIGTERM was ignored, it still is. Call this once, in the main thread.
    Raises UsageError in another thread.
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
        raise UsageError("release_on_sigterm() sets a signal handler: call it once, in the main thread") from None


def _close_all() -> None:
    for client in list(_open):
        with contextlib.suppress(Exception):
            client.close()


atexit.register(_close_all)
