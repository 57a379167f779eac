"""The link to etcd for threads: pools of connections for requests, and one thread that receives all streams.

Every `async def` here blocks in place, in the thread that calls it.
"""

from collections.abc import Callable

from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.etcd import errors
from tenure.stores.etcd.http import BROKEN
from tenure.stores.etcd.link import EtcdAddress, EtcdHearing, EtcdNotSent, EtcdReply, EtcdRequest, Stream
from tenure.stores.etcd.listener import EtcdListener
from tenure.stores.etcd.options import EtcdDeployment
from tenure.stores.etcd.sockets import EtcdConnection, EtcdUnsent, connect
from tenure.transport.pool import ConnectionPool


class EtcdThreadLink:
    """The link to the servers, for the threads of one client."""

    def __init__(self, runtime: ThreadsRuntime, deployment: EtcdDeployment) -> None:
        """Prepare; nothing is connected yet."""
        self._now = runtime.now
        self._deployment = deployment
        self._pools: dict[EtcdAddress, ConnectionPool[EtcdConnection]] = {}
        self._listener = EtcdListener()
        self._closed = False

    async def exchange(self, address: EtcdAddress, request: EtcdRequest, until: float) -> EtcdReply:
        """Send a request on an open connection or on a new one, and return the reply."""
        connection = self._pool(address).take(self._now())
        if connection is not None:
            try:
                return self._exchange(connection, request, until)
            except EtcdUnsent:
                self._pool(address).drop_idle()
        try:
            return self._exchange(self._connect(address, until), request, until)
        except EtcdUnsent as error:
            raise EtcdNotSent(*errors.cannot_connect(address, error).args) from error

    async def stream(self, address: EtcdAddress, request: EtcdRequest, hearing: EtcdHearing, until: float) -> Stream:
        """Start a stream, on a connection of its own."""
        connection = self._connect(address, until)
        try:
            connection.begin(request, self._left(until))
            stream = self._listener.hear(connection, hearing)
        except BROKEN as error:
            self._pool(address).discard(connection)
            raise EtcdNotSent(*errors.cannot_connect(address, error).args) from error
        if stream is None:
            self._pool(address).discard(connection)
            raise errors.closed()
        return stream

    def forsake(self, address: EtcdAddress) -> None:
        """End the streams of a server that does not answer, and close its idle connections."""
        self._pool(address).drop_idle()
        self._listener.forsake(address)

    async def close(self) -> None:
        """Close the idle connections, and end the listener. Requests under way go on to their end."""
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

    def _exchange(self, connection: EtcdConnection, request: EtcdRequest, until: float) -> EtcdReply:
        """Carry out a request on a connection, and put the connection back only if all went well."""
        pool = self._pool(connection.address)
        try:
            answer = connection.exchange(request, self._left(until))
        except EtcdUnsent:
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

    def _pool(self, address: EtcdAddress) -> ConnectionPool[EtcdConnection]:
        """Return the connections to a server."""
        return self._pools.get(address) or self._pools.setdefault(address, ConnectionPool())

    def _connect(self, address: EtcdAddress, until: float) -> EtcdConnection:
        if self._closed:
            raise errors.closed()
        until = min(until, self._now() + self._deployment.connect_timeout)
        connection = connect(address, self._deployment.tls, self._left(until))
        self._pool(address).add(connection, self._now())
        return connection
