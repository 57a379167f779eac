"""The link to memcached for threads: a pool of connections for each server.

Every `async def` here blocks in place, in the thread that calls it.
"""

from collections.abc import Callable

from holdfast.runtimes.threads import ThreadsRuntime
from holdfast.stores.memcached import errors
from holdfast.stores.memcached.errors import BROKEN, MemcachedUnsent
from holdfast.stores.memcached.link import MemcachedAddress, MemcachedAnswer, MemcachedRequest, MemcachedServer
from holdfast.stores.memcached.options import MemcachedDeployment
from holdfast.stores.memcached.sockets import MemcachedConnection, connect
from holdfast.transport.pool import ConnectionPool


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
        connection = self._take(address, until)
        if process and connection.server.process != process:
            self._pool(address).put_back(connection)
            return None
        try:
            return self._exchange(connection, address, request, until)
        except MemcachedUnsent:
            self._pool(address).drop_idle()
        connection = self._connect(address, until)
        if process and connection.server.process != process:
            self._pool(address).put_back(connection)
            return None
        try:
            return self._exchange(connection, address, request, until)
        except MemcachedUnsent as error:
            raise errors.cannot_connect(address, error.__cause__ or error) from error

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

    def _exchange(
        self, connection: MemcachedConnection, address: MemcachedAddress, request: MemcachedRequest, until: float
    ) -> MemcachedAnswer:
        """Carry out a request on a connection, and put the connection back only if all went well."""
        pool = self._pool(address)
        try:
            replies = connection.exchange(request, self._left(until))
        except MemcachedUnsent:
            pool.discard(connection)
            raise
        except BROKEN as error:
            pool.lose(connection)
            raise errors.unanswered(address, error) from error
        except BaseException:
            pool.discard(connection)
            raise
        if connection.goes_on() and not self._closed:
            pool.put_back(connection)
        else:
            pool.discard(connection)
        return MemcachedAnswer(replies, connection.server)

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
