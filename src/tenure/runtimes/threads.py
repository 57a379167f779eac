"""The runtime of threads: run the protocol in the calling thread.

Every `async def` here blocks in place and never suspends, so `drive` runs a whole operation with one `send`: there is
no event loop and no second thread, and a traceback is an ordinary one.
"""

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from tenure.contracts.runtime import Datagrams, NoThreadLeft, ShuttingDown
from tenure.reentry import ThreadMark, inside, marks, reentered, start_thread
from tenure.runtimes import clocks, fan_out
from tenure.runtimes.real import DATAGRAM, RealWorld
from tenure.transport.polling import READABLE, new_poll

T = TypeVar("T")

log = logging.getLogger("tenure")


LOOKS_FOR_SIGNALS = 1.0
"""For how many seconds the main thread blocks at most before it looks for signals, which only it can handle.

A signal that comes just before a thread blocks does not wake it: Python would call the handler after the whole wait.
"""

CLOSING = 2.0
"""The longest that the end of listening waits for its thread, in seconds: a callback of the user's may block it."""

SUSPENDED = "a coroutine of the threads runtime suspended: await only the methods of this runtime and its stores"


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result.

    Raises UsageError if this thread is in the middle of another one: see `tenure.reentry`.
    """
    mark = marks.mark
    if mark.inside:
        work.close()
        raise reentered()
    try:
        mark.inside = True
        work.send(None)  # as in `complete`, without the cost of a call
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        mark.inside = False
    work.close()
    raise RuntimeError(SUSPENDED)


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends as a part of the present call, or of a thread of Tenure."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError(SUSPENDED)


def mark() -> object:
    """Return an object of this thread alone: unlike an ident, no later thread gets it again."""
    return marks.mark


def ended(of: object) -> bool:
    """Tell whether the thread of a mark has ended."""
    return isinstance(of, ThreadMark) and of.ended()


class ThreadFlag:
    """A flag that threads wait for.

    Each waiter blocks on a lock of its own, which `set` releases. This takes half the time of a threading.Event, and
    every local hand-off needs it. A deque's append, popleft and remove are atomic. A signal handler that raises in
    `set` leaves nothing locked; in a threading.Event it may leave the mutex locked for ever.
    """

    __slots__ = ("_raised", "_waiting", "when_set")

    def __init__(self) -> None:
        self._raised = False
        self.when_set: Callable[[], None] | None = None
        """Wakes the one thread that waits for this flag and for something else besides, if there is one."""
        self._waiting: deque[threading.Lock] = deque()

    def set(self) -> None:
        """Raise the flag and wake all waiters."""
        self._raised = True
        if (wake := self.when_set) is not None:
            wake()
        while self._waiting:
            try:
                baton = self._waiting[0]
            except IndexError:  # another thread sets the flag, too
                return
            with contextlib.suppress(RuntimeError):  # another thread has released the lock
                baton.release()
            with contextlib.suppress(ValueError):  # last, so that an interrupted caller can set the flag again
                self._waiting.remove(baton)

    def clear(self) -> None:
        """Lower the flag."""
        self._raised = False

    def is_set(self) -> bool:
        """Tell whether the flag is raised."""
        return self._raised

    def block(self, timeout: float | None = None) -> bool:
        """Wait for the flag for at most `timeout` seconds; woken, return True even if it was lowered since."""
        if self._raised:
            return True
        baton = threading.Lock()
        baton.acquire()
        self._waiting.append(baton)
        woken = False
        try:
            if not self._raised:  # `set` may have come before this waiter was in the deque
                woken = _take(baton, timeout)
        finally:
            if not woken:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(baton)
        return woken or self._raised


def _take(baton: threading.Lock, timeout: float | None) -> bool:
    """Acquire `baton` within `timeout` seconds; the main thread lets signal handlers run meanwhile."""
    left = threading.TIMEOUT_MAX if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
    if left > LOOKS_FOR_SIGNALS and threading.get_ident() == threading.main_thread().ident:
        end = clocks.steady() + left
        while left > LOOKS_FOR_SIGNALS:
            if baton.acquire(timeout=LOOKS_FOR_SIGNALS):
                return True
            left = max(0.0, end - clocks.steady())
    return baton.acquire(timeout=left)


class ThreadEvent(ThreadFlag):
    """A flag whose wait ends at an instant of the steady clock."""

    __slots__ = ()

    async def wait(self, until: float | None) -> bool:
        """Wait for the flag until a steady instant; woken, return True even if it was lowered since."""
        return self.block(None if until is None else until - clocks.steady())


class ThreadTask:
    """A daemon thread that drives one coroutine."""

    __slots__ = ("_thread",)

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def ended(self) -> bool:
        """Tell whether the thread has ended."""
        return not self._thread.is_alive()

    async def join(self, until: float | None) -> bool:
        """Wait for the thread's end until a steady instant."""
        if self._thread is not threading.current_thread():
            self._thread.join(None if until is None else max(0.0, until - clocks.steady()))
        return not self._thread.is_alive()


