"""Session locks in MySQL and MariaDB: the named locks of GET_LOCK, which need no table.

The server ends a session that has been silent for the ttl (`wait_timeout`), so a holder that stands still or is cut off
loses its lock.
"""

from tenure.contracts.deadlines import MICROS
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.stores.mysql import get_lock_sql as sql
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import (
    NO_SESSION,
    NOT_ITS_OWN,
    MySqlBroken,
    MySqlResult,
    MySqlServerError,
    text_of,
    to_store_error,
    unanswered,
)
from tenure.stores.mysql.get_lock_session import MySqlLockSession
from tenure.stores.mysql.link import MakeMySqlLink
from tenure.stores.mysql.options import MySqlDeployment
from tenure.stores.sql.sessions import LockKey, LockSession, SessionHolder, SessionView

DESCRIBED_FOR = 1.0
"""For how many seconds the user and the host of a session are taken for the same."""

MOST_DESCRIBED = 256
"""How many sessions are remembered."""

LOOK_AGAIN = 0.01
"""How often `end_holder` looks whether the session has ended, in seconds."""

ROWS_INSTEAD = "Use the store with a table (without ?mode=get_lock)"

PROXIED = (
    "a proxy is between this client and the server, and named locks belong to the sessions that it shares. Give "
    f"Tenure the server's own address. {ROWS_INSTEAD} if there is no other way"
)

UNFIT = {
    ("wsrep_on", "ON"): "is a node of a Galera cluster, whose nodes do not know each other's named locks",
    ("group_replication_single_primary_mode", "OFF"): (
        "is one of several primaries of a group, which do not know each other's named locks"
    ),
}
"""Variables that show a server with which named locks exclude nobody, or not everybody."""


class MySqlNamedLocks:
    """One client's access to the named locks of a server."""

    def __init__(self, runtime: Runtime, deployment: MySqlDeployment, make_link: MakeMySqlLink) -> None:
        """Prepare; nothing is connected yet."""
        self.most = deployment.connections
        self.longest_ttl = sql.LONGEST_TIMEOUT * MICROS
        self.waits = False
        self.now = runtime.now
        self._runtime = runtime
        self._deployment = deployment
        self._link = make_link(runtime, deployment)
        self._database = deployment.database
        self._described: dict[int, tuple[str, float]] = {}
        """The user and the host of sessions, and until when they are taken for the same."""

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, until: float) -> bool:
        """Connect, and look at the server. There are no tokens."""
        self.put_back(await self.take(until))
        return False

    async def close(self) -> None:
        """Disconnect."""
        await self._link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._link.abandon()

    # -- sessions ------------------------------------------------------------------------------------------

    async def take(self, until: float) -> MySqlLockSession:
        """Return a session that holds no lock. Raises StoreError if its server is unfit, or a proxy is seen."""
        connection = await self._link.take(until)
        if not connection.examined:
            try:
                await self._examine(connection, until)
            except BaseException:
                self._link.discard(connection)
                raise
            connection.examined = True
        return MySqlLockSession(self, connection)

    async def _examine(self, connection: MySqlConnection, until: float) -> None:
        """Look at the server behind a new connection, which may be another one than before."""
        try:
            server, variables = await connection.run(sql.SERVER, until)
        except MySqlServerError as error:
            raise self.explain(error) from error
        except MySqlBroken as error:
            raise unanswered(connection.place, error) from error
        session, version, database, folded = server.rows[0]
        if not connection.thread_id() == connection.session == int(session):
            raise self.proxy_seen()
        self._refuse_unfit(text_of(version), variables)
        self.waits = "MariaDB" in text_of(version)
        self._database = text_of(database).lower() if int(folded) else text_of(database)

    def _refuse_unfit(self, version: str, variables: MySqlResult) -> None:
        found = [UNFIT.get((text_of(name).lower(), text_of(value).upper())) for name, value in variables.rows]
        if "TiDB" in version:
            found.append("is TiDB, which has granted a named lock twice")
        for why in filter(None, found):
            raise StoreError(f"the server of {self._deployment.title()} {why}. {ROWS_INSTEAD}")

    def put_back(self, session: LockSession) -> None:
        """Let others use the connection of a session that holds no lock."""
        assert isinstance(session, MySqlLockSession)  # noqa: S101 - the sessions of `take` alone come here
        self._link.put_back(session.connection)

    def close_session(self, session: LockSession) -> None:
        """Close the connection of a session."""
        assert isinstance(session, MySqlLockSession)  # noqa: S101
        self._link.discard(session.connection)

    # -- what changes no lock ------------------------------------------------------------------------------

    async def look(self, key: LockKey, until: float) -> SessionView:
        """Ask which session holds the lock. Its owner and its ttl are not known; its number stands for its token."""
        holder = await self._holder(key, until)
        if holder is None:
            return SessionView()
        return SessionView([SessionHolder(holder, await self._describe(holder, until), holder)])

    async def _holder(self, key: LockKey, until: float) -> int | None:
        holder = (await self._run(sql.holder(self.lock_name(key)), until)).rows[0][0]
        return None if holder is None else int(holder)

    async def _describe(self, session: int, until: float) -> str:
        """Return whose session that is, as far as the server says."""
        known, fresh_until = self._described.get(session, ("", 0.0))
        if self.now() < fresh_until:
            return known
        rows = (await self._run(sql.describe(session), until)).rows
        whose = f" of {text_of(rows[0][0])}@{text_of(rows[0][1])}" if rows else ""
        if len(self._described) >= MOST_DESCRIBED:
            self._described = {}
        self._described[session] = f"session {session}{whose}", self.now() + DESCRIBED_FOR
        return f"session {session}{whose}"

    async def last_token(self, until: float) -> int:  # noqa: ARG002 - the contract
        """Return 0: there are no tokens."""
        return 0

    async def end_holder(self, key: LockKey, session: int, until: float) -> bool:
        """End the session, and wait for its end. It must be of this user, unless this user may end all sessions."""
        try:
            await self._link.run((sql.kill(self.lock_name(key), session),), until)
        except MySqlServerError as error:
            if error.code == NO_SESSION:
                return False
            raise self.explain(error) from error
        while await self._holder(key, until) == session:
            await self._runtime.sleep(LOOK_AGAIN)
        return True

    async def _run(self, statement: str, until: float) -> MySqlResult:
        try:
            return (await self._link.run((statement,), until))[0]
        except MySqlServerError as error:
            raise self.explain(error) from error

    # -- what sessions need --------------------------------------------------------------------------------

    def lock_name(self, key: LockKey) -> str:
        """Return the name of a lock at the server."""
        return sql.lock_name(self._database, self._deployment.prefix, key.name)

    def explain(self, error: MySqlServerError) -> StoreError:
        """Return what an error reply means to users."""
        if error.code == NOT_ITS_OWN:
            return StoreError(
                f"{self._deployment.title()} refuses: {error}; use the holder's user, or have this one granted the "
                "right to end sessions of others (CONNECTION_ADMIN in MySQL, CONNECTION ADMIN in MariaDB)"
            )
        return to_store_error(self._deployment.title(), error)

    def proxy_seen(self) -> StoreError:
        """Return the error for a session that is not the connection's."""
        return StoreError(f"{self._deployment.title()}: {PROXIED}")
