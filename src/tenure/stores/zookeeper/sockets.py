"""What kazoo's thread reads from and writes to: the connection to a server, and the pipe that wakes the thread.

The outcome of each attempt to reach a server is noted, so that a waiting request fails soon and with the reason. kazoo
tries all servers in turn, pauses and begins again, and only logs what fails. A *round* is one attempt at each server.
If all servers refused in a round, no server is there. A server that is there but does not serve may serve soon, because
it elects a leader or has just been started.
"""

import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tenure.contracts.limits import LONGEST_REPLY
from tenure.errors import StoreError, StoreUnavailable
from tenure.transport.polling import WRITABLE, new_poll

NEVER = float("-inf")

Host = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Failure:
    """The outcome of a failed attempt."""

    why: str
    final: bool = False
    """Whether the server refused or could not be reached, and will not serve us soon by itself."""
    distrust: bool = False
    """Whether certificates were the reason."""


UNTRIED = Failure("it was not tried yet")
CONNECTING = Failure("it does not answer")
CONNECTED = Failure("it takes connections, but does not answer")
UNDECIDED = (CONNECTING, CONNECTED)
CLOSED = Failure("it closed the connection")
CONFUSED = Failure("it does not speak ZooKeeper's protocol", final=True)
UNKNOWN = Failure("its name is not known", final=True)


def failure_of(error: Exception) -> Failure:
    """Return the failure that an error of a connection stands for."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure(f"its certificate is not trusted: {error.verify_message}", final=True, distrust=True)
    if isinstance(error, (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return CLOSED
    if isinstance(error, ssl.SSLError):
        return Failure(f"TLS handshake failed: {error.reason or 'no reason told'}", final=True, distrust=True)
    if isinstance(error, TimeoutError):
        return Failure("timed out")
    said = error.strerror if isinstance(error, OSError) else None
    return Failure((said or str(error) or type(error).__name__).lower().rstrip("."), final=True)


@dataclass(slots=True)
class Attempts:
    """The attempts of one client. Written by kazoo's thread, read by all threads."""

    hosts: list[Host]
    now: Callable[[], float]
    began: float = NEVER
    """The instant at which the current round began; minus infinity if a server was reached in it."""
    _refused: tuple[float, dict[Host, list[Failure]]] = (NEVER, {})
    """The instant when the last round began in which all servers refused, with their failures; a success resets it."""
    _round: dict[Host, dict[str, Failure]] = field(default_factory=dict[Host, dict[str, Failure]])
    """The failures of each host's addresses in this round."""
    _known: dict[Host, list[Failure]] = field(default_factory=dict[Host, list[Failure]])
    """The last known failures of each host. An undecided one counts only if there is no decided one."""
    _current: tuple[Host, str] | None = None

    def begin(self) -> None:
        """Begin a round."""
        self.began, self._round, self._current = self.now(), {}, None

    def trying(self, host: str, address: Host) -> None:
        """Record which server is being tried."""
        self._current = ((host, address[1]), address[0])
        self.note(CONNECTING)

    def note(self, failure: Failure) -> None:
        """Record the outcome of the current attempt."""
        if self._current is not None:
            host, address = self._current
            found = self._round.setdefault(host, {})
            found[address] = failure
            if failure not in UNDECIDED or all(each in UNDECIDED for each in self._known.get(host, ())):
                self._known[host] = list(found.values())

    def reached(self) -> None:
        """Record that a server accepted the session."""
        self.began, self._refused = NEVER, (NEVER, {})
        self._known, self._current = {}, None

    def one_was_reached(self) -> bool:
        """Return whether a server accepted the session in the current round."""
        return self.began == NEVER

    def end(self) -> None:
        """End a round. A host that was not tried in it has no address."""
        self._current = None
        if self.one_was_reached():
            return
        for host in self.hosts:
            if host not in self._round:
                self._round[host] = {"": UNKNOWN}
                self._known[host] = [UNKNOWN]
        if all(failure.final for found in self._round.values() for failure in found.values()):
            self._refused = self.began, {host: list(found.values()) for host, found in self._round.items()}

    def turned_away(self) -> bool:
        """Return whether servers closed the last connections without a greeting, and no other server may serve.

        Servers do so while they elect a leader, and for good if the client has seen a later change than they have.
        """
        known = [failure for found in self._known.values() for failure in found]
        return CLOSED in known and all(failure is CLOSED or failure.final for failure in known)

    def refusal(self, since: float) -> StoreError | None:
        """Return the error to raise if all servers refused in a round that began at `since` or later, else None."""
        began, found = self._refused
        return self._error(found) if began >= since else None

    def error(self) -> StoreError:
        """Return the error of a request that reached no server in time."""
        return self._error(dict(self._known))

    def _error(self, known: dict[Host, list[Failure]]) -> StoreError:
        found = {host: known.get(host, [UNTRIED]) for host in self.hosts}
        told = ", ".join(f"{_written(host)} ({_reasons(failures)})" for host, failures in found.items())
        if all(failure.distrust for failures in found.values() for failure in failures):
            return StoreError(f"no ZooKeeper server and client trust each other: {told}; {TRUST}")
        return StoreUnavailable(f"no ZooKeeper server can be reached: {told}; {CHECK}")


