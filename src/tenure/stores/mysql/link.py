"""The link to the servers of one database: a few connections that carry the statements of one client.

It is written once for both forms of the API. What they do differently is in `threads.py` and `aio.py`: to connect, and
to run a statement.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.mysql.connection import MySqlConnection, is_of_driver
from tenure.stores.mysql.errors import (
    READ_ONLY,
    SESSION_ENDED,
    USELESS,
    MySqlBroken,
    MySqlResult,
    MySqlServerError,
    of_driver,
    text_of,
    to_store_error,
    unanswered,
)
from tenure.stores.mysql.options import OFF, TABLE, MySqlDeployment, place
from tenure.stores.sql.database import LOCKED_FOR
from tenure.transport.caller_queue import CallerQueue
from tenure.transport.pool import BoundedPool, Room

log = logging.getLogger("tenure")

SETTINGS = (
    "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 10, "
    "lock_wait_timeout = 10"
)
"""The settings of a session. A statement that its client gave up ends by itself. Strict modes: no text is ever cut."""

GREETING = (
    SETTINGS,
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SELECT CONNECTION_ID(), VERSION(), @@global.read_only, @@global.innodb_flush_log_at_trx_commit",
)
"""What a session tells and asks its server. READ COMMITTED: no statement locks a gap between rows."""

_STARTED = "SELECT UNIX_TIMESTAMP() - VARIABLE_VALUE FROM %s.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Uptime'"

STARTED = {
    True: _STARTED % "information_schema",
    False: _STARTED.replace("GLOBAL_STATUS", "global_status") % "performance_schema",
}
"""The statement that tells when the server started, by whether it is MariaDB: in whole seconds.

