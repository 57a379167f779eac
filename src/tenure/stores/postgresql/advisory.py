"""Session locks in PostgreSQL: advisory locks, which need no table.

The server ends a session that has been idle for the ttl (`idle_session_timeout`), so a holder that stands still or is
cut off loses its lock.
"""

from collections.abc import Sequence

from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError
from tenure.stores.postgresql import advisory_sql as sql
from tenure.stores.postgresql.advisory_session import PgLockSession
from tenure.stores.postgresql.connection import Cell, Params, PgStatement, Table
from tenure.stores.postgresql.errors import PgServerError, to_store_error
from tenure.stores.postgresql.link import MakePgLink
from tenure.stores.postgresql.options import PgDeployment
from tenure.stores.sql.sessions import LockKey, LockSession, SessionHolder, SessionView

OLDEST = 140_000
"""The oldest server that ends idle sessions."""

MAY_NOT = "42501"
"""The state of a role that lacks a right."""

POOLED = (
    "a connection pooler is between this client and PostgreSQL, and advisory locks belong to the sessions that it "
    "shares. Give Tenure the server's own address, or use the store with a table (without ?mode=advisory), which "
    "works through poolers"
)


class PgAdvisoryLocks:
    """One client's access to the advisory locks of a database."""

    def __init__(self, runtime: Runtime, deployment: PgDeployment, make_link: MakePgLink) -> None:
        """Prepare; nothing is connected yet."""
        self.most = deployment.connections
        self.longest_ttl = sql.LONGEST_TTL * 1000
        self.waits = True
        self._runtime = runtime
        self._deployment = deployment
        self.link = make_link(runtime, deployment)
        self.now = runtime.now
        self.sequence = deployment.sequence
        """The sequence of the tokens; empty if there is none."""
        self.try_lock = sql.try_lock("")
        self._labelled = f"{deployment.login.get('application_name', 'tenure')}: "

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, until: float) -> bool:
        """Connect, and look at the server and its sequence."""
        session = await self.take(until)
        version = session.connection.server_version
        self.put_back(session)
        if version < OLDEST:
            raise self._unfit(f"is of version {version // 10_000}, and ?mode=advisory needs 14 or later")
        await self._find_sequence(until)
        self.try_lock = sql.try_lock(self.sequence)
        return bool(self.sequence)

    async def _find_sequence(self, until: float) -> None:
        wanted = self._deployment.sequence
        found = await self._run(sql.SEQUENCE, ((wanted or sql.DEFAULT_SEQUENCE).encode(),), until)
        if not found:
            if wanted:
                raise self._unfit(f"has no sequence {wanted!r}: create it by `CREATE SEQUENCE {wanted}`")
            self.sequence = ""
            return
        name, cache, increment, cycles, may_use = [cell or b"" for cell in found[0]]
        if cache != b"1" or int(increment) < 1 or cycles == b"t":
            raise self._unfit(f"has a sequence {name.decode()!r} that does not only grow: make it CACHE 1 NO CYCLE")
        if may_use != b"t":
            raise self._unfit(f"lets this role not use the sequence {name.decode()!r}: GRANT USAGE ON it")
        self.sequence = name.decode().replace("'", "''")

    def _unfit(self, why: str) -> StoreError:
        return StoreError(f"the PostgreSQL server of {self._deployment.title()} {why}")

    async def close(self) -> None:
        """Disconnect."""
        await self.link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self.link.abandon()

    # -- sessions ------------------------------------------------------------------------------------------

    async def take(self, until: float) -> PgLockSession:
        """Return a session that holds no lock. Raises StoreError if a pooler is seen."""
        connection = await self.link.take(until)
        if connection.pooled:
            self.link.discard(connection)
            raise StoreError(f"{self._deployment.title()}: {POOLED}")
        return PgLockSession(self, connection)

    def put_back(self, session: LockSession) -> None:
        """Let others use the connection of a session that holds no lock."""
        assert isinstance(session, PgLockSession)  # noqa: S101 - the sessions of `take` alone come here
        self.link.put_back(session.connection)

    def close_session(self, session: LockSession) -> None:
        """Close the connection of a session."""
        assert isinstance(session, PgLockSession)  # noqa: S101
        self.link.discard(session.connection)

    def label(self, owner: str) -> str:
        """Return the application name of a session of an owner: ASCII of at most 63 bytes."""
        return (self._labelled + owner).encode("ascii", "backslashreplace")[:63].decode()

    def pooler_seen(self) -> StoreError:
        """Return the error for a session that turned out to be another one than the connection's."""
        return StoreError(f"{self._deployment.title()}: {POOLED}")

    # -- what changes no lock ------------------------------------------------------------------------------

    async def look(self, key: LockKey, until: float) -> SessionView:
        """Read the view of locks."""
        table = await self._run(sql.LOOK, (b"%d" % key.number,), until)
        view = SessionView()
        by_pid: dict[int, list[Sequence[Cell]]] = {}
        for each in table:
            by_pid.setdefault(int(each[0] or 0), []).append(each)
        for pid, locks in by_pid.items():
            for row in locks:
                if _number(row) == key.number and row[3] == b"1":
                    owner = self._owner(row[5])
                    if row[4] == b"t":
                        view.holders.append(_holder(pid, owner, key, locks))
                    else:
                        view.waiters.append((owner, float(row[7] or 0)))
        return view

    def _owner(self, application_name: Cell) -> str:
        name = (application_name or b"").decode("utf-8", "replace")
        return name.removeprefix(self._labelled)

    async def last_token(self, until: float) -> int:
        """Read the sequence."""
        if not self.sequence:
            return 0
        return int((await self._run(sql.last_token(self.sequence), (), until))[0][0] or 0)

    async def end_holder(self, key: LockKey, session: int, until: float) -> bool:
        """Terminate the session. Its role must be this one, or this role a member of `pg_signal_backend`."""
        table = await self._run(sql.END_HOLDER, (b"%d" % key.number, b"%d" % session), until)
        if table and self.sequence:
            await self._run(sql.next_token(self.sequence), (), until)
        return bool(table)

    async def _run(self, statement: PgStatement, params: Params, until: float) -> Table:
        try:
            return await self.link.execute(statement, params, until)
        except PgServerError as error:
            raise self.explain(error) from error

    def explain(self, error: PgServerError) -> StoreError:
        """Return what an error reply means to users."""
        if error.state == MAY_NOT:
            return StoreError(f"{self._deployment.title()} refuses: {error}; have the role given that right")
        return to_store_error(self._deployment.title(), error)

    def silent(self, error: BaseException) -> OutcomeUnknown:
        """Return the error for a session that does not answer in time."""
        return OutcomeUnknown(f"{self._deployment.title()} did not answer ({error}): check the server and the network")


def _number(row: Sequence[Cell]) -> int:
    """Return the bigint of a lock, which has a sign."""
    number = (int(row[1] or 0) << 32) | int(row[2] or 0)
    return number - 2**64 if number >= 2**63 else number


def _holder(pid: int, owner: str, key: LockKey, rows: Sequence[Sequence[Cell]]) -> SessionHolder:
    held = [row for row in rows if row[4] == b"t"]
    token = max((-_number(row) for row in held if row[3] == b"1" and _number(row) < 0), default=0)
    marks = [int(row[2] or 0) for row in held if row[3] == b"2" and int(row[1] or 0) == key.mark]
    ttl = max(marks, default=0)
    left = max(0.0, ttl / 1000 - float(held[0][6] or 0))
    return SessionHolder(pid, owner, token, ttl * 1000, left, same_name=bool(marks))
