"""The link to the servers of one database: a few connections that carry the statements of one client.

It is written once for both forms of the API. What they do differently is in the links of each database.
"""

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from tenure.contracts.findings import Facts
from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable, UsageError
from tenure.stores.sql.deployment import SqlDeployment
from tenure.stores.sql.errors import SqlBroken, SqlServerError
from tenure.transport.caller_queue import CallerQueue
from tenure.transport.errors import too_late
from tenure.transport.pool import BoundedPool, PooledConnection, Room


class LinkedConnection(PooledConnection, Protocol):
    """A connection to a server."""

    place: str
    """The server, for messages."""


C = TypeVar("C", bound=LinkedConnection)
D = TypeVar("D", bound=SqlDeployment)
F = TypeVar("F", bound=Facts)


class SqlLink(ABC, Generic[C, D, F]):
    """The connections of one client. Every operation ends by `until`, a local instant.

    An operation raises SqlServerError if the server replied with an error, OutcomeUnknown if it did not reply, and
    another StoreError if it was not reached.
    """

    def __init__(self, runtime: Runtime, deployment: D) -> None:
        self.takes_standbys = False
        """Whether to connect to a server that cannot be written, to look at it."""
        self.facts: F | None = None
        """What the last server to be connected showed of itself."""
        self._runtime = runtime
        self._deployment = deployment
        self._closed = False
        self._start_anew()

    @abstractmethod
    async def _open(self, host: str, port: int, until: float) -> C:
        """Return a new connection to a host, or one that the user's code makes if the host is empty."""

    @abstractmethod
    async def _greet(self, connection: C, until: float) -> None:
        """Set the session, and learn what the server is. Raises SqlServerError if it can't be written."""

    @abstractmethod
    def _explain(self, error: Exception, where: str) -> StoreError | None:
        """Return what it means that no connection was made; None if the error is no one's but ours."""

    @abstractmethod
    def begin_facts(self, where: str) -> F:
        """Return the facts of a server of which nothing is known yet."""

    @abstractmethod
    def to_store_error(self, place: str, error: SqlServerError) -> StoreError:
        """Return what an error reply of the server at `place` means to users."""

    def title(self) -> str:
        """Return the database without secrets, for messages."""
        return self._deployment.title()

    def meaning(self, place: str, error: SqlServerError | SqlBroken) -> StoreError:
        """Return what it means to users that a statement, which was sent to the server at `place`, failed."""
        if isinstance(error, SqlServerError):
            return self.to_store_error(place, error)
        return OutcomeUnknown(
            f"the {self._deployment.kind} server at {place} did not answer ({error}); the statement may have been "
            "carried out. Check the server and the network"
        )

    # -- connections ---------------------------------------------------------------------------------------

    async def take(self, until: float) -> C:
        """Return a connection on which no reply is due: an idle one, a new one, or the next that is put back."""
        self._check_open()
        found: C | Room | None = await self._callers.first_result(self._pool.find, until)
        if found is None:
            self._check_open()
            raise too_late(
                self._deployment.title(),
                "raise `timeout` or `operation_timeout`, or allow more connections with ?connections= in the URL",
            )
        return await self._connect(found, until) if isinstance(found, Room) else found

    def put_back(self, connection: C) -> None:
        """Let others use a connection on which no reply is due."""
        self._pool.put_back(connection)
        self._callers.wake()

    def lose(self, connection: C) -> None:
        """Close a connection that is dead, and those that are likely so too."""
        self._pool.lose(connection)
        self._callers.wake()

    def discard(self, connection: C) -> None:
        """Close a connection that was taken. Idempotent."""
        self._pool.discard(connection)
        self._callers.wake()

    async def _connect(self, room: Room, until: float) -> C:
        try:
            connection = await self.dial(until)
        except BaseException:
            self._pool.give_up(room)
            self._callers.wake()
            raise
        self._pool.fill(room, connection, self._runtime.now())
        return connection

    async def dial(self, until: float) -> C:
        """Return a new connection to the first host that serves. Raises StoreError."""
        self._check_open()
        if not self._deployment.is_current():
            raise StoreError(
                f"{self._deployment.title()}: a listener for `do_connect` was added to the engine after the client was "
                "made of it, so the client does not know where the engine connects now; make the client after that"
            )
        if self._deployment.connect is not None:
            return await self._dial_one("", 0, until)
        hosts = self._deployment.hosts
        failed: StoreError | None = None
        for number, (host, port) in enumerate(hosts):
            now = self._runtime.now()
            if now >= until and failed is not None:
                break
            try:
                return await self._dial_one(host, port, now + (until - now) / (len(hosts) - number))
            except StoreError as error:
                failed = error
        raise failed or StoreUnavailable(f"{self._deployment.title()} has no host")

    async def _dial_one(self, host: str, port: int, until: float) -> C:
        where = self._deployment.place(host, port) if host else self._deployment.title()
        connection: C | None = None
        try:
            connection = await self._open(host, port, until)
            connection.place = where
            await self._greet(connection, until)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, Exception) or isinstance(error, (StoreError, UsageError)):
                raise
            if (meant := self._explain(error, where)) is None:
                raise
            raise meant from error
        return connection

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
        self._pool: BoundedPool[C] = BoundedPool(self._deployment.connections, self._runtime.mutex())
        self._callers = CallerQueue(self._runtime)
