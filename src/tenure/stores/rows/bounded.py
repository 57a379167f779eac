"""Calls that nothing can interrupt, for tables for threads: each in a thread of its own, for which its caller waits.

The caller waits only as long as it has time. The call to a volume or a server that stands still goes on in its thread,
and may yet do what it was to do, as a request does that is under way.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tenure.errors import StoreUnavailable

T = TypeVar("T")

MOST = 64
"""How many calls of one table are under way at most, those included for which nobody waits any more."""


class BoundedCalls:
    """The calls of one table."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._free = threading.BoundedSemaphore(MOST)

    def run(self, timeout: float, call: Callable[[], T]) -> T:
        """Return what a call returns. Raises TimeoutError if it takes longer than `timeout` seconds."""
        if not self._free.acquire(timeout=timeout):
            raise StoreUnavailable(f"{MOST} requests to {self._title} have not ended, so no more are sent")
        done: Future[T] = Future()
        try:
            threading.Thread(target=self._run, args=(call, done), name="tenure-table", daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        return done.result(timeout)

    def _run(self, call: Callable[[], T], done: "Future[T]") -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            done.set_exception(error)
        finally:
            self._free.release()
