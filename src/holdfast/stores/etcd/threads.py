"""The link of the threads runtime: a pool of connections for requests, and one thread that hears all streams.

Every `async def` here blocks in place. A request takes the connection that was used last, so that few stay in use.
"""

import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

from holdfast.runtimes.threads import ThreadsRuntime
from holdfast.stores.etcd import errors
from holdfast.stores.etcd.http import BROKEN
from holdfast.stores.etcd.link import Address, Answer, Hearing, NotSent, Request, Stream
from holdfast.stores.etcd.listener import Listener
from holdfast.stores.etcd.options import Deployment
from holdfast.stores.etcd.sockets import Connection, Unsent, connect

IDLE = 0.1
"""After how many idle seconds to see whether the server has closed a connection, before it is used."""


class ThreadLink:
    """A way to the servers, for the threads of one client."""

    def __init__(self, runtime: ThreadsRuntime, deployment: Deployment) -> None:
        """Prepare; nothing is connected yet."""
        self._now = runtime.now
        self._deployment = deployment
        self._mutex = threading.Lock()
        self._idle: deque[Connection] = deque()
        self._all: WeakSet[Connection] = WeakSet()
        """Those in use too: a forked child has copies of all."""
        self._listener = Listener()
        self._closed = False

    async def exchange(self, address: Address, request: Request, until: float) -> Answer:
        """Ask a server, on a connection that is open or on a new one."""
        connection = self._take(address)
        if connection is not None:
            try:
                return self._exchange(connection, request, until)
            except Unsent:
                self._drop_idle(address)
        try:
            return self._exchange(self._connect(address, until), request, until)
        except Unsent as error:
            raise NotSent(*errors.cannot_connect(address, error).args) from error

    async def stream(self, address: Address, request: Request, hearing: Hearing, until: float) -> Stream:
        """Begin a stream on a connection of its own."""
        connection = self._connect(address, until)
        try:
            connection.begin(request, self._left(until))
        except BROKEN as error:
            self._discard(connection)
            raise NotSent(*errors.cannot_connect(address, error).args) from error
        stream = self._listener.hear(connection, hearing)
        if stream is None:
            self._discard(connection)
            raise errors.closed()
        return stream

    def forsake(self, address: Address) -> None:
        """End the streams of a server that does not answer, and let go of its connections."""
        self._drop_idle(address)
        self._listener.forsake(address)

    async def close(self) -> None:
        """Disconnect. Requests that are under way end by themselves."""
        self._closed = True
        self._drop_idle(None)
        self._listener.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of all sockets."""
        self._closed = True
        for connection in self._all:
            connection.abandon()
        self._listener.abandon()

    def _exchange(self, connection: Connection, request: Request, until: float) -> Answer:
        """Have a request and its answer on a connection, and keep it only if all went well."""
        try:
            answer = connection.exchange(request, self._left(until))
        except Unsent:
            self._discard(connection)
            raise
        except BROKEN as error:
            self._discard(connection)
            plain = self._deployment.tls is None and not connection.has_heard()
            raise errors.unanswered(connection.address, error, plain=plain) from error
        except BaseException:
            self._discard(connection)
            raise
        self._put_back(connection)
        return answer

    def _left(self, until: float) -> Callable[[], float]:
        return lambda: until - self._now()

    def _take(self, address: Address) -> Connection | None:
        """Return an open connection on which no answer is due."""
        now = self._now()
        while True:
            with self._mutex:
                found = next((each for each in reversed(self._idle) if each.address == address), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if now - found.used < IDLE or not found.is_stale():
                found.used = now
                return found
            self._discard(found)

    def _connect(self, address: Address, until: float) -> Connection:
        if self._closed:
            raise errors.closed()
        until = min(until, self._now() + self._deployment.connect_timeout)
        connection = connect(address, self._deployment.tls, self._left(until))
        connection.used = self._now()
        self._all.add(connection)
        return connection

    def _put_back(self, connection: Connection) -> None:
        with self._mutex:
            kept = connection.goes_on() and not self._closed
            if kept:
                self._idle.append(connection)
        if not kept:
            self._discard(connection)

    def _drop_idle(self, address: Address | None) -> None:
        with self._mutex:
            dropped = [each for each in self._idle if address is None or each.address == address]
            self._idle = deque(each for each in self._idle if each not in dropped)
        for connection in dropped:
            self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)
