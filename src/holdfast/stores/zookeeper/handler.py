"""How kazoo's connection runs: in one thread of its own, which also calls back.

What is called back only takes notes, or hands them to the runtime, so it needs no threads of its own. And who was
forked from us can close what it inherited, because all sockets are known here.
"""

import contextlib
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.contracts.runtime import Runtime
from holdfast.stores.zookeeper.attempts import CLOSED, CONNECTED, Attempts, Host, failure_of
from holdfast.stores.zookeeper.library import Result, make_result
from holdfast.stores.zookeeper.options import ZooKeeperAccess
from holdfast.transport.polling import READABLE, WRITABLE, new_poll

CONNECT = 5.0
"""The longest that connecting to one server may take, in seconds."""

GREETS = 2.0
"""How long a server may take to answer who connects, in seconds, before the next is tried: some never do."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""How long to pause when all servers were tried, in seconds; twice as long each time."""

HURRIED_PAUSE = 0.05
"""How long to pause, in seconds, if somebody waits for a server."""

MUCH = 4096
"""More bytes than there are in a reminder, as a rule."""

GREETING = 12
"""How many bytes of a server's first answer tell the session's timeout, at its end."""


class SlowError(Exception):
    """Something took too long: kazoo's word for a timeout."""


def _shut_down(connection: socket.socket) -> None:
    """Let the thread that uses a socket find it broken."""
    with contextlib.suppress(OSError):  # not TLS's own, after which a read in that thread fails in other ways
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class ZooKeeperConnection:
    """A connection to a server, which notes what the server says of the session's timeout."""

    def __init__(self, connection: Any, attempts: Attempts, opened_at: float) -> None:  # noqa: ANN401 - a socket
        self._connection = connection
        self._attempts = attempts
        self._now = attempts.now
        self.opened_at = opened_at
        self.heard_at = opened_at
        """When something came, last."""
        self.fileno = connection.fileno
        self.send = connection.send
        self.close = connection.close
        self.setblocking = connection.setblocking
        self._greeting = b""

    def recv(self, size: int) -> bytes:
        """Receive, and keep what came first."""
        if self.is_greeted():
            data: bytes = self._connection.recv(size)
        else:
            data = self._receive_greeting(size)
        self.heard_at = self._now()
        return data

    def _receive_greeting(self, size: int) -> bytes:
        try:
            data: bytes = self._connection.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError):
            raise
        except OSError as error:  # with TLS, servers refuse a client only here
            self._attempts.note(failure_of(error))
            raise
        if not data:
            self._attempts.note(CLOSED)
        self._greeting += data
        if self.is_greeted():
            self._attempts.reached()
        return data

    def has_pending(self) -> bool:
        """Tell whether something has come that no poll tells of: TLS reads whole records."""
        return isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0

    def is_greeted(self) -> bool:
        """Tell whether the server has taken us."""
        return len(self._greeting) >= GREETING

    def session_timeout(self) -> float:
        """Return for how long the server keeps the session of a silent client, in seconds."""
        return int.from_bytes(self._greeting[8:GREETING], "big") / 1000

    def break_off(self) -> None:
        """Let the thread that uses it find it broken."""
        _shut_down(self._connection)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a socket has
        return getattr(self._connection, name)


