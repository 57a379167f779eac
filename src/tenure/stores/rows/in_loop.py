"""An awaited table for threads, on a loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tenure.errors import StoreUnavailable
from tenure.stores.rows.contract import AsyncRowTable, Row, WatchedTable

T = TypeVar("T")

CLOSING = 2.0
"""How long `close` waits for the table and the loop, in seconds."""


class InLoop:
    """A table for threads whose calls run in a thread of its own, in which an asyncio loop runs until `close`."""

    def __init__(self, table: AsyncRowTable) -> None:
        """Use a table whose calls come from one loop, which begins with the first call."""
        if isinstance(table, WatchedTable):
            self.watch = partial(self._watch, table)
        self._table = table
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def read(self, key: str, timeout: float) -> Row:
        """Return a row."""
        return self._run(self._table.read(key, timeout), timeout)

    def write(self, key: str, value: bytes, version: Any, timeout: float) -> Any:  # noqa: ANN401
        """Write a row if it is unchanged."""
        return self._run(self._table.write(key, value, version, timeout), timeout)

    def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return keys."""
        return self._run(self._table.keys(prefix, after, most, timeout), timeout)

    def _watch(self, table: WatchedTable, changed: Callable[[str, Row], None]) -> None:
        """Tell of changes."""
        self._started().call_soon_threadsafe(table.watch, changed)

    def close(self) -> None:
        """Disconnect, and end the thread. A call that comes later begins no other."""
        with self._mutex:
            self._closed, loop, thread = True, self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._table.close(), loop).result(CLOSING)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSING)

    def _run(self, call: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a call in the loop, which ends in its time by itself."""
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._started())
        except BaseException:
            call.close()
            raise
        try:
            return future.result(timeout + 1.0)
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._closed:
                raise StoreUnavailable("the client of this table is closed; make a new one")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="tenure-loop", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the next call tries again
                    loop.close()
                    raise StoreUnavailable(
                        f"no thread could be started for the calls of this table ({error})"
                    ) from error
                self._loop, self._thread = loop, thread
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped; then cancel what is left in it, and close it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
