"""The link to the servers of one database, over libpq. `threads.py` and `aio.py` say how each form waits."""

from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from psycopg import Error as PsycopgError
from psycopg import pq
from psycopg.conninfo import make_conninfo

from tenure.contracts.runtime import Runtime
from tenure.doctor.postgresql import PostgresFacts
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.postgresql.connection import Params, PgConnection, PgStatement, Table, Told, refusal
from tenure.stores.postgresql.errors import PgServerError, cannot_connect, to_store_error
from tenure.stores.postgresql.options import ADVISORY, PgDeployment
from tenure.stores.sql.database import LOCKED_FOR
from tenure.stores.sql.deployment import PREFIX
from tenure.stores.sql.errors import SqlBroken, SqlServerError
from tenure.stores.sql.link import SqlLink
from tenure.transport.keep_alive import DEAD_AFTER, FIRST_PROBE, INTERVAL, PROBES

T = TypeVar("T")

GREETING = PgStatement("tenure_greeting", "SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('fsync')")

SETTINGS = PgStatement(
    "tenure_settings",
    "SELECT set_config('statement_timeout', '30s', false), set_config('lock_timeout', '10s', false), "
    "set_config('default_transaction_isolation', 'read committed', false), set_config('jit', 'off', false), "
    "set_config('default_transaction_read_only', 'off', false), "
    "set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false), "
    "set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false), "
    "(SELECT count(set_config(name, setting, false)) "
    "FROM (VALUES ('client_connection_check_interval', '1s'), ('idle_session_timeout', '0')) AS newer (name, setting) "
    "WHERE current_setting(name, true) IS NOT NULL)",
)
"""The settings of a session. A plan is made once, because planning would take half of the time of each statement. A
statement that its client gave up ends by itself, soon after its connection. Rows are found by the index, as
`@plan_by_index` of schema.sql says.

Servers before PostgreSQL 14 do not have the newer ones. A pooler's sessions are left alone.
"""

BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; "
    f"SET LOCAL idle_in_transaction_session_timeout = {round(LOCKED_FOR * 1000)}"
)

PgCall = tuple[PgStatement, Params]
"""A statement and its parameters."""

USELESS = frozenset({"25006", "55000", "57P01", "57P02", "57P03"})
"""States after which another connection may lead to another server, or to the same one in another state."""


