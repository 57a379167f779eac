"""The connections of a client's threads to one server: which are idle, and which are there at all.

A thread takes the connection that was used last, so that few stay in use. A connection on which anything went wrong is
closed, and the idle ones that have had no reply since go with it: they are likely to be as dead.
"""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from tenure.contracts.runtime import Runtime
from tenure.transport.caller_queue import CallerQueue

SURELY_OPEN = 0.1
"""For how many idle seconds a connection is taken to be open, without a look at it."""

REST = 0.02
"""For how many seconds a connection is left to the thread that used it last, which is likely to take it again."""

LONGEST_IDLE = 60.0
"""After how many idle seconds a connection is closed: what stands between may have forgotten it and not said so."""


class PooledConnection(Protocol):
    """A connection that one thread at a time uses."""

    used: float
    """When it was last taken, a local instant. The pool notes it."""

    def is_stale(self) -> bool:
        """Tell whether the server has closed it, or has said something that nobody asked for."""
        ...

    def close(self) -> None:
        """Close it, also for the copies that forked children may have."""

    def abandon(self) -> None:
        """In a forked child: close this copy, and leave the parent's as it is."""


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(Generic[C]):
    """The connections to one server. Every method may be called by any thread: each step on a deque is atomic."""

    def __init__(self) -> None:
        self.idle: deque[C] = deque()
        """Those on which no reply is due, in the order in which they were put back."""
        self.all: WeakSet[C] = WeakSet()
        """Those in use too: a forked child has copies of all."""
        self._closed = False

    def add(self, connection: C, now: float) -> None:
        """Note a new connection, which is in use."""
        connection.used = now
        self.all.add(connection)

    def take(self, now: float) -> C | None:
        """Return an idle connection, which is in use from now on; None if there is none that is open."""
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return None
            unused = now - connection.used
            if unused < SURELY_OPEN or (unused < LONGEST_IDLE and not connection.is_stale()):
                connection.used = now
                if self.idle:
                    self._drop_old(now - LONGEST_IDLE)
                return connection
            self.discard(connection)

    def put_back(self, connection: C) -> None:
        """Let other threads use a connection; close it if the pool is closed."""
        self.idle.append(connection)
        if self._closed:  # after the append: of this and a `close` in another thread, at least one finds the other
            self.drop_idle()

    def take_owing(self, now: float, owed: Callable[[C], object]) -> Iterator[C]:
        """Take the idle connections on which replies are `owed`, one after another, but none that was just used.

        If one were taken from under the thread that has sent something on it, the next request of this thread would go
        by another, and might overtake what was sent.
        """
        for connection in list(self.idle):
            if now - connection.used >= REST and owed(connection):
                try:
                    self.idle.remove(connection)
                except ValueError:  # another thread has taken it meanwhile, and takes the replies
                    continue
                yield connection

    def discard(self, connection: C) -> None:
        """Close a connection that was taken."""
        connection.close()
        self.all.discard(connection)

    def lose(self, connection: C) -> None:
        """Close a connection that is dead, and those that are likely so too."""
        self.discard(connection)
        self.drop_idle(connection.used)

    def drop_idle(self, before: float = math.inf) -> None:
        """Close the idle connections that were last taken before an instant."""
        for connection in list(self.idle):
            if connection.used < before:
                with contextlib.suppress(ValueError):  # another thread has taken it meanwhile
                    self.idle.remove(connection)
                    self.discard(connection)

    def close(self) -> None:
        """Close the idle connections now, and those in use when they are put back."""
        self._closed = True
        self.drop_idle()

    def abandon(self) -> None:
        """In a forked child: close its copies of all."""
        for connection in self.all:
            connection.abandon()

    def _drop_old(self, before: float) -> None:
        """Close what was taken last before an instant, if the connection that was put back first was."""
        with contextlib.suppress(IndexError):  # other threads take it meanwhile
            if self.idle[0].used < before:
                self.drop_idle(before)


class Room:
    """The room for one new connection. It is free again when its caller has dropped this object, however that ends."""

    __slots__ = ("__weakref__",)


class BoundedPool(ConnectionPool[C]):
    """The same with a bound: at most so many connections are there or being made."""

    def __init__(self, most: int, mutex: AbstractContextManager[Any]) -> None:
        """Start without connections; each step that counts them locks `mutex`."""
        super().__init__()
        self._most = most
        self._mutex = mutex
        self._rooms: WeakSet[Room] = WeakSet()

    def find(self, now: float) -> C | Room | None:
        """Return an idle connection, or room for a new one; None if the caller has to wait."""
        with self._mutex:
            if (connection := self.take(now)) is not None:
                return connection
            if len(self.all) + len(self._rooms) >= self._most:
                return None
            room = Room()
            self._rooms.add(room)
            return room

    def fill(self, room: Room, connection: C, now: float) -> None:
        """Note a new connection, which is in use and takes its room."""
        with self._mutex:
            self.add(connection, now)
            self._rooms.discard(room)

    def give_up(self, room: Room) -> None:
        """Free the room of a connection that could not be made."""
        with self._mutex:
            self._rooms.discard(room)


class SharedPool(BoundedPool[C]):
    """One connection, which all callers use at once. One of those who need it makes it; the others wait."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(1, runtime.mutex())
        self.callers = CallerQueue(runtime)

    def take(self, now: float) -> C | None:  # noqa: ARG002 - it is never idle for long
        """Return the connection; None if there is none that is open."""
        for connection in list(self.idle):
            if not connection.is_stale():
                return connection
            self.discard(connection)
        return None

    def add(self, connection: C, now: float) -> None:
        """Note a new connection."""
        super().add(connection, now)
        self.idle.append(connection)

    def put_back(self, connection: C) -> None:
        """Leave it where it is."""

    def discard(self, connection: C) -> None:
        """Close it for all callers."""
        super().discard(connection)
        with contextlib.suppress(ValueError):
            self.idle.remove(connection)

    def close(self) -> None:
        """Close it, and end all waits for it."""
        super().close()
        self.callers.close()
