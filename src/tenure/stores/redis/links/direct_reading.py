"""A thread that waits for a message reads the listener's connection itself, if that pays.

A message that the listener's thread reads wakes that thread first, and then the one that waits: a thread switch that
costs about as much as all that the client does for a hand-off. So when a thread waits again and again, and no other
thread of the client waits, the listener *lends* it the connection: it reads nothing until it takes the connection back.

*   One thread at a time reads: the one whose mark stands in `_reader`. An interrupt at any instruction leaves either no
    mark or one that its owner removes.
*   The listener takes the connection back when another thread waits, when it has something to send, when a thread has
    read for READS_FOR without its event, and when no thread has read for IDLE. Until then a message for which no
    thread waits, as a revocation, may stay unread for IDLE.
*   A thread takes messages for waiters only, and leaves all others to the listener.
*   A thread that was interrupted while it read may have dropped a message. The listener then connects again, and
    reports a gap, as after any broken connection.
"""

from collections import deque
from collections.abc import Callable

from tenure.runtimes.threads import ThreadEvent
from tenure.stores.redis.links.sockets import BROKEN, RedisConnection
from tenure.transport.polling import READABLE, Poll, new_poll
from tenure.transport.wakeup_pipe import WakeUpPipe

OFTEN = 0.05
"""Within how many seconds of the end of a wait the next one begins, if a thread waits again and again."""

AGAIN = 2
"""How many such waits in a row let the listener lend the connection."""

IDLE = 0.05
"""For how many seconds nobody may read a connection that is lent."""

READS_FOR = 1.0
"""For how many seconds a thread reads for one event."""

_ROLE = "reader"


class DirectReading:
    """Decides which thread reads the connection of one listener. Any thread calls `wait`, the listener's all else."""

    def __init__(
        self, now: Callable[[], float], take: Callable[[RedisConnection], bool], wakeup_pipe: WakeUpPipe
    ) -> None:
        """Read by `take`, which returns whether the listener has something to do; wake the listener by its pipe."""
        self._now = now
        self._take = take
        self._wakeup_pipe = wakeup_pipe
        self._reader_pipe: WakeUpPipe | None = None
        """Wakes the thread that reads. Made when the connection is lent for the first time."""
        self._connection: RedisConnection | None = None
        self._ready: Poll | None = None
        """The poll of the thread that reads: for messages on the connection, and for a byte in the pipe."""
        self._reader: dict[str, object] = {}
        """The mark of the thread that reads, under one key, because `setdefault` is atomic."""
        self._lent = False
        self._recalled = False
        self._broken: Exception | None = None
        """Why the connection must not be used any more."""
        self._blocked: deque[ThreadEvent] = deque()
        """The events for which threads wait without reading."""
        self._waited_at = 0.0
        self._again = 0
        self._read_at = 0.0

    # -- any thread ----------------------------------------------------------------------------------------

    def wait(self, event: ThreadEvent, until: float | None) -> bool:
        """Wait for an event until a local instant, and read meanwhile if that pays; return whether it is set."""
        self._again = self._again + 1 if self._now() - self._waited_at < OFTEN else 0
        try:
            if self._lent and self._reader.setdefault(_ROLE, event) is event and self._read(event, until):
                return True
        finally:
            try:
                self._leave(event)
            finally:
                self._leave(event)  # again, in case the first call was interrupted
        try:
            self._blocked.append(event)
            if self._lent and _ROLE not in self._reader:
                self._wakeup_pipe.wake()  # nobody reads
            return event.block(None if until is None else until - self._now())
        finally:
            self._waited_at = self._now()
            if event in self._blocked:
                self._blocked.remove(event)

    def _read(self, event: ThreadEvent, until: float | None) -> bool:
        """Read until the event is set; return False if the listener has to go on."""
        connection, pipe, ready = self._connection, self._reader_pipe, self._ready
        if connection is None or pipe is None or ready is None:
            return False
        end = self._now() + READS_FOR
        if until is not None and until < end:
            end = until
        try:
            while True:
                event.when_set = pipe.wake  # so before the look, or who sets it just after that would wake nobody
                if event.is_set():
                    return True
                left = end - self._now()
                if left <= 0 or self._recalled:
                    return False
                came = ready.poll(left * 1000)
                event.when_set = None  # this thread looks again before it polls: its own message need not wake it
                for descriptor, _ in came:
                    if descriptor == pipe.fileno():
                        pipe.drain()
                    elif not self._take_from(connection):
                        return False
        finally:
            event.when_set = None

    def _take_from(self, connection: RedisConnection) -> bool:
        """Take the messages that came; return False if the connection is broken."""
        whole = False
        try:
            if self._take(connection):
                self._wakeup_pipe.wake()
            whole = True
        except BROKEN as error:
            self._broken = error
        finally:
            if not whole:
                self._broken = self._broken or ConnectionAbortedError("a thread was interrupted while it read")
                self._wakeup_pipe.wake()
        return whole

    def _leave(self, event: ThreadEvent) -> None:
        """Let others read, if this thread did; the listener, if it has to."""
        if self._reader.get(_ROLE) is event:
            self._read_at = self._waited_at = self._now()
            self._reader.pop(_ROLE, None)
            if self._blocked or self._recalled:
                self._wakeup_pipe.wake()

    # -- the listener --------------------------------------------------------------------------------------

    def begin(self, connection: RedisConnection) -> None:
        """Note a new connection, which the listener reads."""
        self._claim()
        self._broken = None
        self._connection = connection if connection.is_plain else None
        self._ready = None

    def end(self) -> None:
        """Note that the connection is about to be closed: nobody reads it any more."""
        self._connection = None

    def close(self) -> None:
        """Close what wakes a reader. No thread reads any more."""
        if self._reader_pipe is not None:
            self._reader_pipe.close()

    def may_begin(self) -> bool:
        """Return whether it pays to lend the connection: one thread waits again and again, and none does now."""
        if self._again < AGAIN or self._connection is None:
            return False
        return all(event.is_set() for event in list(self._blocked))

    def lend(self, is_stopped: Callable[[], bool]) -> None:
        """Let other threads read until the listener has something to do. Raises the error of a broken connection."""
        self._prepare()
        ready = new_poll()
        ready.register(self._wakeup_pipe, READABLE)
        self._read_at = self._now()
        self._lent = True
        self._reader.pop(_ROLE, None)
        try:
            while not is_stopped() and all(event.is_set() for event in list(self._blocked)):
                if ready.poll(IDLE * 1000):
                    break
                if _ROLE not in self._reader and self._now() - self._read_at > IDLE:
                    break
        finally:
            self._lent = False
            self._claim()
        if self._broken is not None:
            raise self._broken

    def _prepare(self) -> None:
        """Make the pipe that wakes a reader, and for each connection the poll of both."""
        if self._reader_pipe is None:
            self._reader_pipe = WakeUpPipe()
        if self._ready is None and self._connection is not None:
            ready = new_poll()
            ready.register(self._connection, READABLE)
            ready.register(self._reader_pipe, READABLE)
            self._ready = ready

    def _claim(self) -> None:
        """Become the reader; wait for the thread that reads, which stops at once."""
        ready = new_poll()
        ready.register(self._wakeup_pipe, READABLE)
        while self._reader.setdefault(_ROLE, self) is not self:
            self._recalled = True
            if self._reader_pipe is not None:
                self._reader_pipe.wake()
            ready.poll(1)
            self._wakeup_pipe.drain()
        self._recalled = False