class Reminder:
    """What wakes kazoo's thread, both ends of it: kazoo sends a byte for each request, and receives it to send that.

    Those are only counted. A pair of sockets, as kazoo would have, takes a few hundred; who asks then waits until the
    thread has sent some, and if that itself asks just then, as it does for messages, it would wait for ever. Ours wakes
    the thread, however often, and never waits.
    """

    def __init__(self) -> None:
        """Have nothing to remind of."""
        self.sockets = socket.socketpair()
        self._inside, self._outside = self.sockets
        for each in self.sockets:
            each.settimeout(0)
        self._requests = deque[None]()
        """One for each request: as a number it would not be counted right by several threads."""
        self.fileno = self._inside.fileno

    def send(self, data: bytes) -> int:
        """Note a request."""
        self._requests.append(None)
        self.wake()
        return len(data)

    def recv(self, _size: int) -> bytes:
        """Forget one."""
        with contextlib.suppress(IndexError):
            self._requests.pop()
        return b"."

    def wake(self) -> None:
        """Have the thread look what there is to do, which was noted before. Raises OSError once it is closed."""
        with contextlib.suppress(BlockingIOError):  # there is enough in it
            self._outside.send(b".")

    def clear(self) -> None:
        """Have whatever is noted from now on wake the thread again."""
        with contextlib.suppress(BlockingIOError):
            self._inside.recv(MUCH)

    def has_requests(self) -> bool:
        """Tell whether there are requests to send."""
        return bool(self._requests)

    def close(self) -> None:
        """Close both ends."""
        for each in self.sockets:
            each.close()


