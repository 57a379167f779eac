"""One session of PostgreSQL that holds an advisory lock, or none."""

from collections.abc import Generator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Protocol, TypeVar

from tenure.contracts.deadlines import MICROS
from tenure.errors import StoreError
from tenure.stores.postgresql import advisory_sql as sql
from tenure.stores.postgresql.connection import PgConnection, PgStatement, Table
from tenure.stores.postgresql.errors import PgBroken, PgServerError
from tenure.stores.postgresql.link import PgLink
from tenure.stores.sql.sessions import LockKey, LockTerms, SessionEndedError
from tenure.transport.polling import READABLE

T = TypeVar("T")


class PgLockContext(Protocol):
    """What a session uses of its client."""

    link: PgLink
    try_lock: PgStatement
    sequence: str
    """The sequence of the tokens; empty if there is none."""

    def now(self) -> float:
        """Return local time."""
        ...

    def label(self, owner: str) -> str:
        """Return the application name of a session of an owner."""
        ...

    def explain(self, error: PgServerError) -> StoreError:
        """Return what an error reply means to users."""
        ...

    def silent(self, error: BaseException) -> StoreError:
        """Return the error for a session that does not answer in time."""
        ...

    def pooler_seen(self) -> StoreError:
        """Return the error for a connection that turned out to lead to another session than before."""
        ...


class PgLockSession:
    """A session on a connection of its own."""

    def __init__(self, context: PgLockContext, connection: PgConnection) -> None:
        """Use a connection that was taken out of the pool."""
        self.connection = connection
        self._context = context
        self._key = b""
        self._mark: tuple[bytes, bytes] = (b"", b"")
        """The mark, and the ttl that it says."""
        self._ends_at = 0.0
        """The local instant at which the server ends the session at the latest if it sends nothing."""
        self._renewal: Generator[int, None, Table] | None = None
        """A renewal that has not been answered yet."""
        self._mask = READABLE
        self._timeout = 0.0

    # -- the lock ------------------------------------------------------------------------------------------

    async def lock(self, key: LockKey, terms: LockTerms, until: float) -> int:
        """Take a lock if it is free; else wait for it in the database."""
        context, connection = self._context, self.connection
        if (label := context.label(terms.owner)) != connection.label:
            await self._run(connection.execute(sql.LABEL, (label.encode(),)), until)
            connection.label = label
        ttl = _milliseconds(terms.ttl)
        timeout = b"%d" % ttl
        params = (b"%d" % key.number, b"%d" % key.mark, timeout, timeout, b"%d" % terms.proposal)
        ((token, pid, *_),) = await self._run(connection.execute(context.try_lock, params), until)
        if terms.wait > 0 and token == b"0":
            script = sql.wait_for_lock(key, ttl, terms, context.sequence)
            ((token, pid),) = await self._run(connection.run_script(script), until)
        if int(pid or 0) != connection.backend_pid:
            raise context.pooler_seen()
        self._key, self._mark = params[0], (params[1], params[2])
        self._ends_at = context.now() + ttl / 1000
        return max(0, int(token or 0))

    async def unlock(self, until: float) -> bool:
        """Free the lock, after the reply to a renewal that is still due."""
        if self._renewal is not None:
            await self._finish(until)
        if self.connection.is_stale():
            raise SessionEndedError("the server closed its connection")
        return (await self._run(self.connection.execute(sql.UNLOCK, (self._key,)), until))[0][0] == b"t"

    # -- renewal -------------------------------------------------------------------------------------------

    def begin_to_prolong(self, ttl: int) -> SessionEndedError | None:
        """Send a renewal, or nothing while the reply to an earlier one is due. Return why the session has ended."""
        if self._renewal is not None:
            return None
        left = self._ends_at - self._context.now()
        timeout = max(_milliseconds(ttl), _milliseconds(round(left * MICROS)))
        mark, said = self._mark
        new = b"%d" % timeout
        self._renewal = self.connection.execute_once(sql.PROLONG, (self._key, new, mark, said, new))
        self._mark = mark, new
        self._timeout = timeout / 1000
        try:
            self._mask = next(self._renewal)
        except PgBroken as error:
            return SessionEndedError(str(error))
        return None

    async def end_prolonging(self, until: float) -> bool | SessionEndedError | None:
        """Wait for the reply to the renewal; return whether the lock is held, None if there is no reply in time."""
        try:
            ((_, pid, held, _),) = await self._finish(until)
        except SessionEndedError as error:
            return error
        except StoreError:
            return None
        return int(pid or 0) == self.connection.backend_pid and held == b"t"

    async def _finish(self, until: float) -> Table:
        """Wait for the reply that is due. It stays due if it does not come in time."""
        work = self._renewal
        if work is None or getgeneratorstate(work) == GEN_CLOSED:
            raise SessionEndedError("the renewal failed, or was interrupted")
        try:
            table = await self._context.link.resume(self.connection, work, self._mask, until)
        except TimeoutError as error:
            raise self._context.silent(error) from error
        except (PgServerError, PgBroken) as error:
            self._renewal = None
            raise self._meaning(error) from error
        self._renewal = None
        self._ends_at = self._context.now() + self._timeout
        return table

    # -- statements ----------------------------------------------------------------------------------------

    async def _run(self, work: Generator[int, None, T], until: float) -> T:
        """Run a statement to its end. After an error, the caller closes the session."""
        try:
            return await self._context.link.run(self.connection, work, until)
        except (PgServerError, PgBroken) as error:
            raise self._meaning(error) from error

    def _meaning(self, error: PgServerError | PgBroken) -> Exception:
        if isinstance(error, PgServerError):
            return SessionEndedError(str(error)) if error.fatal else self._context.explain(error)
        if error.args == ("timed out",):
            return self._context.silent(error)
        return SessionEndedError(str(error), during=True)

    def has_ended(self) -> bool:
        """Look at the socket, unless a reply is due, which a renewal looks for."""
        return self._renewal is None and self.connection.is_stale()


def _milliseconds(micros: int) -> int:
    """Return a ttl for the server: rounded up, for the lease may end there later, and never earlier."""
    return min(sql.LONGEST_TTL, max(1, -(-micros // 1000)))
