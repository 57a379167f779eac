"""The link for threads, over PyMySQL: every `async def` blocks in place, in the thread that calls it."""

import inspect
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pymysql

from tenure.errors import StoreError
from tenure.runtimes import clocks
from tenure.stores.mysql.connection import MULTI_STATEMENTS, SHORTEST, MySqlConnection, is_of_driver, result_of
from tenure.stores.mysql.errors import MySqlResult, of_driver
from tenure.stores.mysql.link import MySqlLink
from tenure.stores.sql.errors import SqlBroken
from tenure.transport.dial import dial
from tenure.transport.polling import READABLE, is_readable, new_poll

COM_QUERY = 3
"""The command of the protocol that carries statements."""

SEND_TIMEOUT = 1.0
"""How long the system may take to accept a short statement, or to hand over the rest of a short reply, in seconds."""


class MySqlThreadConnection(MySqlConnection):
    """A connection of PyMySQL, or of another driver with the same calls."""

    async def _execute(self, text: str, results: list[MySqlResult], until: float) -> None:
        raw, left = self._raw, until - clocks.steady()
        if left <= 0:
            raise TimeoutError
        _limit(raw, left)
        cursor = raw.cursor()
        cursor.execute(text)
        while True:
            result = result_of(cursor)
            if cursor.description:
                result.rows = cursor.fetchall()
            results.append(result)
            if not self._several or not cursor.nextset():
                break

    def send(self, statements: Sequence[str]) -> None:
        """Send statements. They are short, so this does not wait."""
        raw = self._raw
        try:
            _limit(raw, SEND_TIMEOUT)
            raw._execute_command(COM_QUERY, "; ".join(statements))  # noqa: SLF001 - `query` would wait
        except Exception as error:
            if not is_of_driver(error):
                raise
            raise SqlBroken(str(of_driver(error))) from error

    async def receive(self, until: float) -> list[MySqlResult]:
        """Wait until the reply begins to come, and read it."""
        raw, left = self._raw, until - clocks.steady()
        if (connected := raw._sock) is None:  # noqa: SLF001
            raise SqlBroken("the connection was closed")
        if not _is_readable_within(connected, left):
            raise TimeoutError
        results: list[MySqlResult] = []
        try:
            _limit(raw, max(left, SEND_TIMEOUT))
            while not results or raw._result.has_next:  # noqa: SLF001
                raw._read_query_result()  # noqa: SLF001
                results.append(MySqlResult(raw._result.rows or (), raw._result.affected_rows, 0))  # noqa: SLF001
        except BaseException as error:
            if not isinstance(error, Exception):
                self.close()  # a part of the reply is read
            if not isinstance(error, Exception) or not is_of_driver(error):
                raise
            raise of_driver(error, results) from error
        return results

    def close(self) -> None:
        """Close the socket, without a word to the server."""
        force = getattr(self._raw, "_force_close", self._raw.close)
        force()

    def interrupt(self) -> None:
        """Shut the socket down. To close it would wait for the thread that reads."""
        if (connected := getattr(self._raw, "_sock", None)) is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def is_stale(self) -> bool:
        """Tell whether the server has closed the connection."""
        if getattr(self._raw, "open", True) is False:
            return True
        connected = getattr(self._raw, "_sock", None)
        return connected is not None and is_readable(connected)

    def _fileno(self) -> int:
        connected = getattr(self._raw, "_sock", None)
        return -1 if connected is None else int(connected.fileno())


class MySqlThreadLink(MySqlLink):
    """The connections of the threads of one client."""

    async def _connect_to(self, host: str, port: int, until: float) -> MySqlConnection:
        raw = pymysql.Connection(**self._keywords(host))
        connected = _dial(host, port, until)
        try:
            self.reached = True
            _limit(raw, until - clocks.steady())
            raw.connect(connected)
        except BaseException:
            connected.close()
            raise
        return MySqlThreadConnection(raw, "", several=True)

    def _keywords(self, host: str) -> dict[str, Any]:
        deployment = self._deployment
        return {
            "host": host,
            "user": deployment.user or None,
            "password": deployment.password,
            "database": deployment.database,
            "ssl": deployment.tls,
            "ssl_disabled": deployment.tls is None,
            "client_flag": MULTI_STATEMENTS,
            "charset": "utf8mb4",
            "autocommit": None,
            "program_name": "tenure",
            "defer_connect": True,
        }

    async def _of_factory(self, raw: Any, until: float) -> MySqlConnection:  # noqa: ANN401, ARG002
        if inspect.isawaitable(raw):
            close = getattr(raw, "close", None)
            if inspect.iscoroutine(raw) and close is not None:
                close()
            raise StoreError(
                f"{self._deployment.title()}: the factory returned something to await, which only an AsyncClient can; "
                "give a factory of blocking connections, as pymysql.connect"
            )
        return MySqlThreadConnection(raw, "", several=False)


def _limit(raw: Any, left: float) -> None:  # noqa: ANN401 - of any driver
    """Have PyMySQL end what takes longer: it gives its socket these timeouts. Other drivers have their own."""
    if hasattr(raw, "_read_timeout"):
        raw._read_timeout = raw._write_timeout = max(left, SHORTEST)  # noqa: SLF001 - it has no public way


def _is_readable_within(connected: socket.socket, left: float) -> bool:
    """Wait until a socket is readable for so many seconds."""
    ready = new_poll()
    ready.register(connected, READABLE)
    return bool(ready.poll(max(0.0, left) * 1000))


def _dial(host: str, port: int, until: float) -> socket.socket:
    if not host.startswith("/"):
        return dial(host, port, lambda: until - clocks.steady())
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.settimeout(max(until - clocks.steady(), SHORTEST))
        connecting.connect(host)
    except BaseException:
        connecting.close()
        raise
    return connecting