class Handler:
    """What kazoo asks of its surroundings. See kazoo's IHandler, which says what each method does."""

    name = "holdfast"
    timeout_exception = SlowError
    running = False
    """So that kazoo calls back at once."""

    event_object = staticmethod(threading.Event)
    lock_object = staticmethod(threading.Lock)
    rlock_object = staticmethod(threading.RLock)

    def __init__(self, access: ZooKeeperAccess, runtime: Runtime) -> None:
        """Prepare; of the runtime only its clock and its chance are used, as all of this runs in kazoo's thread."""
        self.attempts = Attempts(access.servers, runtime.now)
        self._tls = access.tls
        self._now = runtime.now
        self._random = runtime.random
        self._opening: socket.socket | None = None
        """What may be about to become a connection."""
        self._pause = FIRST_PAUSE
        self._demanded = threading.Event()
        """Set if somebody waits for a round that has not begun."""
        self._stopped = False
        self._posted = deque[Callable[[], None]]()
        """What others have for the thread to do."""
        self._reminder: Reminder | None = None
        self._sockets: weakref.WeakSet[Any] = weakref.WeakSet()
        self.wire: ZooKeeperConnection | None = None
        """The connection that was opened last."""

    def start(self) -> None:
        """Begin the first round."""
        self._stopped = False
        self.attempts.begin()

    def stop(self) -> None:
        """Pause no more."""
        self._stopped = True
        self._demanded.set()

    def sleep_func(self, seconds: float) -> None:
        """Pause between two rounds, as kazoo calls it; less long if somebody waits."""
        del seconds  # how long is decided here
        self.attempts.end()
        if self.attempts.one_was_reached():
            self._pause = FIRST_PAUSE
        pause = self._pause * (0.6 + 0.8 * self._random())
        at_least = min(pause, HURRIED_PAUSE)
        time.sleep(at_least)
        self._demanded.wait(pause - at_least)
        if not self._stopped:
            self._demanded.clear()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self.attempts.begin()

    def demand_connection(self, since: float) -> None:
        """Have a round begin soon, if none has since an instant."""
        if self.attempts.began < since and not self.attempts.one_was_reached():
            self._demanded.set()

    def async_result(self) -> Result:
        """Make what an answer is put into."""
        return make_result(self, threading.Condition, SlowError)

    def spawn(self, func: Callable[..., object], *args: object, **options: object) -> threading.Thread:
        """Start kazoo's thread."""

        def run() -> None:
            with contextlib.suppress(Exception):  # which the logger has kept
                func(*args, **options)

        thread = threading.Thread(target=run, name="holdfast-zookeeper", daemon=True)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:  # noqa: ANN401 - kazoo's
        """Call a watch."""
        callback.func(*callback.args)

    def post(self, action: Callable[[], None]) -> None:
        """Have the thread carry out `action` soon, if it has a connection. Does not wait for that.

        Only there may kazoo be asked for something: an exception of a signal handler in the middle of that, as the main
        thread may meet with, would leave requests lying, or be taken for a lost connection.
        """
        self._posted.append(action)
        if self._reminder is not None:
            with contextlib.suppress(OSError):  # it is closed: there is no connection any more
                self._reminder.wake()

    def withdraw(self, action: Callable[[], None]) -> bool:
        """Have it not carried out; False if it was, or is just about to be."""
        try:
            self._posted.remove(action)
        except ValueError:
            return False
        return True

    def carry_out(self) -> None:
        """Carry out what was posted, in the thread."""
        with contextlib.suppress(IndexError):
            while True:
                self._posted.popleft()()

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _errors: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets: without a descriptor of its own, which a forked child would inherit."""
        pending = [each for each in readers if isinstance(each, ZooKeeperConnection) and each.has_pending()]
        if pending:
            return pending, [], []
        if timeout is not None and any(
            isinstance(each, ZooKeeperConnection) and not each.is_greeted() for each in readers
        ):
            timeout = min(timeout, GREETS)
        until = None if timeout is None else time.monotonic() + timeout
        ready = new_poll()
        by_number = {each.fileno(): each for each in (*readers, *writers)}
        for each in readers:
            ready.register(each, READABLE)
        for each in writers:
            ready.register(each, WRITABLE)
        reminder = next((each for each in readers if isinstance(each, Reminder)), None)
        while True:
            due = self._has_to_send(reminder)
            left = 0.0 if due else None if until is None else max(0.0, until - time.monotonic())
            events = ready.poll(None if left is None else left * 1000)
            found = [by_number[number] for number, _ in events if by_number[number] is not reminder]
            due = due or self._has_to_send(reminder)
            if found or due or (until is not None and time.monotonic() >= until):
                break
        readable = [each for each in found if each in readers] + ([reminder] if due else [])
        return readable, [each for each in found if each in writers], []

    def _has_to_send(self, reminder: Reminder | None) -> bool:
        """Carry out what was posted, and tell whether there are requests to send: kazoo does that if it asked us so."""
        if reminder is None:
            return False
        reminder.clear()
        self.carry_out()
        return reminder.has_requests()

    def create_connection(
        self, address: Host, hostname: str, timeout: float, **_options: object
    ) -> ZooKeeperConnection:
        """Connect to a server."""
        opened_at = self._now()
        self.attempts.trying(hostname, address)
        try:
            made = self._open(address, hostname, min(timeout, CONNECT))
        except Exception as error:
            self.attempts.note(failure_of(error))
            raise
        self.attempts.note(CONNECTED)
        self.wire = ZooKeeperConnection(made, self.attempts, opened_at)
        return self.wire

    def _open(self, address: Host, hostname: str, timeout: float) -> socket.socket:
        """Connect a socket, with TLS if that is wanted."""
        made = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            self._know(made)
            made.settimeout(timeout)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.connect(address)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=hostname, do_handshake_on_connect=False)
                self._know(made)
                made.do_handshake()
        except BaseException:
            made.close()
            raise
        return made

    def _know(self, made: socket.socket) -> None:
        """Note a socket that is being opened, for those who may have to close it or break it off."""
        self._sockets.add(made)
        self._opening = made

    def create_socket_pair(self) -> tuple[Reminder, Reminder]:
        """Make what wakes the thread."""
        made = self._reminder = Reminder()
        self._sockets.update(made.sockets)
        return made, made

    def heard_since(self, instant: float) -> bool:
        """Tell whether anything was heard of this server since, or it was only connected to since."""
        return self.wire is None or self.wire.heard_at >= instant

    def break_if_silent(self, since: float) -> None:
        """Have the thread try another server, if nothing was heard of this one."""
        if self.wire is not None and self.wire.is_greeted() and not self.heard_since(since):
            self.wire.break_off()

    def break_off(self) -> None:
        """Have the thread find its connection broken, or what it is opening."""
        if self.wire is not None:
            self.wire.break_off()
        if self._opening is not None:
            _shut_down(self._opening)

    def abandon(self) -> None:
        """In a forked child: close what was inherited. The thread is not here."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.close()
