"""The lines of threads: every `async def` blocks in place, in the thread that calls it; one at a time uses a line."""

import contextlib
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic

from tenure.contracts.runtime import Runtime
from tenure.posix import POSIX
from tenure.transport.dial import SHORTEST, dial
from tenure.transport.errors import BROKEN, Unsent
from tenure.transport.link import Conversation, Q, R, ServerAddress
from tenure.transport.listener_thread import ListenerThread
from tenure.transport.polling import READABLE, WRITABLE, is_readable, new_poll
from tenure.transport.pool import ConnectionPool

CHUNK = 16_384
"""How much is read at once, in bytes."""

REST = 0.1
"""How long the rest of a reply that is owed may take, in seconds, once a part of it has come."""

SLACK = 1.25
"""By which factor the timeout of a socket may exceed what a request has left: so few requests set it anew."""


class BlockingLine(Generic[Q, R]):
    """A socket of which the system ends what takes too long.

    Where it can, it is written to and read by its descriptor: Python's own timeout asks the system before each step.
    """

    __slots__ = (
        "__weakref__",
        "_by_descriptor",
        "_now",
        "_receive",
        "_send",
        "_timeout",
        "connected",
        "conversation",
        "listening",
        "used",
    )

    def __init__(self, connected: socket.socket, conversation: Conversation[Q, R], now: Callable[[], float]) -> None:
        self.connected = connected
        self.conversation = conversation
        self.used = 0.0
        self.listening: BlockingListening[R] | None = None
        """The thread that receives whatever comes, if there is one."""
        self._now = now
        self._timeout = 0.0
        self._send: Callable[[bytes], int] = connected.send
        self._receive: Callable[[int], bytes] = connected.recv
        self._by_descriptor = POSIX and not isinstance(connected, ssl.SSLSocket)
        if self._by_descriptor:
            connected.settimeout(None)
            self._send, self._receive = partial(os.write, connected.fileno()), partial(os.read, connected.fileno())

    async def exchange(self, request: Q, until: float) -> R:
        """Send a request, and return its reply, by `until` or a little later. Raises Unsent or BROKEN."""
        conversation = self.conversation
        self.send(conversation.pack(request), until)
        while True:
            try:
                data = self._receive(CHUNK)
            except BlockingIOError:  # so says read() if the time is over
                raise TimeoutError("the reply did not come in time") from None
            conversation.feed(data)
            if (reply := conversation.reply()) is not None:
                return reply
            self._limit(until - self._now())

    def send_owed(self, request: Q, told: Callable[[R | None], None], until: float) -> None:
        """Send a request, and have `told` get its reply."""
        self.send(self.conversation.pack(request), until)
        self.conversation.owed.append(told)

    def collect(self) -> None:
        """Take the replies that are owed and have come."""
        conversation = self.conversation
        while conversation.owed and is_readable(self.connected):
            self._limit(REST)  # for TLS, of which a record may not be complete
            conversation.feed(self._receive(CHUNK))
            conversation.reply()

    def send(self, packed: bytes, until: float) -> None:
        """Send bytes. Raises Unsent or BROKEN."""
        left = until - self._now()
        if not left <= self._timeout <= left * SLACK:
            self._limit(left)
        try:
            sent = self._send(packed)
        except BlockingIOError:  # the socket was only full
            sent = 0
        except TimeoutError:
            raise
        except OSError as error:
            raise Unsent("the server closed the connection before a request was sent") from error
        if sent < len(packed):
            self.connected.sendall(memoryview(packed)[sent:])

    def listen(
        self, head: bytes, hear: Callable[[R], None], on_end: Callable[[], None], until: float
    ) -> "BlockingListening[R]":
        """Send bytes, and let a thread hand each reply that comes to `hear` from now on. Raises Unsent or BROKEN."""
        self.send(head, until)
        self.listening = BlockingListening(self, hear, on_end)
        self.listening.start()
        return self.listening

    def goes_on(self) -> bool:
        """Tell whether the connection can carry another request."""
        return self.conversation.goes_on()

    def is_stale(self) -> bool:
        """Tell whether the server has closed an idle connection. Replies that are owed and have come are taken."""
        try:
            self.collect()
        except BROKEN:
            return True
        return not self.conversation.owed and is_readable(self.connected)

    def close(self) -> None:
        """Close the connection, also for the copies that forked children may have."""
        with contextlib.suppress(OSError):
            self.connected.shutdown(socket.SHUT_RDWR)
        owed = self.conversation.owed.copy()
        self.abandon()
        for told in owed:
            told(None)

    def abandon(self) -> None:
        """In a forked child: close this copy, and leave the parent's connection as it is."""
        self._send, self._receive = self.connected.send, self.connected.recv  # these know when the descriptor is closed
        self.conversation.owed.clear()
        if self.listening is not None:
            self.listening.abandon()
        with contextlib.suppress(OSError):
            self.connected.close()

    def _limit(self, left: float) -> None:
        if left <= 0.0:
            raise TimeoutError("no time was left")
        self._timeout = max(left, SHORTEST) * (1 + SLACK) / 2
        if not self._by_descriptor:
            self.connected.settimeout(self._timeout)
            return
        whole = int(self._timeout)
        limit = struct.pack("@ll", whole, int((self._timeout - whole) * 1_000_000))
        self.connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