A restart within one second is not seen by it. It does no harm: the start before began a quarantine, unless the server
was new.
"""

BEGIN, COMMIT, ROLLBACK = "START TRANSACTION", "COMMIT", "ROLLBACK"

IMPATIENT = f"SET SESSION wait_timeout = {LOCKED_FOR:.0f}"
PATIENT = "SET SESSION wait_timeout = DEFAULT"
"""The server ends a session, and its transaction, whose client sends nothing for this long. Only MariaDB has a timeout
of its own for transactions."""


class MySqlLink(ABC):
    """The connections of one client. Every operation ends by `until`, a local instant.

    An operation raises MySqlServerError if the server replied with an error, OutcomeUnknown if it did not reply, and
    another StoreError if it was not reached.
    """

    def __init__(self, runtime: Runtime, deployment: MySqlDeployment) -> None:
        """Prepare; nothing is connected yet."""
        self.reached = False
        """Whether the last attempt to connect reached a server, of whatever kind."""
        self._runtime = runtime
        self._deployment = deployment
        self._closed = False
        self._warned = False
        self._start_anew()

    @abstractmethod
    async def _connect_to(self, host: str, port: int, until: float) -> MySqlConnection:
        """Return a new connection to a host, logged in. Raises what the driver raises."""

    @abstractmethod
    async def _of_factory(self, raw: Any, until: float) -> MySqlConnection:  # noqa: ANN401 - of any driver
        """Return the connection that the user's factory returned. Raises StoreError if it is of the other form."""

    # -- statements ----------------------------------------------------------------------------------------

    async def run(self, statements: Sequence[str], until: float, *, keep: bool = True) -> list[MySqlResult]:
        """Run statements on a free connection, in one round trip if the driver can; return their results.

        Without `keep` the connection is closed then.
        """
        connection = await self.take(until)
        undo = (ROLLBACK,) if BEGIN in statements else ()
        results = await self._carry_out(connection, statements, undo, until)
        if keep:
            self.put_back(connection)
        else:
            self.discard(connection)
        return results

    async def transact(
        self, first: Sequence[str], then: Callable[[list[MySqlResult]], Sequence[str]], until: float
    ) -> list[MySqlResult]:
        """Run statements in a transaction, and those that `then` makes of their results; return the results of these.

        `then` does not wait. If it stands still nevertheless, the server ends the session after LOCKED_FOR.
        """
        connection = await self.take(until)
        undo = (ROLLBACK, PATIENT)
        results = await self._carry_out(connection, (IMPATIENT, BEGIN, *first), undo, until)
        try:
            rest = then(results[2:])
        except BaseException:
            self.discard(connection)
            raise
        done = await self._carry_out(connection, (*rest, COMMIT, PATIENT), undo, until)
        self.put_back(connection)
        return done[:-2]

    async def _carry_out(
        self, connection: MySqlConnection, statements: Sequence[str], undo: Sequence[str], until: float
    ) -> list[MySqlResult]:
        """Run statements on a connection. If they fail, undo them and put it back, or close it; raise what it means."""
        try:
            return await connection.run(statements, until)
        except MySqlServerError as error:
            await self._after_error(connection, error, undo, until)
            raise
        except MySqlBroken as error:
            self._lose(connection)
            raise unanswered(connection.place, error) from error
        except BaseException:
            self.discard(connection)
            raise

    async def _after_error(
        self, connection: MySqlConnection, error: MySqlServerError, undo: Sequence[str], until: float
    ) -> None:
        """Put a connection back after an error reply, without a transaction; or close it if it is of no use."""
        if error.code in USELESS:
            self._lose(connection)
            return
        try:
            if undo:
                await connection.run(undo, until)
        except (MySqlServerError, MySqlBroken):
            self._lose(connection)
        except BaseException:
            self.discard(connection)
            raise
        else:
            self.put_back(connection)

    # -- connections ---------------------------------------------------------------------------------------

    async def take(self, until: float) -> MySqlConnection:
        """Return a connection on which no reply is due: an idle one, a new one, or the next that is put back."""
        self._check_open()
        found: MySqlConnection | Room | None = await self._callers.first_result(self._pool.find, until)
        if found is None:
            self._check_open()
            raise StoreUnavailable(
                f"the request to {self._deployment.title()} timed out before it was sent: raise `timeout` or "
                "`operation_timeout`, or allow more with ?connections= in the URL"
            )
        return await self._connect(found, until) if isinstance(found, Room) else found

    def put_back(self, connection: MySqlConnection) -> None:
        """Let others use a connection on which no reply is due."""
        self._pool.put_back(connection)
        self._callers.wake()

    def discard(self, connection: MySqlConnection) -> None:
        """Close a connection that was taken. Idempotent."""
        self._pool.discard(connection)
        self._callers.wake()

    def _lose(self, connection: MySqlConnection) -> None:
        self._pool.lose(connection)
        self._callers.wake()

    async def _connect(self, room: Room, until: float) -> MySqlConnection:
        try:
            connection = await self.dial(until)
        except BaseException:
            self._pool.give_up(room)
            self._callers.wake()
            raise
        self._pool.fill(room, connection, self._runtime.now())
        return connection

    async def dial(self, until: float) -> MySqlConnection:
        """Return a new connection to the first host that can be written. Raises StoreError."""
        self._check_open()
        if self._deployment.connect is not None:
            return await self._dial_one("", 0, until)
        hosts = self._deployment.hosts
        failed: StoreError | None = None
        for number, (host, port) in enumerate(hosts):
            now = self._runtime.now()
            if now >= until and failed is not None:
                break
            try:
                return await self._dial_one(host, port, now + (until - now) / (len(hosts) - number))
            except StoreError as error:
                failed = error
        raise failed or StoreUnavailable(f"{self._deployment.title()} has no host")

    async def _dial_one(self, host: str, port: int, until: float) -> MySqlConnection:
        where = place(host, port) if host else self._deployment.title()
        connection: MySqlConnection | None = None
        self.reached = False
        try:
            connection = await self._open(host, port, until)
            connection.place = where
            await self._greet(connection, until)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, Exception) or isinstance(error, StoreError):
                raise
            raise self._explain(error, where) from error
        return connection

    async def _open(self, host: str, port: int, until: float) -> MySqlConnection:
        if self._deployment.connect is not None:
            return await self._of_factory(self._deployment.connect(), until)
        return await self._connect_to(host, port, until)

    def _explain(self, error: Exception, where: str) -> StoreError:
        """Return why a connection was not made."""
        if isinstance(error, RuntimeError) and "cryptography" in str(error):
            return StoreError(
                f"the MySQL server at {where} wants the password encrypted: add ?ssl=true to the URL, or pip install "
                "cryptography"
            )
        meant = of_driver(error) if is_of_driver(error) else error
        if isinstance(meant, MySqlServerError):
            refused = to_store_error(where, meant)
            return StoreUnavailable(str(refused)) if meant.code in SESSION_ENDED else refused
        if "SSL" in str(meant):
            return StoreUnavailable(
                f"cannot secure the connection to the MySQL server at {where} ({meant}); check the options ssl and "
                "ssl_... of the URL"
            )
        if self.reached or not isinstance(meant, MySqlBroken):
            return StoreUnavailable(
                f"the server at {where} did not greet as MySQL does ({meant}); check that it runs and is a MySQL or "
                "MariaDB server, and the port of the URL"
            )
        return StoreUnavailable(
            f"cannot connect to the MySQL server at {where} ({meant}); check that it runs, and the host and the port "
            "of the URL"
        )

    async def _greet(self, connection: MySqlConnection, until: float) -> None:
        """Set the session, and learn what the server is. Raises MySqlServerError if it can't be written."""
        session, version, read_only, flush = (await connection.run(GREETING, until))[-1].rows[0]
        connection.session = int(session)
        if str(read_only).upper() not in {"0", "OFF"}:
            raise MySqlServerError(min(READ_ONLY), "read_only is set")
        unsafe = int(flush) != 1
        if unsafe and not self._warned and self._deployment.mode == TABLE and self._deployment.guard != OFF:
            self._warned = True
            log.warning(
                "the MySQL server at %s may forget its last commits when it crashes, because its "
                "innodb_flush_log_at_trx_commit is not 1: after a restart it grants nothing for a while",
                connection.place,
            )
        if self._deployment.strict or unsafe:
            started = (await connection.run((STARTED["MariaDB" in text_of(version)],), until))[0].rows[0][0]
            await connection.run((f"SET @tenure_started = {int(float(started))}",), until)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"{self._deployment.title()} is closed: make a new client")

    # -- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the idle connections now, and those in use when they are put back."""
        self._closed = True
        self._pool.close()
        self._callers.close()

    def abandon(self) -> None:
        """In a forked child: close its copies, and start anew."""
        with suppress(OSError):
            self._pool.abandon()
        self._start_anew()

    def _start_anew(self) -> None:
        self._pool: BoundedPool[MySqlConnection] = BoundedPool(self._deployment.connections, self._runtime.mutex())
        self._callers = CallerQueue(self._runtime)


MakeMySqlLink = Callable[[Runtime, MySqlDeployment], MySqlLink]