class PgLink(SqlLink[PgConnection, PgDeployment, PostgresFacts]):
    """The connections of one client."""

    pooled = False
    """Whether a pooler was seen between the client and the server."""

    @abstractmethod
    async def _wait(self, connection: PgConnection, mask: int, until: float) -> None:
        """Wait until the socket of a connection is readable or writable, as `mask` says. Raises TimeoutError."""

    @abstractmethod
    async def _made_by(self, connect: Callable[[], Any], until: float) -> Any:  # noqa: ANN401 - of psycopg
        """Return the connection that the user's pool or engine makes. Raises UsageError if it is of the other form."""

    @abstractmethod
    async def _look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; none if libpq is to look it up."""

    def begin_facts(self, where: str) -> PostgresFacts:
        """Return the facts of a server of which nothing is known yet."""
        rules = self._deployment
        options = f" --schema {rules.schema}" if rules.schema else ""
        options += f" --prefix {rules.prefix}" if rules.prefix != PREFIX else ""
        advisory = rules.mode == ADVISORY
        return PostgresFacts(where, guard=rules.guard, advisory=advisory, max_ttl=rules.max_ttl, title=options)

    def to_store_error(self, place: str, error: SqlServerError) -> StoreError:
        """Return what an error reply means to users."""
        return to_store_error(place, error)

    # -- statements ----------------------------------------------------------------------------------------

    async def execute(self, statement: PgStatement, params: Params, until: float) -> Table:
        """Run a statement on a free connection; return its rows."""
        connection = await self.take(until)
        table = await self._carry_out(connection, connection.execute(statement, params), until)
        self.put_back(connection)
        return table

    def send_owed(self, statement: PgStatement, params: Params, told: Told) -> bool:
        """Send a statement on an idle connection, and have `told` get its rows later; False if none can send it now.

        Another statement of this client may overtake it, on another connection. Raises OutcomeUnknown.
        """
        connection = None if self._closed else self._pool.take(self._runtime.now())
        if connection is None:
            return False
        try:
            sent = connection.send_owed(statement, params, told)
        except SqlBroken as error:
            self.lose(connection)
            raise self.meaning(connection.place, error) from error
        except BaseException:
            self.discard(connection)
            raise
        self.put_back(connection)
        return sent

    def collect_owed(self) -> None:
        """Take the replies to what was sent that have come on idle connections."""
        for connection in self._pool.take_owing(self._runtime.now(), lambda each: each.owed):
            try:
                connection.collect()
            except (SqlBroken, PgServerError):
                self.lose(connection)
            except BaseException:
                self.discard(connection)
                raise
            else:
                self.put_back(connection)

    async def run_script(self, text: str, until: float) -> None:
        """Run several statements in one transaction."""
        connection = await self.take(until)
        await self._carry_out(connection, connection.run_script(text), until)
        self.put_back(connection)

    async def transact(self, first: PgCall, then: Callable[[Table], PgCall | None], until: float) -> Table:
        """Run a statement, and in the same transaction the one that `then` makes of its rows; return the latter's rows.

        It takes two round trips. The server ends the transaction if the client stands still for LOCKED_FOR between
        them. A connection on which anything fails is closed, which ends the transaction as well.
        """
        connection = await self.take(until)
        try:
            begin = f"{BEGIN}; {connection.spell_out(*first)}"
            call = then(await self.run(connection, connection.run_script(begin), until))
            end = "ROLLBACK" if call is None else f"{connection.spell_out(*call)}; COMMIT"
            table = await self.run(connection, connection.run_script(end), until)
        except SqlBroken as error:
            self.lose(connection)
            raise self.meaning(connection.place, error) from error
        except BaseException:
            self.discard(connection)
            raise
        self.put_back(connection)
        return table

    async def _carry_out(self, connection: PgConnection, work: Generator[int, None, T], until: float) -> T:
        """Run work on a connection. If it fails, put the connection back or close it, and raise what it means."""
        try:
            return await self.run(connection, work, until)
        except PgServerError as error:
            if error.fatal or error.code in USELESS:
                self.lose(connection)
            else:
                self.put_back(connection)
            raise
        except SqlBroken as error:
            self.lose(connection)
            raise self.meaning(connection.place, error) from error
        except BaseException:
            self.discard(connection)
            raise

    async def run(self, connection: PgConnection, work: Generator[int, None, T], until: float) -> T:
        """Run work on a connection. Raises PgServerError or SqlBroken."""
        try:
            return await self.resume(connection, work, next(work), until)
        except StopIteration as end:
            result: T = end.value
            return result
        except TimeoutError as error:
            raise SqlBroken("timed out") from error

    async def resume(self, connection: PgConnection, work: Generator[int, None, T], mask: int, until: float) -> T:
        """Go on with work that waits for `mask`. After a TimeoutError it may be resumed again."""
        try:
            while True:
                await self._wait(connection, mask, until)
                mask = work.send(None)
        except StopIteration as end:
            result: T = end.value
            return result

    # -- connections ---------------------------------------------------------------------------------------

    async def _open(self, host: str, port: int, until: float) -> PgConnection:
        if (connect := self._deployment.connect) is not None:
            raw = await self._made_by(connect, until)
            return PgConnection(raw.pgconn, "", raw)
        addresses = [] if "hostaddr" in self._deployment.login else await self._look_up(host, port)
        conninfo = make_conninfo(**self._keywords(host, port, addresses))
        return PgConnection(pq.PGconn.connect_start(conninfo.encode()), "")

    def _explain(self, error: Exception, where: str) -> StoreError | None:
        if self._deployment.connect is not None:
            if isinstance(error, (PsycopgError, TimeoutError)):
                error = refusal(str(error) or "timed out")
            elif not isinstance(error, (SqlServerError, SqlBroken)):
                return StoreUnavailable(
                    f"{where}: the pool or engine did not connect ({type(error).__name__}); see the cause of this error"
                )
        if isinstance(error, SqlServerError):
            return to_store_error(where, error)
        return cannot_connect(where, error) if isinstance(error, OSError) else None

    def _keywords(self, host: str, port: int, addresses: list[str]) -> dict[str, str]:
        alive = {
            "keepalives_idle": FIRST_PROBE,
            "keepalives_interval": INTERVAL,
            "keepalives_count": PROBES,
            "tcp_user_timeout": DEAD_AFTER * 1000,
        }
        given = {"hostaddr": ",".join(addresses)} if addresses else {}
        return {
            "application_name": "tenure",
            **self._deployment.login,
            **given,
            **{key: str(value) for key, value in alive.items()},
            "host": ",".join([host] * max(1, len(addresses))),
            "port": str(port),
            "client_encoding": "UTF8",
        }

    async def _greet(self, connection: PgConnection, until: float) -> None:
        """Learn whether a pooler is between, whose word for the session differs, and whether this is a standby."""
        await self.run(connection, connection.set_up(), until)
        connection.pooled = True  # nothing is prepared before it is known
        ((pid, in_recovery, fsync),) = await self.run(connection, connection.execute(GREETING, ()), until)
        connection.pooled = self.pooled = int(pid or 0) != connection.backend_pid
        facts = self.facts = self.begin_facts(connection.place)
        facts.version, facts.pooled = connection.server_version or None, self.pooled
        facts.standby, facts.fsync = in_recovery == b"t", fsync == b"on"
        if facts.standby and not self.takes_standbys:
            raise PgServerError("55000", "this is a standby", fatal=True)
        if not connection.pooled:
            await self.run(connection, connection.execute(SETTINGS, ()), until)


MakePgLink = Callable[[Runtime, PgDeployment], PgLink]
