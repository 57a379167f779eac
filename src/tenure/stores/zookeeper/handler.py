"""The handler of kazoo's connection: it runs the connection in one thread, which also calls the callbacks.

Callbacks only take notes or post to the runtime, so they need no threads of their own. The handler knows all sockets,
so that a forked child can close the inherited ones.
"""

import contextlib
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tenure.contracts.runtime import Runtime
from tenure.reentry import start_thread
from tenure.runtimes.threads import ThreadFlag
from tenure.stores.zookeeper.library import Result, make_result
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.sockets import (
    CONNECTED,
    Attempts,
    Host,
    Reminder,
    SlowError,
    ZooKeeperConnection,
    failure_of,
    shut_down,
)
from tenure.transport.polling import READABLE, WRITABLE, Poll, new_poll

CONNECT = 5.0
"""The longest time to connect to one server, in seconds."""

GREETS = 2.0
"""How long a server may take to accept the session, in seconds, before the next server is tried: some never reply."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""The first and the longest pause after a round of all servers, in seconds. Each pause is twice as long as the last."""

HURRIED_PAUSE = 0.05
"""The pause, in seconds, while a request waits for a server."""


class KazooFlag(ThreadFlag):
    """A flag with the methods that kazoo uses. An interrupted start leaves it usable, so kazoo's thread can end."""

    wait = ThreadFlag.block