class ThreadsRuntime(RealWorld):
    """The runtime of `tenure.Client`."""

    form = "threads"
    goes_on = False

    def __init__(self) -> None:
        super().__init__()
        self._fan_out = fan_out.FanOut()

    def caller(self) -> tuple[object, str]:
        """Return this thread and its name."""
        thread = threading.current_thread()
        return thread, thread.name

    def mark(self) -> object:
        """Return an object of this thread alone."""
        return marks.mark

    def mutex(self) -> AbstractContextManager[Any]:
        """Make a mutex for a few instructions.

        A thread that holds it already does not wait for itself: a finalizer may look at a lease in between.
        """
        return threading.RLock()

    def event(self) -> ThreadEvent:
        """Make a lowered flag."""
        return ThreadEvent()

    async def sleep(self, seconds: float) -> None:
        """Block this thread for a number of seconds."""
        time.sleep(max(0.0, seconds))

    def spawn(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        *,
        or_here: bool = False,
        again: bool = False,  # noqa: ARG002 - nothing cancels a thread
    ) -> ThreadTask:
        """Drive `work()` in a daemon thread of its own."""

        def run() -> None:
            try:
                complete(work())
            except Exception:
                log.exception("%s ended by an error that it should have handled", name)

        try:
            return ThreadTask(start_thread(run, name))
        except (NoThreadLeft, ShuttingDown):
            if not or_here:
                raise
        inside(run)
        return ThreadTask(threading.current_thread())

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`: nothing can cancel a blocked thread."""
        return await work

    async def race(
        self,
        works: Sequence[Coroutine[Any, Any, T] | None],
        results: list[T | Exception | None],
        least: int,
        enough: Callable[[], bool],
    ) -> None:
        """Run all works in this thread, each as its replies come; put aside the works that have not ended."""
        self._fan_out.race(works, results, least, enough)

    async def settle(self, until: float) -> None:
        """Wait for the works that a race put aside."""
        self._fan_out.settle(until)
        self._fan_out.drop()

    def post(self, action: Callable[[], None]) -> bool:
        """Run `action` at once, in the calling thread."""
        inside(action)
        return True

    def listen(self, source: Datagrams, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Receive in a daemon thread until stopped."""
        stopped, stop = socket.socketpair()
        ready = new_poll()
        ready.register(source, READABLE)
        ready.register(stopped, READABLE)
        stop_sign = stopped.fileno()

        def run() -> None:
            while all(fd != stop_sign for fd, _ in ready.poll()):
                try:
                    receive(source.recv(DATAGRAM))
                except BlockingIOError:
                    continue
                except Exception:
                    log.exception("a notification could not be taken; the waiter will ask again by itself")
            stopped.close()

        try:
            thread = start_thread(run, "channel")
        except ShuttingDown:  # the waiters of this client repeat their requests, and hear nothing in between
            stopped.close()
            return stop.close
        except NoThreadLeft:
            stopped.close()
            stop.close()
            raise

        def close() -> None:
            stop.send(b".")  # closing is not enough: the thread does not notice while a forked child has a copy
            if thread is not threading.current_thread():
                thread.join(CLOSING)
            stop.close()

        return close
