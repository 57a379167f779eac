"""The thread that hears all streams of a client: one for all of them, whatever their number.

Only this thread touches a stream's connection once it has been taken over. Others say what to add or end, ring a bell,
and do not wait.
"""

import contextlib
import logging
import selectors
from collections.abc import Callable
from functools import partial

from holdfast.stores.etcd.http import BROKEN, piece
from holdfast.stores.etcd.link import Address, Hearing
from holdfast.stores.etcd.sockets import Connection
from holdfast.transport.listener_thread import ListenerThread
from holdfast.transport.polling import Selector

log = logging.getLogger("holdfast")


class ThreadStream:
    """A stream that the listener hears."""

    __slots__ = ("connection", "ended", "hearing", "listener", "unsaid")

    def __init__(self, connection: Connection, hearing: Hearing, listener: "Listener") -> None:
        """Belong to a listener."""
        self.connection = connection
        self.hearing = hearing
        self.listener = listener
        self.ended = False
        """Nothing of it is told any more."""
        self.unsaid = b""
        """What is still to be sent."""

    def say(self, body: bytes) -> None:
        """Say more."""
        self.listener.say(self, piece(body))

    def close(self) -> None:
        """Hear no more."""
        self.ended = True
        self.listener.drop(self)


class Listener(ListenerThread):
    """Hears streams. Its thread runs from the first one to `close`."""

    def __init__(self) -> None:
        """Prepare to listen."""
        super().__init__("holdfast-etcd-streams")
        self._streams: set[ThreadStream] = set()
        self._new: list[ThreadStream] = []
        self._gone: list[ThreadStream] = []

    def hear(self, connection: Connection, hearing: Hearing) -> ThreadStream | None:
        """Take over a connection on which a stream was asked for; None if the listener is closed."""
        stream = ThreadStream(connection, hearing, self)
        with self._mutex:
            if self._stopped:
                return None
            self._start()
            self._streams.add(stream)
            self._new.append(stream)
        self._wakeup_pipe.wake()
        return stream

    def say(self, stream: ThreadStream, data: bytes) -> None:
        """Send something on a stream, soon."""
        with self._mutex:
            stream.unsaid += data
        self._wakeup_pipe.wake()

    def drop(self, stream: ThreadStream) -> None:
        """End a stream."""
        with self._mutex:
            if stream not in self._streams:
                return
            self._streams.discard(stream)
            self._gone.append(stream)
        self._wakeup_pipe.wake()

    def forsake(self, address: Address) -> None:
        """End the streams of a server, as if it had closed them."""
        with self._mutex:
            lost = [stream for stream in self._streams if stream.connection.address == address]
        for stream in lost:
            self.drop(stream)
            self._end(stream)

    def abandon(self) -> None:
        """In a forked child: close its copies. The thread is not here."""
        super().abandon()
        for stream in [*self._streams, *self._gone]:
            stream.connection.abandon()

    # The thread.

    def _work(self) -> None:
        with Selector() as ready:  # which has no descriptor of its own that a fork would share
            ready.register(self._wakeup_pipe, selectors.EVENT_READ)
            while not self._stopped:
                self._sort(ready)
                self._speak(ready)
                for key, _ in ready.select():
                    if isinstance(key.data, ThreadStream):
                        self._take(key.data)
                    else:
                        self._wakeup_pipe.drain()
            self._sort(ready)
        for stream in self._streams:
            stream.connection.close()

    def _sort(self, ready: selectors.BaseSelector) -> None:
        """Add what is new, and close what is gone."""
        with self._mutex:
            new, self._new = self._new, []
            gone, self._gone = self._gone, []
        for stream in new:
            if stream not in gone:
                stream.connection.never_wait()
                ready.register(stream.connection, selectors.EVENT_READ, stream)
                self._take(stream)  # TLS may have read more than it has shown
        for stream in gone:
            with contextlib.suppress(KeyError, ValueError):
                ready.unregister(stream.connection)
            stream.connection.close()

    def _speak(self, ready: selectors.BaseSelector) -> None:
        """Send what can be sent; wait until more can be, where something is left."""
        for key in list(ready.get_map().values()):
            stream = key.data
            if isinstance(stream, ThreadStream) and (stream.unsaid or key.events & selectors.EVENT_WRITE):
                try:
                    sent = stream.connection.say(stream.unsaid) if stream.unsaid else 0
                except BROKEN as error:
                    self._break(stream, error)
                    continue
                with self._mutex:
                    stream.unsaid = left = stream.unsaid[sent:]
                ready.modify(stream.connection, selectors.EVENT_READ | bool(left) * selectors.EVENT_WRITE, stream)

    def _take(self, stream: ThreadStream) -> None:
        try:
            for said in stream.connection.heard():
                if stream.ended:
                    return
                _guarded(partial(stream.hearing.on_said, said))
        except BROKEN as error:
            self._break(stream, error)

    def _break(self, stream: ThreadStream, error: Exception) -> None:
        log.debug("a stream of the etcd server at %s has ended: %s", stream.connection.address, error)
        self.drop(stream)
        self._end(stream)

    def _end(self, stream: ThreadStream) -> None:
        with self._mutex:
            told, stream.ended = stream.ended, True
        if not told:
            _guarded(stream.hearing.on_end)


def _guarded(call: Callable[[], None]) -> None:
    """Let no error of a listener end the thread."""
    try:
        call()
    except Exception:
        log.exception("an event of etcd could not be taken; whoever waits for it asks again by itself")
