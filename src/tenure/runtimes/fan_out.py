"""Fan-out in one thread: send requests to several servers, then take the replies as they come.

A coroutine that blocks in place elsewhere awaits `readable` here. A coroutine that has not ended when the caller has
enough replies is put aside, with its connection, which still owes a reply. Later calls look for that reply, and a
thread does if no call comes: the coroutine may have more to send. For instance, a server may have lost a script that a
release needs.
"""

import contextlib
import inspect
import logging
import threading
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from tenure.reentry import start_thread
from tenure.runtimes import clocks
from tenure.transport.polling import READABLE, new_poll

log = logging.getLogger("tenure")

OFTEN = 0.05
"""How often the thread looks for replies, in seconds. A coroutine put aside seldom has more to send."""

LOOK_TIMEOUT = 20
"""How often the thread looks in vain before it ends, so that frequent races need not start a thread each."""

Wait = tuple[int, float]
"""A descriptor to read from, and the steady instant until which to wait for that."""

Flight = tuple[Coroutine[Any, Any, Any], float, list[Any], int]
"""A coroutine that waits for a descriptor, the end of its wait, and the list and place of its result."""


@types.coroutine
def readable(fileno: int, until: float) -> Generator[Wait, None, None]:
    """Wait until a descriptor can be read, or until a steady instant."""
    yield fileno, until


class FanOut:
    """The requests that the threads of one client run side by side."""

    def __init__(self) -> None:
        self._aside: deque[tuple[int, Flight]] = deque()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        """The thread that looks after the coroutines put aside, while there are some."""
        self._over = threading.Event()

    def race(
        self,
        works: Sequence[Coroutine[Any, Any, Any] | None],
        results: list[Any],
        least: int,
        enough: Callable[[], bool],
    ) -> None:
        """Run coroutines side by side until all have ended, or `least` of them have and `enough()` is true."""
        if self._aside:
            self._look_aside(0.0)
        in_flight = _InFlight()
        ended = 0
        try:
            for place, work in enumerate(works):
                if work is not None:
                    ended += in_flight.step(work, results, place)
            while in_flight.flights and not (ended >= least and enough()):
                ended += in_flight.take_what_came()
        except BaseException:
            for each in works:
                if each is not None and inspect.getcoroutinestate(each) == inspect.CORO_CREATED:
                    each.close()
            raise
        finally:
            if in_flight.flights:
                self._aside.extend(in_flight.flights.items())
                self._have_tended()

    def settle(self, until: float) -> None:
        """Wait for the coroutines put aside, until a steady instant."""
        while self._aside and (left := until - clocks.steady()) > 0:
            self._look_aside(min(left, 0.05))

    def drop(self) -> None:
        """Close the coroutines that have not ended, and end the thread."""
        self._over.set()
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join()  # the thread waits for a server no longer than a request may take
            self._thread = None
        while self._aside:
            with contextlib.suppress(IndexError):  # another thread took the last one meanwhile
                self._aside.popleft()[1][0].close()

    def is_tended(self) -> bool:
        """Tell whether a thread looks after the coroutines put aside."""
        return self._thread is not None

    def _have_tended(self) -> None:
        """Start the thread, unless it runs. It ends under the mutex, so it runs only if it will see what was added."""
        with self._mutex:
            if self._thread is not None or self._over.is_set():
                return
            with contextlib.suppress(RuntimeError):  # the interpreter shuts down
                self._thread = start_thread(self._tend, "stragglers")

    def _tend(self) -> None:
        """Look for replies again and again, until there has been nothing to look for in a while."""
        in_vain = 0
        while in_vain < LOOK_TIMEOUT or self._is_needed():
            if self._over.wait(OFTEN):
                return
            in_vain = 0 if self._aside else in_vain + 1
            try:
                self._look_aside(0.0)
            except Exception:
                log.exception("a late reply of a server could not be taken")

    def _is_needed(self) -> bool:
        """Tell whether a coroutine is put aside; if none is, the next one gets a new thread."""
        with self._mutex:
            if not self._aside:
                self._thread = None
            return self._thread is not None

    def _look_aside(self, timeout: float) -> None:
        """Continue the coroutines put aside whose replies have come."""
        in_flight = _InFlight()
        while self._aside:
            with contextlib.suppress(IndexError):  # another thread took the last one meanwhile
                in_flight.wait_for(*self._aside.popleft())
        try:
            in_flight.take_what_came(timeout)
        finally:
            self._aside.extend(in_flight.flights.items())


class _InFlight:
    """The coroutines that wait for replies, by descriptor."""

    __slots__ = ("_first", "_poll", "flights")

    def __init__(self) -> None:
        self.flights: dict[int, Flight] = {}
        self._poll = new_poll()
        self._first = float("inf")
        """A lower bound of the deadlines of all waits."""

    def wait_for(self, fileno: int, flight: Flight) -> None:
        self.flights[fileno] = flight
        self._poll.register(fileno, READABLE)
        self._first = min(self._first, flight[1])

    def step(self, work: Coroutine[Any, Any, Any], results: list[Any], place: int) -> bool:
        """Continue a coroutine; return whether it has ended."""
        try:
            wait: Wait = work.send(None)
        except StopIteration as end:
            results[place] = end.value
        except Exception as error:  # noqa: BLE001 - the error is a result
            results[place] = error
        else:
            self.wait_for(wait[0], (work, wait[1], results, place))
            return False
        return True

    def take_what_came(self, timeout: float = float("inf")) -> int:
        """Wait for replies, and continue their coroutines; return how many coroutines have ended."""
        if not self.flights:
            return 0
        left = min(self._first - clocks.steady(), timeout)
        ready = self._poll.poll(left * 1000.0 + 0.5 if left > 0.0 else 0.0)
        if not ready:
            ready = self._out_of_time()
        ended = 0
        for fileno, _ in ready:
            # Most races end before a second poll, so a descriptor is unregistered only when poll reports it in vain.
            flight = self.flights.pop(fileno, None)
            if flight is None:
                self._poll.unregister(fileno)
            else:
                work, _, results, place = flight
                ended += self.step(work, results, place)
        return ended

    def _out_of_time(self) -> list[tuple[int, int]]:
        """Return the descriptors whose waits have reached their deadlines."""
        now = clocks.steady()
        late = [(fileno, 0) for fileno, flight in self.flights.items() if flight[1] <= now]
        self._first = min((flight[1] for flight in self.flights.values() if flight[1] > now), default=float("inf"))
        return late