TRUST = "check ca, certfile, keyfile and the hosts in the URL, and whom the servers trust"
CHECK = (
    "check that they run and serve, that this machine may connect to them, and the hosts and ports in the URL, and "
    "whether they require TLS (use_ssl=true)"
)


def _written(host: Host) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"


def _reasons(failures: list[Failure]) -> str:
    return "; ".join(dict.fromkeys(failure.why for failure in failures))


CHUNK = 65536
"""How many bytes are received at once."""

MUCH = 4096
"""More bytes than a wake-up pipe usually contains."""

GREETING = 12
"""The number of bytes at the start of a server's first reply that end with the session's timeout."""


LONGEST_GREETING = 1024
"""More bytes than a server's first reply announces."""


class SlowError(Exception):
    """An operation of kazoo timed out."""


def shut_down(connection: socket.socket) -> None:
    """Shut a socket down, so that the thread that uses it fails."""
    with contextlib.suppress(OSError):  # not TLS's own shutdown: it makes a read in that thread fail in other ways
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class ZooKeeperConnection:
    """A connection to a server, which reads the session's timeout from the server's first reply.

    kazoo receives each reply in two parts, and waits for the socket before each of them. So all that has arrived is
    received at once, and kazoo gets its parts from here without a system call.
    """

    def __init__(self, connection: Any, attempts: Attempts, opened_at: float) -> None:  # noqa: ANN401 - a socket
        self._connection = connection
        self._attempts = attempts
        self._now = attempts.now
        self.opened_at = opened_at
        self.heard_at = opened_at
        """The instant at which data last arrived."""
        self._secured = isinstance(connection, ssl.SSLSocket)
        self._received: bytes = b""
        self._taken = 0
        """How much of the received data kazoo has taken."""
        self._send_timeout: float | None = None
        self.fileno = connection.fileno
        self.close = connection.close
        self.setblocking = connection.setblocking
        self._greeting = b""

    def recv(self, size: int) -> bytes:
        """Return received data, and receive more if there is none. kazoo asks for as much as the server announces.

        Raises ConnectionAbortedError if that is more than any reply of ZooKeeper.
        """
        if size > LONGEST_REPLY:
            raise ConnectionAbortedError("the server announces a reply longer than any of ZooKeeper")
        if self._taken == len(self._received):
            self._received, self._taken = self._receive(CHUNK), 0
        data = self._received[self._taken : self._taken + size]
        self._taken += len(data)
        return data

    def pending(self) -> int:
        """Return how many bytes can be taken without a wait: received ones, or of a record of TLS that was read."""
        left = len(self._received) - self._taken
        return left or (int(self._connection.pending()) if self._secured else 0)

    def _receive(self, size: int) -> bytes:
        """Receive data, and keep the start of the server's first reply."""
        data: bytes = self._connection.recv(size) if self.is_greeted() else self._receive_greeting(size)
        self.heard_at = self._now()
        return data

    def may_send(self, timeout: float | None) -> bool:
        """Return whether `send` waits by itself, for so many seconds, until the system takes data; not with TLS."""
        self._send_timeout = timeout
        return not self._secured

    def send(self, data: bytes) -> int:
        """Send data, and return how much was sent. Raises SlowError if the system took none for too long."""
        try:
            return int(self._connection.send(data))
        except BlockingIOError:
            ready = new_poll()
            ready.register(self._connection, WRITABLE)
            if not ready.poll(None if self._send_timeout is None else self._send_timeout * 1000):
                raise SlowError("socket time-out during write") from None
            return int(self._connection.send(data))

    def _receive_greeting(self, size: int) -> bytes:
        try:
            data: bytes = self._connection.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError):
            raise
        except OSError as error:  # with TLS, a server refuses a client only at the first read
            self._attempts.note(failure_of(error))
            raise
        if not data:
            self._attempts.note(CLOSED)
        self._greeting += data
        if int.from_bytes(self._greeting[:4], "big") > LONGEST_GREETING:
            self._attempts.note(CONFUSED)
            raise ConnectionAbortedError("the server does not greet as ZooKeeper does")
        if self.is_greeted():
            self._attempts.reached()
        return data

    def is_greeted(self) -> bool:
        """Return whether the server has accepted the session."""
        return len(self._greeting) >= GREETING

    def session_timeout(self) -> float:
        """Return how long the server keeps the session of a silent client, in seconds."""
        return int.from_bytes(self._greeting[8:GREETING], "big") / 1000

    def break_off(self) -> None:
        """Break the connection, so that the thread that uses it fails."""
        shut_down(self._connection)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a socket has
        return getattr(self._connection, name)


