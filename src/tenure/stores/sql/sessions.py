"""The contract of a database's session locks: locks that a database keeps for a session, without a table.

A session holds one lock at a time. Its lock ends with an unlock or with the session; and the server ends a session that
has sent nothing for a ttl. So a session lock is a lease: a statement renews it, and a holder that stands still or is
cut off loses it. Nothing else is kept of a lock, and nothing of it after its end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Generic, TypeVar, cast

from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities
from tenure.errors import StoreError
from tenure.stores.sql.deployment import SqlDeployment
from tenure.stores.sql.errors import SqlBroken, SqlServerError
from tenure.stores.sql.link import LinkedConnection, SqlLink

KEY_BITS = 63
MARK_BITS = 31


CAPABILITIES = Capabilities(
    min_ttl=0.05,
    queue=False,
    weights=False,
    runs_in_caller=False,
    span=1,
    shows_waiters=False,
    tokens=False,
    records=False,
    shows_renewals=False,
)
"""What session locks can do, if a database can no more than that."""


class SessionEndedError(Exception):
    """The session is over, and its lock with it. Users never see this error: their lease is lost."""

    def __init__(self, why: str, *, during: bool = False) -> None:
        """Say why, and whether the connection broke during the request: then it may have been carried out before."""
        super().__init__(why)
        self.during = during


@dataclass(slots=True, frozen=True)
class LockKey:
    """What stands for a name in a database that keeps no names: numbers made from a hash of it."""

    name: str
    number: int
    """The key of the lock, of 63 bits."""
    mark: int
    """Another hash, of 31 bits: it shows that two names have one key."""

    @classmethod
    def of(cls, name: str) -> "LockKey":
        """Make the key of a name: the first 63 bits of BLAKE2b, big-endian. The mark follows after the 64th bit."""
        digest = blake2b(name.encode(), digest_size=16, person=b"tenure").digest()
        number = int.from_bytes(digest[:8], "big") >> (64 - KEY_BITS)
        return cls(name, number, int.from_bytes(digest[8:12], "big") >> (32 - MARK_BITS))


@dataclass(slots=True)
class SessionHolder:
    """A session that holds the lock of a key, as the server shows it."""

    session: int
    """The number of the session at the server."""
    owner: str
    token: int = 0
    """The token of the lease; 0 if it is not known."""
    ttl: int = 0
    """The ttl of the lease, in microseconds; 0 if it is not known."""
    left: float = 0.0
    """In how many seconds the server ends the session if it sends nothing."""
    same_name: bool = True
    """Whether the session holds the lock for the name that was asked for. If not, two names have one key, or the lock
    is not one of Tenure's."""


@dataclass(slots=True)
class SessionView:
    """The sessions that hold the lock of a key, and those that wait for it."""

    holders: list[SessionHolder] = field(default_factory=list[SessionHolder])
    waiters: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    """The owner of each waiter, and for how many seconds it has waited."""


@dataclass(slots=True)
class LockTerms:
    """On which terms a lock is requested."""

    owner: str
    ttl: int
    """In microseconds."""
    proposal: int
    """The token, if no sequence gives one."""
    wait: float
    """For how many seconds to wait in the database."""


C = TypeVar("C", bound=LinkedConnection)
D = TypeVar("D", bound=SqlDeployment)
L = TypeVar("L", bound=SqlLink[Any, Any, Any])
R = TypeVar("R")


