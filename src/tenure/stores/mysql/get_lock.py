"""Session locks in MySQL and MariaDB: the named locks of GET_LOCK, which need no table.

The server ends a session that has been silent for the ttl (`wait_timeout`), so a holder that stands still or is cut off
loses its lock.
"""

from collections.abc import Sequence

from tenure.contracts.deadlines import MICROS
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.mysql import get_lock_sql as sql
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import NO_SESSION, NOT_ITS_OWN, SESSION_ENDED, MySqlResult, text_of
from tenure.stores.mysql.link import MakeMySqlLink, MySqlLink
from tenure.stores.mysql.options import MySqlDeployment
from tenure.stores.sql.errors import SqlBroken, SqlServerError
from tenure.stores.sql.sessions import (
    LockKey,
    LockSession,
    LockTerms,
    SessionEndedError,
    SessionHolder,
    SessionLocks,
    SessionView,
)

DESCRIBED_FOR = 1.0
"""For how many seconds the user and the host of a session are taken for the same."""

MOST_DESCRIBED = 256
"""How many sessions are remembered."""

LOOK_AGAIN = 0.01
"""How often `end_holder` looks whether the session has ended, in seconds."""

ROWS_INSTEAD = "Use the store with a table (without ?mode=get_lock)"

UNFIT = {
    ("wsrep_on", "ON"): "is a node of a Galera cluster, whose nodes do not know each other's named locks",
    ("group_replication_single_primary_mode", "OFF"): (
        "is one of several primaries of a group, which do not know each other's named locks"
    ),
}
"""Server variables, with the values of setups in which GET_LOCK does not exclude all others: what such a server is."""


class MySqlNamedLocks(SessionLocks[MySqlDeployment, MySqlLink]):
    """One client's access to the named locks of a server."""

    longest_ttl = sql.LONGEST_TIMEOUT * MICROS
    waits = False
    no_right = NOT_ITS_OWN
    advice = (
        "use the holder's user, or have this one granted the right to end sessions of others (CONNECTION_ADMIN in "
        "MySQL, CONNECTION ADMIN in MariaDB)"
    )
    pooled = (
        "a proxy is between this client and the server, and named locks belong to the sessions that it shares. Give "
        f"Tenure the server's own address. {ROWS_INSTEAD} if there is no other way"
    )

    def __init__(self, runtime: Runtime, deployment: MySqlDeployment, make_link: MakeMySqlLink) -> None:
        super().__init__(runtime, deployment, make_link)
        self._database = deployment.database
        self._described: dict[int, tuple[str, float]] = {}
        """The user and the host of sessions, and until when they are taken for the same."""

    async def open(self, until: float) -> bool:
        """Connect, and look at the server. There are no tokens."""
        self.put_back(await self.take(until))
        return False

    async def take(self, until: float) -> "MySqlLockSession":
        """Return a session that holds no lock. Raises StoreError if its server is unfit, or a proxy is seen."""
        connection = await self.link.take(until)
        if not connection.examined:
            try:
                await self._examine(connection, until)
            except BaseException:
                self.link.discard(connection)
                raise
            connection.examined = True
        return MySqlLockSession(self, connection)

    async def _examine(self, connection: MySqlConnection, until: float) -> None:
        """Look at the server behind a new connection, which may be another one than before."""
        try:
            server, variables = await connection.run(sql.SERVER, until)
        except SqlServerError as error:
            raise self.explain(error) from error
        except SqlBroken as error:
            raise self.link.meaning(connection.place, error) from error
        session, version, database, folded = server.rows[0]
        if not connection.thread_id() == connection.session == int(session):
            raise self.pooler_seen()
        self._refuse_unfit(text_of(version), variables)
        self.waits = "MariaDB" in text_of(version)
        self._database = text_of(database).lower() if int(folded) else text_of(database)

    def _refuse_unfit(self, version: str, variables: MySqlResult) -> None:
        found = [UNFIT.get((text_of(name).lower(), text_of(value).upper())) for name, value in variables.rows]
        if "TiDB" in version:
            found.append("is TiDB, which has granted a named lock twice")
        for why in filter(None, found):
            raise StoreError(f"the server of {self._deployment.title()} {why}. {ROWS_INSTEAD}")

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
            await self.link.run((sql.kill(self.lock_name(key), session),), until)
        except SqlServerError as error:
            if error.code == NO_SESSION:
                return False
            raise self.explain(error) from error
        while await self._holder(key, until) == session:
            await self._runtime.sleep(LOOK_AGAIN)
        return True

    async def _run(self, statement: str, until: float) -> MySqlResult:
        try:
            return (await self.link.run((statement,), until))[0]
        except SqlServerError as error:
            raise self.explain(error) from error

    def lock_name(self, key: LockKey) -> str:
        """Return the name of a lock at the server."""
        return sql.lock_name(self._database, self._deployment.prefix, key.name)


