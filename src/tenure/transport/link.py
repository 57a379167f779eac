"""The link of one client to its servers, written once for both forms of the API: connections, and requests on them.

What is said on a connection is a `Conversation`, which knows of no socket. What carries its bytes is a `Line`: in
`blocking.py` for threads, in `aio.py` for asyncio. The rules of this file hold for both:

* A request is sent again in one case only: on another connection, if no part of it was sent.
* A connection on which a reply is due carries no further request, unless the line puts it behind the others, or no
  caller waits for that reply (`send_owed`). So a late reply answers no later request.
* A connection on which anything went wrong is closed, and the idle ones that were used before it go with it.
"""

import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError
from tenure.transport.errors import BROKEN, OtherProcess, ServerErrors, Unsent
from tenure.transport.pool import ConnectionPool, PooledConnection, Room, SharedPool

Q = TypeVar("Q")
R = TypeVar("R")
Q_contra = TypeVar("Q_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

MOST_OWED = 16
"""How many replies a connection owes at most. The next caller waits behind them, and none may fill a buffer unread."""


class ServerAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Conversation(Protocol[Q_contra, R_co]):
    """What is said on one connection: which bytes to send, and what the received bytes mean."""

    peer: str
    """Identifies the server process, if the server tells it."""

    @property
    def owed(self) -> deque[Callable[[Any], None]]:
        """What gets the first replies that are due, for which no caller waits: in their order; None if one never comes.

        `reply` hands them over. The line adds to it what was sent.
        """
        ...

    def pack(self, request: Q_contra, /) -> bytes:
        """Return the bytes of a request, whose reply is due from now on."""
        ...

    def feed(self, data: bytes, /) -> None:
        """Take received bytes; none, if the server closed the connection. Raises BROKEN."""

    def reply(self) -> R_co | None:
        """Return the next reply that is due to a caller, once it is complete. Raises BROKEN."""
        ...

    def goes_on(self) -> bool:
        """Tell whether no reply is due to a caller, and the connection can carry another request."""
        ...


class Listening(Protocol):
    """A line that receives whatever comes, for callbacks. Nothing here waits."""

    def say(self, data: bytes) -> None:
        """Send bytes."""

    def close(self) -> None:
        """End it, without a callback."""

    def lose(self) -> None:
        """End it, as if the server had closed the connection."""


class Line(PooledConnection, Protocol[Q_contra, R_co]):
    """A connection, and the conversation on it."""

    @property
    def conversation(self) -> Conversation[Q_contra, R_co]:
        """What is said on it."""
        ...

    async def exchange(self, request: Q_contra, until: float) -> R_co:
        """Send a request, and return its reply. Raises Unsent if nothing was sent, else BROKEN."""
        ...

    def send_owed(self, request: Q_contra, told: Callable[[Any], None], until: float) -> None:
        """Send a request, and have `told` get its reply before another request gets its own; None if it never comes.

        Raises Unsent if nothing was sent, else BROKEN; then `told` is not called. Not for a line that is shared.
        """
        ...

    def collect(self) -> None:
        """Take the replies that are owed and have come. Raises BROKEN."""

    def listen(self, head: bytes, hear: Callable[[R_co], None], on_end: Callable[[], None], until: float) -> Listening:
        """Send bytes, and hand each reply that comes to `hear` from now on. Raises Unsent or BROKEN.

        `on_end` is called once if the line ends otherwise than by `close`. Both are called where the runtime runs its
        code, and never block.
        """
        ...

    def goes_on(self) -> bool:
        """Tell whether the connection can carry another request now."""
        ...


class Pump(Protocol):
    """Makes the lines of one form of the API."""

    def pool(self) -> ConnectionPool[Any]:
        """Return a pool for the lines to one server."""
        ...

    async def connect(
        self, address: ServerAddress, tls: ssl.SSLContext | None, conversation: Conversation[Q, R], until: float
    ) -> Line[Q, R]:
        """Return a connected line. Raises OSError."""
        ...

    async def close(self, lines: Sequence[Any]) -> None:
        """Close the lines in use, in the form in which their callers do not."""


class ServerLink(ABC, Generic[Q, R]):
    """The link of one client to all its servers. Every operation ends by `until`, a local instant.

    It raises StoreUnavailable if the server was not reached, OutcomeUnknown if the server may have carried the request
    out, and another StoreError if a repetition will not help.
    """

    def __init__(
        self,
        runtime: Runtime,
        pump: Pump,
        errors: ServerErrors,
        connect_timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._now = runtime.now
        self._pump = pump
        self._errors = errors
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._pools: dict[ServerAddress, ConnectionPool[Line[Q, R]]] = {}
        self._unshared: ConnectionPool[Line[Q, R]] = ConnectionPool()
        """Closed from the beginning, so it closes each line after its request."""
        self._unshared.close()
        self._lines: WeakSet[Line[Q, R]] = WeakSet()
        """All lines, those in use too: a forked child has copies of them."""
        self._mutex = runtime.mutex()
        """Held where a set of lines changes or is copied, because several threads do."""
        self._closed = False

    @abstractmethod
    def _conversation(self, address: ServerAddress) -> Conversation[Q, R]:
        """Begin a conversation with a server."""

    async def _greet(self, address: ServerAddress, line: Line[Q, R], until: float) -> None:
        """Begin a new line. Raises StoreError if the server is not what it should be."""

    def _cannot_connect(self, address: ServerAddress, error: BaseException) -> StoreError:
        return self._errors.cannot_reach(address, error)

    def _unanswered(self, address: ServerAddress, line: Line[Q, R], error: BaseException) -> OutcomeUnknown:  # noqa: ARG002
        return self._errors.unanswered(address, error)

    async def exchange(
        self, address: ServerAddress, request: Q, until: float, peer: str = "", *, alone: bool = False
    ) -> R:
        """Send a request to a server, and return its reply.

        `alone` tells that no other request should wait behind it for its reply. Raises OtherProcess if the server is
        not the process `peer`.
        """
        if (now := self._now()) >= until:
            raise self._errors.too_late(address)
        pool = self._pools.get(address) or self._pool(address)
        if alone and isinstance(pool, SharedPool):
            pool = self._unshared
        line, new = pool.take(now), False
        while True:
            if line is None:
                line, new = await self._new(pool, address, until), True
            if peer and line.conversation.peer != peer:
                self._put_back(pool, line)
                raise OtherProcess
            try:
                reply = await line.exchange(request, until)
            except BROKEN as error:
                self._fail(pool, address, line, error, new=new)
                line = None
            except BaseException:
                self._put_back(pool, line)
                raise
            else:
                self._put_back(pool, line)
                return reply

    def send_owed(self, address: ServerAddress, request: Q, until: float, told: Callable[[R | None], None]) -> bool:
        """Send a request on an idle connection, and have `told` get its reply later; False if none can send it now.

        `told` gets None if the reply never comes. Another request of this client may overtake this one, on another
        connection. Raises OutcomeUnknown.
        """
        pool, now = self._pool(address), self._now()
        line = pool.take(now) if now < until else None
        if line is None:
            return False
        sent = len(line.conversation.owed) < MOST_OWED
        try:
            if sent:
                line.send_owed(request, told, until)
        except Unsent:
            pool.lose(line)
            return False
        except BROKEN as error:
            pool.lose(line)
            raise self._unanswered(address, line, error) from error
        except BaseException:
            pool.discard(line)
            raise
        self._put_back(pool, line)
        return sent

    def collect_owed(self) -> None:
        """Take the replies to what was sent that have come on idle connections."""
        for pool in list(self._pools.values()):
            for line in pool.take_owing(self._now(), lambda each: each.conversation.owed):
                try:
                    line.collect()
                except BROKEN:
                    pool.lose(line)
                except BaseException:
                    pool.discard(line)
                    raise
                else:
                    self._put_back(pool, line)

    def _fail(
        self, pool: ConnectionPool[Line[Q, R]], address: ServerAddress, line: Line[Q, R], error: Exception, *, new: bool
    ) -> None:
        """Raise what an error of a line means, unless a new line may carry the request."""
        if not line.goes_on():
            pool.lose(line)
        if not isinstance(error, Unsent):
            raise self._unanswered(address, line, error) from error
        if new:
            raise self._cannot_connect(address, error.__cause__ or error) from error

    async def conversation(self, address: ServerAddress, until: float) -> Conversation[Q, R]:
        """Return the conversation on a connection to a server, which is made if there is none."""
        if (now := self._now()) >= until:
            raise self._errors.too_late(address)
        pool = self._pool(address)
        line = pool.take(now) or await self._new(pool, address, until)
        self._put_back(pool, line)
        return line.conversation

    def _put_back(self, pool: ConnectionPool[Line[Q, R]], line: Line[Q, R]) -> None:
        if line.goes_on() and not self._closed:
            pool.put_back(line)
        else:
            pool.discard(line)

    def _pool(self, address: ServerAddress) -> ConnectionPool[Line[Q, R]]:
        return self._pools.get(address) or self._pools.setdefault(address, self._pump.pool())

    async def _new(self, pool: ConnectionPool[Line[Q, R]], address: ServerAddress, until: float) -> Line[Q, R]:
        """Return a new line to a server; of a shared one, that which one of those who need it makes."""
        if not isinstance(pool, SharedPool):
            line = await self._connect(address, until)
            pool.add(line, self._now())
            return line
        found: Line[Q, R] | Room | None = await pool.callers.first_result(pool.find, until)
        if found is None:
            raise self._errors.closed() if self._closed else self._cannot_connect(address, TimeoutError())
        if not isinstance(found, Room):
            return found
        try:
            line = await self._connect(address, until)
            pool.fill(found, line, self._now())
        finally:
            pool.give_up(found)
            pool.callers.wake()
        return line

    async def _connect(self, address: ServerAddress, until: float) -> Line[Q, R]:
        """Return a new line that is in no pool."""
        self._check_open()
        until = min(until, self._now() + self._connect_timeout)
        try:
            line = await self._pump.connect(address, self._tls, self._conversation(address), until)
        except OSError as error:
            raise self._cannot_connect(address, error) from error
        with self._mutex:
            self._lines.add(line)
        try:
            await self._greet(address, line, until)
            self._check_open()
        except BaseException:
            line.close()
            raise
        return line

    def _check_open(self) -> None:
        if self._closed:
            raise self._errors.closed()

    async def close(self) -> None:
        """Disconnect. Idempotent, also before it has connected.

        In threads, requests under way go on to their end; in asyncio, they end by OutcomeUnknown.
        """
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()
        with self._mutex:
            lines = list(self._lines)
        await self._pump.close(lines)

    def abandon(self) -> None:
        """In a forked child: close its copies of the sockets, without telling the servers."""
        self._closed = True
        for line in self._lines:
            line.abandon()