class LockSession(ABC, Generic[C, R]):
    """A session on a connection of its own, that holds one lock, or none. Used by one caller at a time.

    Its operations raise SessionEndedError if the session is over, and StoreError for everything else. `R` is what a
    renewal brings.
    """

    def __init__(self, locks: "AnyLocks", connection: C) -> None:
        """Use a connection that was taken out of the pool."""
        self.connection = connection
        self._locks: Any = locks
        self._ends_at = 0.0
        """The local instant at which the server ends the session at the latest if it sends nothing."""
        self._timeout = 0.0
        """After how many silent seconds the server ends the session."""
        self._renewal: Any = None
        """The renewal whose reply is due."""

    @abstractmethod
    async def lock(self, key: LockKey, terms: LockTerms, until: float) -> int:
        """Take a lock, or wait for it as the terms say; return its token, 0: it is taken.

        After any error the session must be closed: it may hold the lock.
        """

    async def unlock(self, until: float) -> bool:
        """Give the lock up, after the reply to a renewal that is still due; return whether the session held it.

        After any error the session must be closed.
        """
        if self._renewal is not None:
            await self._finish(until)
        if self.connection.is_stale():
            raise SessionEndedError("the server closed its connection")
        return await self._unlock(until)

    @abstractmethod
    def begin_to_prolong(self, ttl: int) -> SessionEndedError | None:
        """Send a renewal of the lock for so many microseconds, unless the reply to an earlier one is due.

        Never shortens. Return why the session has ended; None: `end_prolonging` has the reply.
        """

    async def end_prolonging(self, until: float) -> bool | SessionEndedError | None:
        """Wait for the reply to the renewal. Return whether the lock is held, or why the session has ended.

        None: the session did not answer in time, and may be asked again.
        """
        try:
            return self._proves(await self._finish(until))
        except SessionEndedError as error:
            return error
        except StoreError:
            return None

    def has_ended(self) -> bool:
        """Tell, without a request, whether the server has closed the connection.

        While a reply is due, a renewal looks for that.
        """
        return self._renewal is None and self.connection.is_stale()

    @abstractmethod
    async def _unlock(self, until: float) -> bool:
        """Give the lock up."""

    @abstractmethod
    async def _receive(self, until: float) -> R:
        """Wait for the reply that is due. Raises TimeoutError: then it stays due."""

    @abstractmethod
    def _proves(self, reply: R) -> bool:
        """Tell whether the reply to a renewal proves that this session holds the lock."""

    @abstractmethod
    def _is_over(self, error: SqlServerError) -> bool:
        """Tell whether the server has ended the session with an error reply."""

    async def _finish(self, until: float) -> R:
        """Wait for the reply that is due. It stays due if it does not come in time."""
        try:
            reply = await self._receive(until)
        except TimeoutError as error:
            raise self._locks.link.meaning(self.connection.place, SqlBroken("timed out")) from error
        except (SqlServerError, SqlBroken) as error:
            self._renewal = None
            raise self._meaning(error) from error
        self._renewal = None
        self._ends_at = self._locks.now() + self._timeout
        return reply

    def _meaning(self, error: SqlServerError | SqlBroken) -> Exception:
        locks: AnyLocks = self._locks
        if isinstance(error, SqlServerError):
            return SessionEndedError(str(error)) if self._is_over(error) else locks.explain(error)
        if error.args == ("timed out",):
            return cast("StoreError", locks.link.meaning(self.connection.place, error))
        return SessionEndedError(str(error), during=True)


AnySession = LockSession[Any, Any]


class SessionLocks(ABC, Generic[D, L]):
    """One client's access to the session locks of a database."""

    longest_ttl: ClassVar[int]
    """The longest ttl after which the server ends a silent session, in microseconds. Longer leases are cut to it."""
    waits: bool
    """Whether a session can wait in the database for a fraction of a second. If not, waiters poll. Known once a session
    was taken."""
    pooled: ClassVar[str]
    """What it means that a session is another one than its connection's, as a sentence."""
    no_right: ClassVar[str | int]
    advice: ClassVar[str]
    """The code of the reply to a role that lacks a right, and what to do then."""

    def __init__(self, runtime: Runtime, deployment: D, make_link: Callable[[Runtime, D], L]) -> None:
        self.most = deployment.connections
        """How many sessions there are at most."""
        self.now = runtime.now
        self.link = make_link(runtime, deployment)
        self._runtime = runtime
        self._deployment = deployment

    @abstractmethod
    async def open(self, until: float) -> bool:
        """Connect; return whether tokens come from a sequence. Raises StoreError if the server or a pooler is unfit."""

    @abstractmethod
    async def take(self, until: float) -> AnySession:
        """Return a session that holds no lock. Raises StoreUnavailable if none is free in time."""

    @abstractmethod
    async def look(self, key: LockKey, until: float) -> SessionView:
        """Return who holds a lock, and who waits for it."""

    @abstractmethod
    async def last_token(self, until: float) -> int:
        """Return the last token of the sequence; 0 without one."""

    @abstractmethod
    async def end_holder(self, key: LockKey, session: int, until: float) -> bool:
        """End another session if it holds the lock; return whether it did. Its token is not the last one any more."""

    def put_back(self, session: AnySession) -> None:
        """Let others use a session that holds no lock."""
        self.link.put_back(session.connection)

    def close_session(self, session: AnySession) -> None:
        """End a session, and with it its lock as soon as the server notices. Idempotent."""
        self.link.discard(session.connection)

    async def close(self) -> None:
        """Disconnect: all locks end."""
        await self.link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self.link.abandon()

    def explain(self, error: SqlServerError) -> StoreError:
        """Return what an error reply means to users."""
        if error.code == self.no_right:
            return StoreError(f"{self._deployment.title()} refuses: {error}; {self.advice}")
        return self.link.to_store_error(self._deployment.title(), error)

    def pooler_seen(self) -> StoreError:
        """Return the error for a connection that leads to another session than before."""
        return StoreError(f"{self._deployment.title()}: {self.pooled}")


AnyLocks = SessionLocks[Any, Any]