class MySqlLockSession(LockSession[MySqlConnection, Sequence[MySqlResult]]):
    """A session on a connection of its own."""

    _locks: MySqlNamedLocks
    _name = ""

    async def lock(self, key: LockKey, terms: LockTerms, until: float) -> int:
        """Take a lock if it is free, or wait for it in the database. The timeout is set before: no lock is without."""
        name, timeout = self._locks.lock_name(key), _whole_seconds(terms.ttl)
        lock = sql.lock(name, terms.wait, self.connection.session)
        ((granted,),) = (await self._run((sql.set_timeout(timeout), lock), until))[-1].rows
        if granted == sql.OTHER_SESSION:
            raise self._locks.pooler_seen()
        if granted is None:
            raise StoreUnavailable(f"the request for {key.name!r} was ended by the server, or by KILL QUERY: try again")
        if not granted:
            await self._run((sql.FORGET_TIMEOUT,), until)
            return 0
        self._name, self._timeout = name, timeout
        self._ends_at = self._locks.now() + timeout
        return terms.proposal

    async def _unlock(self, until: float) -> bool:
        return bool((await self._run(sql.unlock(self._name), until))[0].rows[0][0] == 1)

    def begin_to_prolong(self, ttl: int) -> SessionEndedError | None:
        """Send a renewal, or nothing while the reply to an earlier one is due. Return why the session has ended."""
        if self._renewal is not None:
            return None
        left = self._ends_at - self._locks.now()
        timeout = max(_whole_seconds(ttl), _whole_seconds(round(left * MICROS)))
        change = () if timeout == self._timeout else (sql.set_timeout(timeout),)
        statements = (*change, sql.holder(self._name))
        self._renewal = statements
        try:
            self.connection.send(statements)
        except SqlBroken as error:
            self._renewal = None
            return SessionEndedError(str(error))
        except BaseException:
            self.connection.close()  # nobody knows whether a reply is due
            raise
        self._timeout = timeout
        return None

    async def _receive(self, until: float) -> Sequence[MySqlResult]:
        if self._renewal is None:
            raise SessionEndedError("the renewal failed")
        return await self.connection.receive(until)

    def _proves(self, reply: Sequence[MySqlResult]) -> bool:
        ((holder, session),) = reply[-1].rows
        return bool(holder == session == self.connection.session)

    def _is_over(self, error: SqlServerError) -> bool:
        return error.code in SESSION_ENDED

    async def _run(self, statements: Sequence[str], until: float) -> list[MySqlResult]:
        """Run statements to their end. After an error, the caller closes the session."""
        try:
            return await self.connection.run(statements, until)
        except (SqlServerError, SqlBroken) as error:
            raise self._meaning(error) from error


def _whole_seconds(micros: int) -> int:
    """Return a ttl for the server: rounded up, for the lease may end there later, and never earlier."""
    return min(sql.LONGEST_TIMEOUT, max(1, -(-micros // MICROS)))
