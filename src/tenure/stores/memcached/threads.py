"""The link to memcached for threads: a pool of connections for each server.

Every `async def` here blocks in place, in the thread that calls it.
"""

from collections.abc import Callable
from typing import NoReturn

from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.memcached import errors
from tenure.stores.memcached.errors import BROKEN, MemcachedUnsent
from tenure.stores.memcached.link import MemcachedAddress, MemcachedAnswer, MemcachedRequest, MemcachedServer
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.protocol import MetaReply
from tenure.stores.memcached.sockets import MemcachedConnection, connect
from tenure.transport.pool import ConnectionPool


class MemcachedThreadLink:
    """The link to the servers, for the threads of one client."""

    def __init__(self, runtime: ThreadsRuntime, deployment: MemcachedDeployment) -> None:
        """Prepare; nothing is connected yet."""
        self._now = runtime.now
        self._connect_timeout = deployment.connect_timeout
        self._pools: dict[MemcachedAddress, ConnectionPool[MemcachedConnection]] = {}
        self._closed = False

    async def exchange(
        self, address: MemcachedAddress, request: MemcachedRequest, until: float, process: str = ""
    ) -> MemcachedAnswer | None:
        """Send a request on an open connection or on a new one; return its replies, or None for another process."""
        pool, connection = self._pool(address), self._take(address, until)
        if process and connection.server.process != process:
            pool.put_back(connection)
            return None
        try:
            replies = connection.exchange(request, until - self._now())
        except MemcachedUnsent:
            pool.discard(connection)
            pool.drop_idle()
            return self._exchange_anew(address, request, until, process)
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(pool, connection, address, error)
        self._put_back(pool, connection)
        return MemcachedAnswer(replies, connection.server)

    async def command(self, address: MemcachedAddress, packed: bytes, until: float, process: str) -> MetaReply | None:
        """Send one command. Every acquisition and release does this, so it does not go through `exchange`."""
        now = self._now()
        if now >= until:
            raise errors.too_late(address)
        pool = self._pools.get(address) or self._pool(address)
        connection = pool.take(now) or self._connect(address, until)
        if connection.server.process != process:
            pool.put_back(connection)
            return None
        try:
            reply = connection.command(packed, until - now)
        except MemcachedUnsent:
            pool.discard(connection)
            pool.drop_idle()
            answer = self._exchange_anew(address, MemcachedRequest(packed), until, process)
            return None if answer is None else answer.replies[0]
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(pool, connection, address, error)
        if connection.goes_on and not self._closed:
            pool.put_back(connection)
        else:
            pool.discard(connection)
        return reply

    async def server(self, address: MemcachedAddress, until: float) -> MemcachedServer:
        """Return what a server says of itself, from an open connection or a new one."""
        connection = self._take(address, until)
        self._pool(address).put_back(connection)
        return connection.server

    async def close(self) -> None:
        """Close the idle connections. Requests under way go on to their end."""
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of all sockets."""
        self._closed = True
        for pool in self._pools.values():
            pool.abandon()

    def _exchange_anew(
        self, address: MemcachedAddress, request: MemcachedRequest, until: float, process: str
    ) -> MemcachedAnswer | None:
        """Send a request on a new connection."""
        pool, connection = self._pool(address), self._connect(address, until)
        if process and connection.server.process != process:
            pool.put_back(connection)
            return None
        try:
            replies = connection.exchange(request, until - self._now())
        except MemcachedUnsent as error:
            pool.discard(connection)
            raise errors.cannot_connect(address, error.__cause__ or error) from error
        except BaseException as error:  # noqa: BLE001 - it is raised again
            self._fail(pool, connection, address, error)
        self._put_back(pool, connection)
        return MemcachedAnswer(replies, connection.server)

    def _put_back(self, pool: ConnectionPool[MemcachedConnection], connection: MemcachedConnection) -> None:
        """Put a connection back, if it can carry another request."""
        if connection.goes_on and not self._closed:
            pool.put_back(connection)
        else:
            pool.discard(connection)

    def _fail(
        self,
        pool: ConnectionPool[MemcachedConnection],
        connection: MemcachedConnection,
        address: MemcachedAddress,
        error: BaseException,
    ) -> NoReturn:
        """Close a connection on which something went wrong, and raise what the caller has to know."""
        if not isinstance(error, BROKEN):
            pool.discard(connection)
            raise error
        pool.lose(connection)
        raise errors.unanswered(address, error) from error

    def _take(self, address: MemcachedAddress, until: float) -> MemcachedConnection:
        now = self._now()
        if now >= until:
            raise errors.too_late(address)
        return self._pool(address).take(now) or self._connect(address, until)

    def _left(self, until: float) -> Callable[[], float]:
        return lambda: until - self._now()

    def _pool(self, address: MemcachedAddress) -> ConnectionPool[MemcachedConnection]:
        """Return the connections to a server."""
        return self._pools.get(address) or self._pools.setdefault(address, ConnectionPool())

    def _connect(self, address: MemcachedAddress, until: float) -> MemcachedConnection:
        if self._closed:
            raise errors.closed()
        until = min(until, self._now() + self._connect_timeout)
        connection = connect(address, self._left(until))
        self._pool(address).add(connection, self._now())
        return connection