class Handler:
    """The handler that kazoo requires. kazoo's IHandler documents each method."""

    name = "tenure"
    timeout_exception = SlowError
    running = False
    """False, so that kazoo calls callbacks at once."""

    event_object = KazooFlag
    lock_object = staticmethod(threading.Lock)
    rlock_object = staticmethod(threading.RLock)

    def __init__(self, access: ZooKeeperAccess, runtime: Runtime) -> None:
        """Prepare the handler.

        It uses only the runtime's clock and random numbers, because it runs in kazoo's thread.
        """
        self.attempts = Attempts(access.servers, runtime.now)
        self._tls = access.tls
        self._now = runtime.now
        self._random = runtime.random
        self._opening: socket.socket | None = None
        """The socket that is being connected, if any."""
        self._pause = FIRST_PAUSE
        self._hurried = ThreadFlag()
        """Set while a request waits for a round to begin."""
        self._stopped = False
        self._posted = deque[Callable[[], None]]()
        """Work that other threads posted to kazoo's thread."""
        self._reminder: Reminder | None = None
        self._unread = False
        """Whether a request was sent last without a look at the socket."""
        self._poll: Poll | None = None
        self._polled: tuple[list[int], list[int]] = [], []
        """The descriptors of `_poll`: those to read, and those to write."""
        self._sockets: weakref.WeakSet[Any] = weakref.WeakSet()
        self.wire: ZooKeeperConnection | None = None
        """The connection that was opened last."""

    def start(self) -> None:
        """Begin the first round."""
        self._stopped = False
        self.attempts.begin()

    def stop(self) -> None:
        """End the pauses between rounds."""
        self._stopped = True
        self._hurried.set()

    def sleep_func(self, seconds: float) -> None:
        """Pause between two rounds, as kazoo's `sleep_func`; the pause is shorter while a request waits."""
        del seconds  # this handler decides the length of the pause
        self.attempts.end()
        if self.attempts.one_was_reached():
            self._pause = FIRST_PAUSE
        pause = self._pause * (0.6 + 0.8 * self._random())
        at_least = min(pause, HURRIED_PAUSE)
        time.sleep(at_least)
        self._hurried.block(pause - at_least)
        if not self._stopped:
            self._hurried.clear()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self.attempts.begin()

    def hurry(self, since: float) -> None:
        """Begin a round soon, if none has begun since an instant."""
        if self.attempts.began < since and not self.attempts.one_was_reached():
            self._hurried.set()

    def async_result(self) -> Result:
        """Create the result of a request."""
        return make_result(self, threading.Condition, SlowError)

    def spawn(self, func: Callable[..., object], *args: object, **options: object) -> threading.Thread:
        """Start kazoo's thread."""

        def run() -> None:
            with contextlib.suppress(Exception):  # the logger has kept it
                func(*args, **options)

        return start_thread(run, "zookeeper")

    def dispatch_callback(self, callback: Any) -> None:  # noqa: ANN401 - kazoo's
        """Call a watch."""
        callback.func(*callback.args)

    def post(self, action: Callable[[], None]) -> None:
        """Have the thread run `action` soon, if it has a connection; do not wait for that.

        Only that thread may send requests to kazoo. A signal handler may raise in the main thread in the middle of a
        request, which would leave requests unsent, or be taken for a lost connection.
        """
        self._posted.append(action)
        if self._reminder is not None:
            with contextlib.suppress(OSError):  # the pipe is closed: there is no connection any more
                self._reminder.wake()

    def withdraw(self, action: Callable[[], None]) -> bool:
        """Remove posted work; return False if the thread has run it, or is about to."""
        try:
            self._posted.remove(action)
        except ValueError:
            return False
        return True

    def carry_out(self) -> None:
        """Run the posted work, in the thread."""
        with contextlib.suppress(IndexError):  # it may be withdrawn meanwhile
            while self._posted:
                self._posted.popleft()()

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _errors: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets, without a descriptor of its own that a forked child would inherit."""
        if writers and not readers and all(each.may_send(timeout) for each in writers):
            return [], list(writers), []
        reminder = next((each for each in readers if isinstance(each, Reminder)), None)
        due = self._has_to_send(reminder)
        found = [each for each in readers if isinstance(each, ZooKeeperConnection) and each.pending()]
        if due and not self._unread:  # the socket is looked at before the next request: replies must be read
            self._unread = True
        elif not found:
            if timeout is not None and any(
                isinstance(each, ZooKeeperConnection) and not each.is_greeted() for each in readers
            ):
                timeout = min(timeout, GREETS)
            found = self._wait([*readers], [*writers], reminder, 0.0 if due else timeout)
            due = due or self._has_to_send(reminder)
        readable = [each for each in found if each in readers] + ([reminder] if due else [])
        return readable, [each for each in found if each in writers], []

    def _wait(
        self, readers: list[Any], writers: list[Any], reminder: Reminder | None, timeout: float | None
    ) -> list[Any]:
        """Wait until sockets can be used or there are requests to send; return the sockets."""
        self._unread = False
        until = None if timeout is None else time.monotonic() + timeout
        by_number = {each.fileno(): each for each in (*readers, *writers)}
        ready = self._poll_of([each.fileno() for each in readers], [each.fileno() for each in writers])
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            found = [by_number[number] for number, _ in ready.poll(None if left is None else left * 1000)]
            if reminder is not None and reminder in found:
                found.remove(reminder)
                reminder.clear()
                if self._has_to_send(reminder):
                    return found
            if found or (until is not None and time.monotonic() >= until):
                return found

    def _poll_of(self, readers: list[int], writers: list[int]) -> Poll:
        """Return a poll of these descriptors: the last one, if that was of the same."""
        if self._poll is None or self._polled != (readers, writers):
            self._poll, self._polled = new_poll(), (readers, writers)
            try:
                for number in readers:
                    self._poll.register(number, READABLE)
                for number in writers:
                    self._poll.register(number, WRITABLE)
            except ValueError:  # one is closed
                self._poll = None
                raise
        return self._poll

    def _has_to_send(self, reminder: Reminder | None) -> bool:
        """Run the posted work; return whether there are requests to send, if kazoo asked for the pipe."""
        if reminder is None:
            return False
        reminder.thread = threading.get_ident()
        if self._posted:
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
        """Connect a socket, with TLS if the URL asks for it."""
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
        """Record a socket that is being connected, so that other threads can close or break it."""
        self._sockets.add(made)
        self._opening = made

    def create_socket_pair(self) -> tuple[Reminder, Reminder]:
        """Create the wake-up pipe."""
        made = self._reminder = Reminder()
        self._sockets.update(made.sockets)
        return made, made

    def heard_since(self, instant: float) -> bool:
        """Return whether the server sent anything since an instant, or was connected only since then."""
        return self.wire is None or self.wire.heard_at >= instant

    def break_if_silent(self, since: float) -> None:
        """Break the connection if the server sent nothing since an instant, so that the thread tries another server."""
        if self.wire is not None and self.wire.is_greeted() and not self.heard_since(since):
            self.wire.break_off()

    def break_off(self) -> None:
        """Break the connection, or the one that is being opened."""
        if self.wire is not None:
            self.wire.break_off()
        if self._opening is not None:
            shut_down(self._opening)

    def abandon(self) -> None:
        """In a forked child: close the inherited sockets. kazoo's thread does not exist there."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.close()