log = logging.getLogger("tenure")


class BlockingListening(ListenerThread, Generic[R]):
    """A thread that receives what comes on a line, and sends on it what others say. It ends with the line.

    Only this thread touches the connection, and it waits for nothing else.
    """

    def __init__(self, line: BlockingLine[Any, R], hear: Callable[[R], None], on_end: Callable[[], None]) -> None:
        super().__init__("stream")
        self._line = line
        self._hear = hear
        self._on_end = on_end
        self._unsaid = b""

    def start(self) -> None:
        """Begin."""
        with self._mutex:
            self._start()

    def say(self, data: bytes) -> None:
        """Send bytes, in the thread."""
        with self._mutex:
            self._unsaid += data
        self._wakeup_pipe.wake()

    def close(self) -> None:
        """End it, without a callback, and without waiting for the thread."""
        self._finish()

    def lose(self) -> None:
        """End it, as if the server had closed the connection."""
        if self._finish():
            _guarded(self._on_end)

    def join(self) -> None:
        """End it, and wait for the thread."""
        super().close()

    def _finish(self) -> bool:
        with self._mutex:
            goes_on, self._stopped = not self._stopped, True
        self._wakeup_pipe.wake()
        return goes_on

    def _work(self) -> None:
        connected, ready = self._line.connected, new_poll()
        connected.settimeout(0)
        ready.register(self._wakeup_pipe, READABLE)
        try:
            while True:
                self._take()  # at first, too: TLS may have read more than the socket shows
                ready.register(connected, READABLE | self._speak() * WRITABLE)
                if self._stopped:
                    break
                ready.poll()
                self._wakeup_pipe.drain()
        except BROKEN as error:
            log.debug("a stream has ended: %s", error)
        finally:
            self._line.close()
            self.lose()

    def _speak(self) -> bool:
        """Send what the socket takes at once, and tell whether bytes are left."""
        with self._mutex:
            unsaid = self._unsaid
        if not unsaid:
            return False
        sent = 0
        with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent = self._line.connected.send(unsaid)
        with self._mutex:
            self._unsaid = self._unsaid[sent:]
            return bool(self._unsaid)

    def _take(self) -> None:
        """Take what has come."""
        conversation = self._line.conversation
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while not self._stopped:
                conversation.feed(self._line.connected.recv(CHUNK))
                while not self._stopped and (reply := conversation.reply()) is not None:
                    _guarded(partial(self._hear, reply))


def _guarded(call: Callable[[], None]) -> None:
    """Call a callback whose errors must not end the thread."""
    try:
        call()
    except Exception:
        log.exception("an event could not be taken; whoever waits for it asks again by itself")


class BlockingPump:
    """Makes the lines of the threads of one client."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now

    def pool(self) -> ConnectionPool[Any]:
        """Return a pool of lines, each for one thread at a time."""
        return ConnectionPool()

    async def connect(
        self, address: ServerAddress, tls: ssl.SSLContext | None, conversation: Conversation[Q, R], until: float
    ) -> BlockingLine[Q, R]:
        """Return a connected line. Raises OSError."""
        secure = None if tls is None else partial(tls.wrap_socket, server_hostname=address.host)
        connected = dial(address.host, address.port, lambda: until - self._now(), secure)
        return BlockingLine(connected, conversation, self._now)

    async def close(self, lines: Sequence[Any]) -> None:
        """End the threads that listen. The others close their lines by themselves."""
        for line in lines:
            if line.listening is not None:
                line.listening.join()
