"""The link for asyncio: it waits for sockets in the event loop."""

import asyncio
import contextlib
import inspect
import socket
from collections.abc import Callable
from typing import Any

from tenure.errors import UsageError
from tenure.runtimes import clocks
from tenure.stores.postgresql.connection import PgConnection
from tenure.stores.postgresql.link import PgLink
from tenure.transport.dial import look_up
from tenure.transport.polling import READABLE, WRITABLE


class PgAsyncLink(PgLink):
    """The connections of the tasks of one client."""

    async def _wait(self, connection: PgConnection, mask: int, until: float) -> None:
        loop, descriptor = asyncio.get_running_loop(), connection.fileno()
        ready: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(0.0, until - clocks.steady()), _time_out, ready)
        if mask & READABLE:
            loop.add_reader(descriptor, _end, ready)
        if mask & WRITABLE:
            loop.add_writer(descriptor, _end, ready)
        try:
            await ready
        finally:
            timer.cancel()
            if mask & READABLE:
                loop.remove_reader(descriptor)
            if mask & WRITABLE:
                loop.remove_writer(descriptor)

    async def _made_by(self, connect: Callable[[], Any], until: float) -> Any:  # noqa: ANN401
        if not inspect.iscoroutinefunction(connect):  # to call it would block the event loop
            raise UsageError(
                f"{self._deployment.title()} makes blocking connections, which only a Client can use: give an "
                "AsyncClient a pool or engine for asyncio."
            )
        async with asyncio.timeout(until - clocks.steady()):
            return await connect()

    async def _look_up(self, host: str, port: int) -> list[str]:
        if host.startswith("/"):
            return []
        with contextlib.suppress(socket.gaierror, UnicodeError):  # an address needs no resolver, and no thread for it
            socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
            return []
        found = await look_up(asyncio.get_running_loop(), host, port, socket.AF_UNSPEC)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _end(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _time_out(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_exception(TimeoutError())
