"""The link for asyncio, over asyncmy."""

import asyncio
import inspect
from typing import Any

from asyncmy.connection import Connection

from holdfast.errors import StoreError
from holdfast.runtimes import clocks
from holdfast.stores.mysql.connection import MySqlConnection, result_of
from holdfast.stores.mysql.errors import MySqlResult
from holdfast.stores.mysql.link import MySqlLink
from holdfast.transport.keep_alive import keep_transport_alive


class MySqlAsyncConnection(MySqlConnection):
    """A connection of asyncmy, or of another driver with the same calls."""

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

    def close(self) -> None:
        """Close it."""
        transport = getattr(self._raw, "_transport", None)
        if transport is not None:
            transport.abort()
        self._raw.close()

    def interrupt(self) -> None:
        """Break it."""
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
            program_name="holdfast",
        )
        try:
            async with asyncio.timeout(until - clocks.steady()):
                await raw.connect()
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
        async with asyncio.timeout(until - clocks.steady()):
            return MySqlAsyncConnection(await raw, "", several=False)
