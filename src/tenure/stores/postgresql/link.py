"""The link to the servers of one database: a few connections that carry the statements of one client.

It is written once for both forms of the API. What they do differently is in `threads.py` and `aio.py`: to wait for a
socket, and to look up a host.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TypeVar

from psycopg import pq
from psycopg.conninfo import make_conninfo

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.postgresql.connection import Params, PgConnection, PgStatement, Table
from tenure.stores.postgresql.errors import PgBroken, PgServerError, cannot_connect, to_store_error, unanswered
from tenure.stores.postgresql.options import PgDeployment, place
from tenure.stores.sql.database import LOCKED_FOR
from tenure.transport.caller_queue import CallerQueue
from tenure.transport.keep_alive import DEAD_AFTER, FIRST_PROBE, INTERVAL, PROBES
from tenure.transport.pool import BoundedPool, Room

T = TypeVar("T")

GREETING = PgStatement("tenure_greeting", "SELECT pg_backend_pid(), pg_is_in_recovery()")

SETTINGS = PgStatement(
    "tenure_settings",
    "SELECT set_config('statement_timeout', '30s', false), set_config('lock_timeout', '10s', false), "
    "set_config('default_transaction_isolation', 'read committed', false), set_config('jit', 'off', false), "
    "set_config('plan_cache_mode', 'force_generic_plan', false), "
    "(SELECT count(set_config(name, setting, false)) "
    "FROM (VALUES ('client_connection_check_interval', '1s'), ('idle_session_timeout', '0')) AS newer (name, setting) "
    "WHERE current_setting(name, true) IS NOT NULL)",
)
"""The settings of a session. A plan is made once, because planning would take half of the time of each statement. A
statement that its client gave up ends by itself, soon after its connection.

Servers before PostgreSQL 14 do not have the newer ones. A pooler's sessions are left alone.
"""

BEGIN = (
    f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = {round(LOCKED_FOR * 1000)}"
)

PgCall = tuple[PgStatement, Params]
"""A statement and its parameters."""

USELESS = frozenset({"25006", "55000", "57P01", "57P02", "57P03"})
"""States after which another connection may lead to another server, or to the same one in another state."""


class PgLink(ABC):
    """The connections of one client. Every operation ends by `until`, a local instant.

    An operation raises PgServerError if the server replied with an error, OutcomeUnknown if it did not reply, and
    another StoreError if it was not reached.
    """

    def __init__(self, runtime: Runtime, deployment: PgDeployment) -> None:
        """Prepare; nothing is connected yet."""
        self.pooled = False
        """Whether a pooler was seen between the client and the server."""
        self._runtime = runtime
        self._deployment = deployment
        self._closed = False
        self._start_anew()

    @abstractmethod
    async def _wait(self, connection: PgConnection, mask: int, until: float) -> None:
        """Wait until the socket of a connection is readable or writable, as `mask` says. Raises TimeoutError."""

    @abstractmethod
    async def _look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; none if libpq is to look it up."""

    # -- statements ----------------------------------------------------------------------------------------

    async def execute(self, statement: PgStatement, params: Params, until: float) -> Table:
        """Run a statement on a free connection; return its rows."""
        connection = await self.take(until)
        table = await self._carry_out(connection, connection.execute(statement, params), until)
        self.put_back(connection)
        return table

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
        except PgBroken as error:
            self._lose(connection)
            raise unanswered(connection.place, error) from error
        except BaseException:
            self._pool.discard(connection)
            self._callers.wake()
            raise
        self.put_back(connection)
        return table

    async def _carry_out(self, connection: PgConnection, work: Generator[int, None, T], until: float) -> T:
        """Run work on a connection. If it fails, put the connection back or close it, and raise what it means."""
        try:
            return await self.run(connection, work, until)
        except PgServerError as error:
            if error.fatal or error.state in USELESS:
                self._lose(connection)
            else:
                self.put_back(connection)
            raise
        except PgBroken as error:
            self._lose(connection)
            raise unanswered(connection.place, error) from error
        except BaseException:
            self.discard(connection)
            raise

    async def run(self, connection: PgConnection, work: Generator[int, None, T], until: float) -> T:
        """Run work on a connection. Raises PgServerError or PgBroken."""
        try:
            return await self.resume(connection, work, next(work), until)
        except StopIteration as end:
            result: T = end.value
            return result
        except TimeoutError as error:
            raise PgBroken("timed out") from error

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

    async def take(self, until: float) -> PgConnection:
        """Return a connection on which no reply is due: an idle one, a new one, or the next that is put back."""
        self._check_open()
        found: PgConnection | Room | None = await self._callers.first_result(self._pool.find, until)
        if found is None:
            self._check_open()
            raise StoreUnavailable(
                f"the request to {self._deployment.title()} timed out before it was sent: raise `timeout` or "
                "`operation_timeout`, or allow more with ?connections= in the URL"
            )
        return await self._connect(found, until) if isinstance(found, Room) else found

    def put_back(self, connection: PgConnection) -> None:
        """Let others use a connection on which no reply is due."""
        self._pool.put_back(connection)
        self._callers.wake()

    def _lose(self, connection: PgConnection) -> None:
        self._pool.lose(connection)
        self._callers.wake()

    def discard(self, connection: PgConnection) -> None:
        """Close a connection that was taken. Idempotent."""
        self._pool.discard(connection)
        self._callers.wake()

    async def _connect(self, room: Room, until: float) -> PgConnection:
        try:
            connection = await self.dial(until)
        except BaseException:
            self._pool.give_up(room)
            self._callers.wake()
            raise
        self._pool.fill(room, connection, self._runtime.now())
        return connection

    async def dial(self, until: float) -> PgConnection:
        """Return a new connection to the first host that serves. Raises StoreError."""
        self._check_open()
        hosts = self._deployment.hosts
        failed: StoreError | None = None
        for number, (host, port) in enumerate(hosts):
            now = self._runtime.now()
            if now >= until and failed is not None:
                break
            try:
                return await self._dial_one(host, port, now + (until - now) / (len(hosts) - number))
            except PgServerError as error:
                failed = to_store_error(place(host, port), error)
            except (PgBroken, OSError) as error:
                failed = cannot_connect(place(host, port), error)
        raise failed or StoreUnavailable(f"{self._deployment.title()} has no host")

    async def _dial_one(self, host: str, port: int, until: float) -> PgConnection:
        conninfo = make_conninfo(**self._keywords(host, port, await self._look_up(host, port)))
        connection = PgConnection(pq.PGconn.connect_start(conninfo.encode()), place(host, port))
        try:
            await self.run(connection, connection.shake_hands(), until)
            await self._greet(connection, until)
        except BaseException:
            connection.close()
            raise
        return connection

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
        connection.pooled = True  # nothing is prepared before it is known
        ((pid, in_recovery),) = await self.run(connection, connection.execute(GREETING, ()), until)
        connection.pooled = self.pooled = int(pid or 0) != connection.backend_pid
        if in_recovery == b"t":
            raise PgServerError("55000", "this is a standby", fatal=True)
        if not connection.pooled:
            await self.run(connection, connection.execute(SETTINGS, ()), until)

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
        self._pool: BoundedPool[PgConnection] = BoundedPool(self._deployment.connections, self._runtime.mutex())
        self._callers = CallerQueue(self._runtime)


MakePgLink = Callable[[Runtime, PgDeployment], PgLink]
