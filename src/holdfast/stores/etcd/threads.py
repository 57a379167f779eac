"""The link of the threads runtime: a pool of connections for requests, and one thread that hears all streams.

Every `async def` here blocks in place. A request takes the connection that was used last, so that few stay in use.
"""

from collections.abc import Callable

from holdfast.runtimes.threads import ThreadsRuntime
from holdfast.stores.etcd import errors
from holdfast.stores.etcd.http import BROKEN
from holdfast.stores.etcd.link import Address, Answer, Hearing, NotSent, Request, Stream
from holdfast.stores.etcd.listener import Listener
from holdfast.stores.etcd.options import Deployment
from holdfast.stores.etcd.sockets import Connection, Unsent, connect
from holdfast.transport.pool import ConnectionPool


class ThreadLink:
    """A way to the servers, for the threads of one client."""

    def __init__(self, runtime: ThreadsRuntime, deployment: Deployment) -> None:
        """Prepare; nothing is connected yet."""
        self._now = runtime.now
        self._deployment = deployment
        self._pools: dict[Address, ConnectionPool[Connection]] = {}
        self._listener = Listener()
        self._closed = False

    async def exchange(self, address: Address, request: Request, until: float) -> Answer:
        """Ask a server, on a connection that is open or on a new one."""
        connection = self._pool(address).take(self._now())
        if connection is not None:
            try:
                return self._exchange(connection, request, until)
            except Unsent:
                self._pool(address).drop_idle()
        try:
            return self._exchange(self._connect(address, until), request, until)
        except Unsent as error:
            raise NotSent(*errors.cannot_connect(address, error).args) from error

    async def stream(self, address: Address, request: Request, hearing: Hearing, until: float) -> Stream:
        """Begin a stream on a connection of its own."""
        connection = self._connect(address, until)
        try:
            connection.begin(request, self._left(until))
            stream = self._listener.hear(connection, hearing)
        except BROKEN as error:
            self._pool(address).discard(connection)
            raise NotSent(*errors.cannot_connect(address, error).args) from error
        if stream is None:
            self._pool(address).discard(connection)
            raise errors.closed()
        return stream

    def forsake(self, address: Address) -> None:
        """End the streams of a server that does not answer, and let go of its connections."""
        self._pool(address).drop_idle()
        self._listener.forsake(address)

    async def close(self) -> None:
        """Disconnect. Requests that are under way end by themselves."""
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()
        self._listener.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of all sockets."""
        self._closed = True
        for pool in self._pools.values():
            pool.abandon()
        self._listener.abandon()

    def _exchange(self, connection: Connection, request: Request, until: float) -> Answer:
        """Have a request and its answer on a connection, and keep it only if all went well."""
        pool = self._pool(connection.address)
        try:
            answer = connection.exchange(request, self._left(until))
        except Unsent:
            pool.discard(connection)
            raise
        except BROKEN as error:
            pool.lose(connection)
            plain = self._deployment.tls is None and not connection.has_heard()
            raise errors.unanswered(connection.address, error, plain=plain) from error
        except BaseException:
            pool.discard(connection)
            raise
        if connection.goes_on() and not self._closed:
            pool.put_back(connection)
        else:
            pool.discard(connection)
        return answer

    def _left(self, until: float) -> Callable[[], float]:
        return lambda: until - self._now()

    def _pool(self, address: Address) -> ConnectionPool[Connection]:
        """Return the connections to a server."""
        return self._pools.get(address) or self._pools.setdefault(address, ConnectionPool())

    def _connect(self, address: Address, until: float) -> Connection:
        if self._closed:
            raise errors.closed()
        until = min(until, self._now() + self._deployment.connect_timeout)
        connection = connect(address, self._deployment.tls, self._left(until))
        self._pool(address).add(connection, self._now())
        return connection
