"""Session locks in PostgreSQL: advisory locks, which need no table.

The server ends a session that has been idle for the ttl (`idle_session_timeout`), so a holder that stands still or is
cut off loses its lock.
"""

from collections.abc import Generator, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from typing import TypeVar

from tenure.contracts.deadlines import MICROS
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.stores.postgresql import advisory_sql as sql
from tenure.stores.postgresql.connection import Cell, Params, PgConnection, PgStatement, Table
from tenure.stores.postgresql.errors import PgServerError
from tenure.stores.postgresql.link import MakePgLink, PgLink
from tenure.stores.postgresql.options import PgDeployment
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
from tenure.transport.polling import READABLE

T = TypeVar("T")

OLDEST = 140_000
"""The oldest server that ends idle sessions."""


class PgAdvisoryLocks(SessionLocks[PgDeployment, PgLink]):
    """One client's access to the advisory locks of a database."""

    longest_ttl = sql.LONGEST_TTL * 1000
    waits = True
    no_right, advice = "42501", "have the role given that right"
    pooled = (
        "a connection pooler is between this client and PostgreSQL, and advisory locks belong to the sessions that it "
        "shares. Give Tenure the server's own address, or use the store with a table (without ?mode=advisory), which "
        "works through poolers"
    )

    def __init__(self, runtime: Runtime, deployment: PgDeployment, make_link: MakePgLink) -> None:
        super().__init__(runtime, deployment, make_link)
        self.sequence = deployment.sequence
        """The sequence of the tokens; empty if there is none."""
        self.try_lock = sql.try_lock("")
        self._labelled = f"{deployment.login.get('application_name', 'tenure')}: "

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

    async def take(self, until: float) -> "PgLockSession":
        """Return a session that holds no lock. Raises StoreError if a pooler is seen."""
        connection = await self.link.take(until)
        if connection.pooled:
            self.link.discard(connection)
            raise self.pooler_seen()
        return PgLockSession(self, connection)

    def label(self, owner: str) -> str:
        """Return the application name of a session of an owner: ASCII of at most 63 bytes."""
        return (self._labelled + owner).encode("ascii", "backslashreplace")[:63].decode()

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


class PgLockSession(LockSession[PgConnection, Table]):
    """A session on a connection of its own."""

    _locks: PgAdvisoryLocks

    def __init__(self, locks: PgAdvisoryLocks, connection: PgConnection) -> None:
        """Use a connection that was taken out of the pool."""
        super().__init__(locks, connection)
        self._key = b""
        self._mark: tuple[bytes, bytes] = (b"", b"")
        """The mark, and the ttl that it says."""
        self._mask = READABLE

    async def lock(self, key: LockKey, terms: LockTerms, until: float) -> int:
        """Take a lock if it is free; else wait for it in the database."""
        locks, connection = self._locks, self.connection
        if (label := locks.label(terms.owner)) != connection.label:
            await self._run(connection.execute(sql.LABEL, (label.encode(),)), until)
            connection.label = label
        ttl = _milliseconds(terms.ttl)
        timeout = b"%d" % ttl
        params = (b"%d" % key.number, b"%d" % key.mark, timeout, timeout, b"%d" % terms.proposal)
        ((token, pid, *_),) = await self._run(connection.execute(locks.try_lock, params), until)
        if terms.wait > 0 and token == b"0":
            script = sql.wait_for_lock(key, ttl, terms, locks.sequence)
            ((token, pid),) = await self._run(connection.run_script(script), until)
        if int(pid or 0) != connection.backend_pid:
            raise locks.pooler_seen()
        self._key, self._mark = params[0], (params[1], params[2])
        self._ends_at = locks.now() + ttl / 1000
        return max(0, int(token or 0))

    async def _unlock(self, until: float) -> bool:
        return (await self._run(self.connection.execute(sql.UNLOCK, (self._key,)), until))[0][0] == b"t"

    def begin_to_prolong(self, ttl: int) -> SessionEndedError | None:
        """Send a renewal, or nothing while the reply to an earlier one is due. Return why the session has ended."""
        if self._renewal is not None:
            return None
        left = self._ends_at - self._locks.now()
        timeout = max(_milliseconds(ttl), _milliseconds(round(left * MICROS)))
        mark, said = self._mark
        new = b"%d" % timeout
        self._renewal = self.connection.execute_once(sql.PROLONG, (self._key, new, mark, said, new))
        self._mark = mark, new
        self._timeout = timeout / 1000
        try:
            self._mask = next(self._renewal)
        except SqlBroken as error:
            return SessionEndedError(str(error))
        return None

    async def _receive(self, until: float) -> Table:
        work: Generator[int, None, Table] | None = self._renewal
        if work is None or getgeneratorstate(work) == GEN_CLOSED:
            raise SessionEndedError("the renewal failed, or was interrupted")
        return await self._locks.link.resume(self.connection, work, self._mask, until)

    def _proves(self, reply: Table) -> bool:
        ((_, pid, held, _),) = reply
        return int(pid or 0) == self.connection.backend_pid and held == b"t"

    def _is_over(self, error: SqlServerError) -> bool:
        return isinstance(error, PgServerError) and error.fatal

    async def _run(self, work: Generator[int, None, T], until: float) -> T:
        """Run a statement to its end. After an error, the caller closes the session."""
        try:
            return await self._locks.link.run(self.connection, work, until)
        except (SqlServerError, SqlBroken) as error:
            raise self._meaning(error) from error


def _milliseconds(micros: int) -> int:
    """Return a ttl for the server: rounded up, for the lease may end there later, and never earlier."""
    return min(sql.LONGEST_TTL, max(1, -(-micros // 1000)))


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