class Reminder:
    """The wake-up pipe of kazoo's thread, both ends of it. kazoo writes a byte per request, and reads it to send that.

    The requests are only counted here. A pair of sockets, as kazoo would use, buffers a few hundred bytes; then a
    sender blocks until the thread has sent some. If the thread itself sends a request, as it does for messages, it
    would block for ever. This pipe wakes the thread, however often, and never blocks.
    """

    def __init__(self) -> None:
        self.sockets = socket.socketpair()
        self._inside, self._outside = self.sockets
        for each in self.sockets:
            each.settimeout(0)
        self._requests = deque[None]()
        """One element per request: several threads could not count a number correctly."""
        self.fileno = self._inside.fileno
        self.thread = 0
        """The id of the thread that waits for this pipe."""

    def send(self, data: bytes) -> int:
        """Count a request, and wake the thread; the thread itself looks for requests before it waits."""
        self._requests.append(None)
        if threading.get_ident() != self.thread or self._outside.fileno() < 0:
            self.wake()
        return len(data)

    def recv(self, _size: int) -> bytes:
        """Remove a request from the count."""
        if self._requests:  # only the thread itself removes some
            self._requests.pop()
        return b"."

    def wake(self) -> None:
        """Wake the thread, which looks for noted work. Raises OSError once the pipe is closed."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full, which wakes the thread, too
            self._outside.send(b".")

    def clear(self) -> None:
        """Empty the pipe, so that later work wakes the thread again."""
        with contextlib.suppress(BlockingIOError):
            self._inside.recv(MUCH)

    def has_requests(self) -> bool:
        """Return whether there are requests to send."""
        return bool(self._requests)

    def close(self) -> None:
        """Close both ends."""
        for each in self.sockets:
            each.close()
