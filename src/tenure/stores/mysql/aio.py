"""The link for asyncio, over asyncmy."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from asyncmy.connection import Connection

from tenure.errors import StoreError
from tenure.runtimes import clocks
from tenure.runtimes.aio import in_own_task, retrieve
from tenure.stores.mysql.connection import MySqlConnection, result_of
from tenure.stores.mysql.errors import MySqlResult
from tenure.stores.mysql.link import MySqlLink
from tenure.stores.sql.errors import SqlBroken
from tenure.transport.keep_alive import keep_transport_alive

NO_DEADLINE = 1e9
"""The timeout of a statement that was sent ahead, in seconds: `receive` bounds the wait for its reply."""


class MySqlAsyncConnection(MySqlConnection):
    """A connection of asyncmy, or of another driver with the same calls."""

    _sent: "asyncio.Task[list[MySqlResult]] | None" = None
    """The statements that were sent, and whose reply was not received yet."""

    async def _execute(self, text: str, results: list[MySqlResult], until: float) -> None:
        try:
            async with asyncio.timeout(until - clocks.steady()):
                cursor = await self._raw.cursor()
                await cursor.execute(text)
                while True:
                    result = result_of(cursor)
                    if cursor.description:
                        result.rows = await cursor.fetchall()
                    results.append(result)
                    if not self._several or not await cursor.nextset():
                        break
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, TimeoutError):
                self.close()  # a reply is due that nobody reads
            raise

    def send(self, statements: Sequence[str]) -> None:
        """Begin to run statements, in a task that ends by itself though nobody waits for it."""
        work = self.run(statements, clocks.steady() + NO_DEADLINE)
        self._sent = asyncio.get_running_loop().create_task(work)
        self._sent.add_done_callback(retrieve)

    async def receive(self, until: float) -> list[MySqlResult]:
        """Wait for the task."""
        assert self._sent is not None  # noqa: S101 - `send` was called
        await asyncio.wait({self._sent}, timeout=max(0.0, until - clocks.steady()))
        if not self._sent.done():
            raise TimeoutError
        if self._sent.cancelled():
            raise SqlBroken("the connection was closed")
        return self._sent.result()

    def close(self) -> None:
        """Close it at once, and end the task of what was sent."""
        if self._sent is not None:
            self._sent.cancel()
        transport = getattr(self._raw, "_transport", None)
        if transport is not None:
            transport.abort()
        self._raw.close()

    def interrupt(self) -> None:
        """Close it: whoever waits for a reply on it fails."""
        self.close()

    def is_stale(self) -> bool:
        """Tell whether the server has closed the connection."""
        return bool(getattr(self._raw, "_stream_broken", False))

    def _fileno(self) -> int:
        transport = getattr(self._raw, "_transport", None)
        connected = None if transport is None else transport.get_extra_info("socket")
        return -1 if connected is None else int(connected.fileno())


class MySqlAsyncLink(MySqlLink):
    """The connections of the tasks of one client."""

    async def _connect_to(self, host: str, port: int, until: float) -> MySqlConnection:
        deployment = self._deployment
        make: Any = Connection  # its types are those of its defaults
        raw = make(
            **({"unix_socket": host} if host.startswith("/") else {"host": host, "port": port}),
            user=deployment.user or None,
            password=deployment.password,
            database=deployment.database,
            ssl=deployment.tls,
            charset="utf8mb4",
            autocommit=None,
            program_name="tenure",
        )
        try:
            await in_own_task(raw.connect(), until - clocks.steady(), _drop)
        except BaseException:
            self.reached = getattr(raw, "_proto", None) is not None
            raw.close()
            raise
        transport: Any = getattr(raw, "_transport", None)
        keep_transport_alive(transport)
        return MySqlAsyncConnection(raw, "", several=True)

    async def _of_factory(self, raw: Any, until: float) -> MySqlConnection:  # noqa: ANN401
        if not inspect.isawaitable(raw):
            raise StoreError(
                f"{self._deployment.title()}: the factory returned nothing to await, so it serves a Client alone; give "
                "a factory of connections of asyncio, as asyncmy.connect"
            )
        return MySqlAsyncConnection(await in_own_task(raw, until - clocks.steady(), _drop), "", several=False)


def _drop(task: "asyncio.Future[Any]") -> None:
    """Close the connection of an attempt that was given up, if the driver made one nevertheless."""
    if not task.cancelled() and task.exception() is None and task.result() is not None:
        task.result().close()
