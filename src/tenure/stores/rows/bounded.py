"""Tables for threads whose calls nothing can interrupt: each call in a thread of its own, for which its caller waits.

The caller waits only as long as it has time. The call to a volume or a server that stands still goes on in its thread,
and may yet do what it was to do, as a request does that is under way.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from tenure.errors import StoreUnavailable
from tenure.stores.rows.contract import Row, RowTable, WatchedTable

T = TypeVar("T")

MOST = 64
"""How many calls of one table are under way at most, those included for which nobody waits any more."""

AT_ONCE = 32
"""For how many calls an AsyncClient waits at once; others wait for one of them to end."""

CLOSING = 2.0
"""How long an AsyncClient waits for the end of its table, in seconds."""


class BoundedCalls:
    """The calls of one table."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._free = threading.BoundedSemaphore(MOST)

    def start(self, wait: float, call: Callable[..., T], *arguments: object) -> "Future[T]":
        """Begin a call; wait up to `wait` seconds for others to end if there are too many. It cannot be cancelled."""
        if not self._free.acquire(timeout=wait):
            raise StoreUnavailable(f"{MOST} requests to {self._title} have not ended, so no more are sent")
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        slot = [self._free]  # its end is told once: an interrupt here does not say whether the thread has begun
        try:
            thread = threading.Thread(
                target=_run, args=(done, slot, call, *arguments), name="tenure-table", daemon=True
            )
            thread.start()
        except BaseException:
            _leave(slot)
            raise
        return done


def _run(done: "Future[T]", slot: list[threading.BoundedSemaphore], call: Callable[..., T], *arguments: object) -> None:
    try:
        result = call(*arguments)
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        _leave(slot)
        done.set_exception(error)
    else:
        _leave(slot)
        done.set_result(result)


def _leave(slot: list[threading.BoundedSemaphore]) -> None:
    with suppress(IndexError):
        slot.pop().release()


class BoundedTable:
    """A table for threads whose calls end in their time, over one whose calls may take longer."""

    def __init__(self, title: str, table: RowTable) -> None:
        """Use a table, which errors call `title`."""
        self._table = table
        self._calls = BoundedCalls(title)

    def read(self, key: str, timeout: float) -> Row:
        """Return a row."""
        return self._run(timeout, self._table.read, key, timeout)

    def write(self, key: str, value: bytes, version: Any, timeout: float) -> Any:  # noqa: ANN401 - the table's own
        """Write a row if it is unchanged."""
        return self._run(timeout, self._table.write, key, value, version, timeout)

    def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return keys."""
        return self._run(timeout, self._table.keys, prefix, after, most, timeout)

    def close(self) -> None:
        """Disconnect."""
        self._table.close()

    def _run(self, timeout: float, call: Callable[..., T], *arguments: object) -> T:
        """Return what a call returns. Raises TimeoutError if it takes longer than `timeout` seconds."""
        return self._calls.start(timeout, call, *arguments).result(timeout)


class InThreads:
    """A table for asyncio over one for threads.

    Its calls do not wait for the threads of `asyncio.to_thread`, which the program may keep busy for longer than a
    lease lasts.
    """

    def __init__(self, title: str, table: RowTable) -> None:
        """Use a table, which errors call `title`."""
        import asyncio  # here: `import tenure` imports none

        self._table = table
        self._calls = BoundedCalls(title)
        self._turns = asyncio.Semaphore(AT_ONCE)
        if isinstance(table, WatchedTable):
            self.watch = table.watch

    async def read(self, key: str, timeout: float) -> Row:
        """Return a row."""
        return await self._run(timeout, self._table.read, key, timeout)

    async def write(self, key: str, value: bytes, version: Any, timeout: float) -> Any:  # noqa: ANN401
        """Write a row if it is unchanged."""
        return await self._run(timeout, self._table.write, key, value, version, timeout)

    async def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return keys."""
        return await self._run(timeout, self._table.keys, prefix, after, most, timeout)

    async def close(self) -> None:
        """Disconnect."""
        await self._run(CLOSING, self._table.close)

    async def _run(self, timeout: float, call: Callable[..., T], *arguments: object) -> T:
        """Return what a call returns. Raises TimeoutError if it takes longer than `timeout` seconds."""
        import asyncio

        async with asyncio.timeout(timeout), self._turns:
            return await asyncio.wrap_future(self._calls.start(0.0, call, *arguments))
