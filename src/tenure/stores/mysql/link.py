"""The link to the servers of one database, over a driver. `threads.py` and `aio.py` say how each form connects."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tenure.contracts.runtime import Runtime
from tenure.doctor.mysql import MySqlFacts
from tenure.errors import StoreError, StoreUnavailable
from tenure.escaping import shown
from tenure.stores.mysql.connection import MySqlConnection, is_of_driver
from tenure.stores.mysql.errors import (
    READ_ONLY,
    SESSION_ENDED,
    USELESS,
    MySqlResult,
    MySqlServerError,
    of_driver,
    text_of,
    to_store_error,
)
from tenure.stores.mysql.options import GET_LOCK, MySqlDeployment
from tenure.stores.sql.database import LOCKED_FOR
from tenure.stores.sql.errors import SqlBroken, SqlServerError
from tenure.stores.sql.link import SqlLink

SETTINGS = (
    "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 10, "
    "lock_wait_timeout = 10, sql_safe_updates = 0"
)
"""The settings of a session. A statement that its client gave up ends by itself. Strict modes: no text is ever cut.
Safe updates would refuse statements that find their row by another one."""

GREETING = (
    SETTINGS,
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    (
        "SELECT CONNECTION_ID(), VERSION(), @@global.read_only, @@global.innodb_flush_log_at_trx_commit, "
        "@@session.binlog_format"
    ),
)
"""What a session tells and asks its server. READ COMMITTED: no statement locks a gap between rows."""

LOG_ROWS = "SET SESSION binlog_format = 'ROW'"
"""Has a server that logs statements log the changes of this session by their rows: READ COMMITTED needs that."""

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


class MySqlLink(SqlLink[MySqlConnection, MySqlDeployment, MySqlFacts]):
    """The connections of one client."""

    reached = False
    """Whether the last attempt to connect reached a server, of whatever kind."""

    @abstractmethod
    async def _connect_to(self, host: str, port: int, until: float) -> MySqlConnection:
        """Return a new connection to a host, logged in. Raises what the driver raises."""

    @abstractmethod
    async def _of_factory(self, raw: Any, until: float) -> MySqlConnection:  # noqa: ANN401 - of any driver
        """Return the connection that the user's factory returned. Raises StoreError if it is of the other form."""

    def begin_facts(self, where: str) -> MySqlFacts:
        """Return the facts of a server of which nothing is known yet."""
        rules = self._deployment
        return MySqlFacts(where, guard=rules.guard, get_lock=rules.mode == GET_LOCK, max_ttl=rules.max_ttl)

    def to_store_error(self, place: str, error: SqlServerError) -> StoreError:
        """Return what an error reply means to users."""
        return to_store_error(place, error)

    # -- statements ----------------------------------------------------------------------------------------

    async def run(
        self, statements: Sequence[str], until: float, *, kills: Sequence[str] = (), keep: bool = True
    ) -> list[MySqlResult]:
        """Run statements on a free connection, in one round trip if the driver can; return their results.

        Then run `kills`, each whether or not the others fail. Without `keep` the connection is closed then.
        """
        connection = await self.take(until)
        undo = (ROLLBACK,) if BEGIN in statements else ()
        results = await self._carry_out(connection, statements, undo, until, kills)
        if keep:
            self.put_back(connection)
        else:
            self.discard(connection)
        return results

    async def transact(
        self,
        first: Sequence[str],
        then: Callable[[list[MySqlResult]], tuple[Sequence[str], Sequence[str]]],
        until: float,
    ) -> list[MySqlResult]:
        """Run statements in a transaction, and those that `then` makes of their results; return the results of these.

        `then` also makes kills, which follow the transaction. It does not wait. If it stands still nevertheless, the
        server ends the session after LOCKED_FOR.
        """
        connection = await self.take(until)
        undo = (ROLLBACK, PATIENT)
        results = await self._carry_out(connection, (IMPATIENT, BEGIN, *first), undo, until)
        try:
            rest, kills = then(results[2:])
        except BaseException:
            self.discard(connection)
            raise
        done = await self._carry_out(connection, (*rest, COMMIT, PATIENT), undo, until, kills)
        self.put_back(connection)
        return done[:-2]

    async def _carry_out(
        self,
        connection: MySqlConnection,
        statements: Sequence[str],
        undo: Sequence[str],
        until: float,
        kills: Sequence[str] = (),
    ) -> list[MySqlResult]:
        """Run statements on a connection. If they fail, undo them and put it back, or close it; raise what it means."""
        try:
            return await _run_with_kills(connection, statements, kills, until)
        except MySqlServerError as error:
            await self._after_error(connection, error, undo, until)
            raise
        except SqlBroken as error:
            self.lose(connection)
            raise self.meaning(connection.place, error) from error
        except BaseException:
            self.discard(connection)
            raise

    async def _after_error(
        self, connection: MySqlConnection, error: MySqlServerError, undo: Sequence[str], until: float
    ) -> None:
        """Put a connection back after an error reply, without a transaction; or close it if it is of no use."""
        if error.code in USELESS:
            self.lose(connection)
            return
        try:
            if undo:
                await connection.run(undo, until)
        except (MySqlServerError, SqlBroken):
            self.lose(connection)
        except BaseException:
            self.discard(connection)
            raise
        else:
            self.put_back(connection)

    # -- connections ---------------------------------------------------------------------------------------

    async def _open(self, host: str, port: int, until: float) -> MySqlConnection:
        self.reached = False
        if self._deployment.connect is not None:
            return await self._of_factory(self._deployment.connect(), until)
        return await self._connect_to(host, port, until)

    def _explain(self, error: Exception, where: str) -> StoreError:
        if isinstance(error, RuntimeError) and "cryptography" in str(error):
            return StoreError(
                f"the MySQL server at {where} wants the password encrypted: add ?ssl=true to the URL, or pip install "
                "cryptography"
            )
        meant = of_driver(error) if is_of_driver(error) else error
        if isinstance(meant, MySqlServerError):
            refused = to_store_error(where, meant)
            return StoreUnavailable(str(refused)) if meant.code in SESSION_ENDED else refused
        if self._deployment.connect is not None and not is_of_driver(error):
            return StoreUnavailable(
                f"{where}: the factory or engine did not connect ({type(error).__name__}); see the cause of this error"
            )
        if "SSL" in str(meant):
            return StoreUnavailable(
                f"cannot secure the connection to the MySQL server at {where} ({meant}); check the options ssl and "
                "ssl_... of the URL"
            )
        if self.reached or not isinstance(meant, SqlBroken):
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
        session, version, read_only, flush, logged = (await connection.run(GREETING, until))[-1].rows[0]
        connection.session = int(session)
        facts = self.facts = self.begin_facts(connection.place)
        facts.version, facts.flush = shown(text_of(version)), int(flush)
        facts.read_only = text_of(read_only).upper() not in {"0", "OFF"}
        if facts.read_only and not self.takes_standbys:
            raise MySqlServerError(min(READ_ONLY), "read_only is set")
        if text_of(logged).upper() == "STATEMENT":
            # Without the right to it, the first write says what to do, if it is logged.
            with suppress(MySqlServerError):
                await connection.run((LOG_ROWS,), until)
        unsafe = int(flush) != 1
        if self._deployment.strict or unsafe:
            started = (await connection.run((STARTED["MariaDB" in text_of(version)],), until))[0].rows[0][0]
            await connection.run((f"SET @tenure_started = {int(float(started))}",), until)


async def _run_with_kills(
    connection: MySqlConnection, statements: Sequence[str], kills: Sequence[str], until: float
) -> list[MySqlResult]:
    """Run statements and kills. A kill that fails has no session to wake: the results of the statements count."""
    try:
        return await connection.run((*statements, *kills), until)
    except MySqlServerError as error:
        failed = len(error.results) - len(statements)
        if failed < 0:
            raise
        results = list(error.results)
    for kill in kills[failed + 1 :]:
        with suppress(MySqlServerError):
            await connection.run((kill,), until)
    return results


MakeMySqlLink = Callable[[Runtime, MySqlDeployment], MySqlLink]
