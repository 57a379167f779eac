"""One session of MySQL that holds a named lock, or none."""

from collections.abc import Sequence
from typing import Protocol

from tenure.contracts.deadlines import MICROS
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.mysql import get_lock_sql as sql
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import SESSION_ENDED, MySqlBroken, MySqlResult, MySqlServerError, unanswered
from tenure.stores.sql.sessions import LockKey, LockTerms, SessionEndedError


class MySqlLockContext(Protocol):
    """What a session uses of its client."""

    def now(self) -> float:
        """Return local time."""
        ...

    def lock_name(self, key: LockKey) -> str:
        """Return the name of a lock at the server."""
        ...

    def explain(self, error: MySqlServerError) -> StoreError:
        """Return what an error reply means to users."""
        ...

    def proxy_seen(self) -> StoreError:
        """Return the error for a connection that leads to another session than before."""
        ...


class MySqlLockSession:
    """A session on a connection of its own."""

    def __init__(self, context: MySqlLockContext, connection: MySqlConnection) -> None:
        """Use a connection that was taken out of the pool."""
        self.connection = connection
        self._context = context
        self._name = ""
        self._timeout = 0
        """After how many silent seconds the server ends the session; 0: not soon."""
        self._ends_at = 0.0
        """The local instant at which the server ends the session at the latest if it sends nothing."""
        self._renewing = False
        """Whether the reply to a renewal is due."""

    # -- the lock ------------------------------------------------------------------------------------------

    async def lock(self, key: LockKey, terms: LockTerms, until: float) -> int:
        """Take a lock if it is free, or wait for it in the database. The timeout is set before: no lock is without."""
        name, timeout = self._context.lock_name(key), _whole_seconds(terms.ttl)
        lock = sql.lock(name, terms.wait, self.connection.session)
        ((granted,),) = (await self._run((sql.set_timeout(timeout), lock), until))[-1].rows
        if granted == sql.OTHER_SESSION:
            raise self._context.proxy_seen()
        if granted is None:
            raise StoreUnavailable(f"the request for {key.name!r} was ended by the server, or by KILL QUERY: try again")
        if not granted:
            await self._run((sql.FORGET_TIMEOUT,), until)
            return 0
        self._name, self._timeout = name, timeout
        self._ends_at = self._context.now() + timeout
        return terms.proposal

    async def unlock(self, until: float) -> bool:
        """Free the lock, after the reply to a renewal that is still due."""
        if self._renewing:
            await self._finish(until)
        if self.connection.is_stale():
            raise SessionEndedError("the server closed its connection")
        return bool((await self._run(sql.unlock(self._name), until))[0].rows[0][0] == 1)

    # -- renewal -------------------------------------------------------------------------------------------

    def begin_to_prolong(self, ttl: int) -> SessionEndedError | None:
        """Send a renewal, or nothing while the reply to an earlier one is due. Return why the session has ended."""
        if self._renewing:
            return None
        left = self._ends_at - self._context.now()
        timeout = max(_whole_seconds(ttl), _whole_seconds(round(left * MICROS)))
        change = () if timeout == self._timeout else (sql.set_timeout(timeout),)
        statements = (*change, sql.holder(self._name))
        self._renewing = True
        try:
            self.connection.send(statements)
        except MySqlBroken as error:
            self._renewing = False
            return SessionEndedError(str(error))
        except BaseException:
            self.connection.close()  # nobody knows whether a reply is due
            raise
        self._timeout = timeout
        return None

    async def end_prolonging(self, until: float) -> bool | SessionEndedError | None:
        """Wait for the reply to the renewal; return whether the lock is held, None if there is no reply in time."""
        try:
            ((holder, session),) = (await self._finish(until))[-1].rows
        except SessionEndedError as error:
            return error
        except StoreError:
            return None
        return bool(holder == session == self.connection.session)

    async def _finish(self, until: float) -> Sequence[MySqlResult]:
        """Wait for the reply that is due. It stays due if it does not come in time."""
        if not self._renewing:
            raise SessionEndedError("the renewal failed")
        try:
            results = await self.connection.receive(until)
        except TimeoutError as error:
            raise unanswered(self.connection.place, error) from error
        except (MySqlServerError, MySqlBroken) as error:
            self._renewing = False
            raise self._meaning(error) from error
        self._renewing = False
        self._ends_at = self._context.now() + self._timeout
        return results

    # -- statements ----------------------------------------------------------------------------------------

    async def _run(self, statements: Sequence[str], until: float) -> list[MySqlResult]:
        """Run statements to their end. After an error, the caller closes the session."""
        try:
            return await self.connection.run(statements, until)
        except (MySqlServerError, MySqlBroken) as error:
            raise self._meaning(error) from error

    def _meaning(self, error: MySqlServerError | MySqlBroken) -> Exception:
        if isinstance(error, MySqlServerError):
            return SessionEndedError(str(error)) if error.code in SESSION_ENDED else self._context.explain(error)
        if error.args == ("timed out",):
            return unanswered(self.connection.place, error)
        return SessionEndedError(str(error), during=True)

    def has_ended(self) -> bool:
        """Look at the socket, unless a reply is due, which a renewal looks for."""
        return not self._renewing and self.connection.is_stale()


def _whole_seconds(micros: int) -> int:
    """Return a ttl for the server: rounded up, for the lease may end there later, and never earlier."""
    return min(sql.LONGEST_TIMEOUT, max(1, -(-micros // MICROS)))
