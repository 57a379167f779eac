"""The thread that receives all streams of a client: one thread for any number of streams.

Only this thread touches the connection of a stream once it has taken it over. Other threads note which stream to add or
to end, wake this thread, and do not wait.
"""

import contextlib
import logging
import selectors
from collections.abc import Callable
from functools import partial

from tenure.stores.etcd.http import BROKEN, piece
from tenure.stores.etcd.link import EtcdAddress, EtcdHearing
from tenure.stores.etcd.sockets import EtcdConnection
from tenure.transport.listener_thread import ListenerThread
from tenure.transport.polling import Selector

log = logging.getLogger("tenure")


class ThreadStream:
    """A stream that the listener receives."""

    __slots__ = ("connection", "ended", "hearing", "listener", "unsaid")

    def __init__(self, connection: EtcdConnection, hearing: EtcdHearing, listener: "EtcdListener") -> None:
        """Make a stream of a listener."""
        self.connection = connection
        self.hearing = hearing
        self.listener = listener
        self.ended = False
        """Its callbacks are not called any more."""
        self.unsaid = b""
        """The bytes still to be sent."""

    def say(self, body: bytes) -> None:
        """Send another piece of the request."""
        self.listener.say(self, piece(body))

    def close(self) -> None:
        """End the stream, without a callback."""
        self.ended = True
        self.listener.drop(self)


class EtcdListener(ListenerThread):
    """Receives streams. Its thread runs from the first stream to `close`."""

    def __init__(self) -> None:
        """Prepare to listen."""
        super().__init__("tenure-etcd-streams")
        self._streams: set[ThreadStream] = set()
        self._new: list[ThreadStream] = []
        self._gone: list[ThreadStream] = []

    def hear(self, connection: EtcdConnection, hearing: EtcdHearing) -> ThreadStream | None:
        """Take over the connection of a new stream. Return None if the listener is closed."""
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
        """Have the thread send something on a stream."""
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

    def forsake(self, address: EtcdAddress) -> None:
        """End the streams of a server, as if the server had closed them."""
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

    # What the thread does

    def _work(self) -> None:
        with Selector() as ready:  # it has no descriptor of its own, which a fork would share
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
        """Register the new streams, and close the ended ones."""
        with self._mutex:
            new, self._new = self._new, []
            gone, self._gone = self._gone, []
        for stream in new:
            if stream not in gone:
                stream.connection.never_wait()
                ready.register(stream.connection, selectors.EVENT_READ, stream)
                self._take(stream)  # TLS may have read more than the socket shows
        for stream in gone:
            with contextlib.suppress(KeyError, ValueError):
                ready.unregister(stream.connection)
            stream.connection.close()

    def _speak(self, ready: selectors.BaseSelector) -> None:
        """Send what the sockets take; wait for those with bytes left to take more."""
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
    """Call a callback whose errors must not end the thread."""
    try:
        call()
    except Exception:
        log.exception("an event of etcd could not be taken; whoever waits for it asks again by itself")
