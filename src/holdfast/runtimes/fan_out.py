"""Requests to several servers side by side in one thread: all are sent, then the replies are taken as they come.

A coroutine that would block in place for a reply awaits `readable` instead, if it is run here. One that has not ended
when the caller has heard enough is put aside with its connection, which owes a reply: later calls look whether it has
come. If there are none, a thread looks, for it may have more to ask: a server may not know a script any more, and what
it has not heard may be that a lock is free.
"""

import contextlib
import inspect
import logging
import threading
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from holdfast.runtimes import clocks
from holdfast.transport.polling import READABLE, new_poll

log = logging.getLogger("holdfast")

OFTEN = 0.05
"""How often the thread looks, in seconds. It is seldom that anything has more to ask."""

LOOK_TIMEOUT = 20
"""How often it looks in vain before it ends: less than a start for each race, if races are frequent."""

Wait = tuple[int, float]
"""A descriptor to be read, and the steady instant until which to wait for that."""

Flight = tuple[Coroutine[Any, Any, Any], float, list[Any], int]
"""A coroutine that waits for a descriptor, until when, and where its result belongs."""


@types.coroutine
def readable(fileno: int, until: float) -> Generator[Wait, None, None]:
    """Wait until a descriptor can be read, or until a steady instant."""
    yield fileno, until


class FanOut:
    """The requests of one client that are asked side by side, by any of its threads."""

    def __init__(self) -> None:
        """Start with none."""
        self._aside: deque[tuple[int, Flight]] = deque()
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        """What looks after them, while there are some."""
        self._over = threading.Event()

    def race(
        self,
        works: Sequence[Coroutine[Any, Any, Any] | None],
        results: list[Any],
        least: int,
        enough: Callable[[], bool],
    ) -> None:
        """Run coroutines side by side until all have ended, or at least so many have and it is enough."""
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
                if self._thread is None:
                    self._have_tended()

    def settle(self, until: float) -> None:
        """Wait for the replies that nobody waits for, until a steady instant."""
        while self._aside and (left := until - clocks.steady()) > 0:
            self._look_aside(min(left, 0.05))

    def drop(self) -> None:
        """Close what has not ended, and look after nothing any more."""
        self._over.set()
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join()  # it waits for no server longer than a request may take
            self._thread = None
        while self._aside:
            with contextlib.suppress(IndexError):  # others take them meanwhile
                self._aside.popleft()[1][0].close()

    def is_tended(self) -> bool:
        """Tell whether a thread looks after what was put aside."""
        return self._thread is not None

    def _have_tended(self) -> None:
        with self._mutex:
            if self._thread is not None or self._over.is_set():
                return
            thread = threading.Thread(target=self._tend, name="holdfast-stragglers", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter shuts down
                return
            self._thread = thread

    def _tend(self) -> None:
        """Look again and again, until there has been nothing for a while."""
        in_vain = 0
        while in_vain < LOOK_TIMEOUT or self._is_needed():
            if self._over.wait(OFTEN):
                return
            in_vain = 0 if self._aside else in_vain + 1
            try:
                self._look_aside(0.0)
            except Exception:
                log.exception("a late reply could not be taken")

    def _is_needed(self) -> bool:
        """Tell whether something was put aside; else whoever does so from now on starts another thread."""
        with self._mutex:
            if not self._aside:
                self._thread = None
            return self._thread is not None

    def _look_aside(self, timeout: float) -> None:
        """Let go on what can, of that which was put aside."""
        in_flight = _InFlight()
        while self._aside:
            with contextlib.suppress(IndexError):  # others take them meanwhile
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
        """No later than when the first of them has waited long enough."""

    def wait_for(self, fileno: int, flight: Flight) -> None:
        self.flights[fileno] = flight
        self._poll.register(fileno, READABLE)
        self._first = min(self._first, flight[1])

    def step(self, work: Coroutine[Any, Any, Any], results: list[Any], place: int) -> bool:
        """Let a coroutine go on; return whether it is over."""
        try:
            wait: Wait = work.send(None)
        except StopIteration as end:
            results[place] = end.value
        except Exception as error:  # noqa: BLE001 - it is a result
            results[place] = error
        else:
            self.wait_for(wait[0], (work, wait[1], results, place))
            return False
        return True

    def take_what_came(self, timeout: float = float("inf")) -> int:
        """Wait until some can go on, and let them; return how many have ended."""
        if not self.flights:
            return 0
        left = min(self._first - clocks.steady(), timeout)
        ready = self._poll.poll(left * 1000.0 + 0.5 if left > 0.0 else 0.0)
        if not ready:
            ready = self._out_of_time()
        ended = 0
        for fileno, _ in ready:
            # Most races are over before a second look, so none is unregistered before that tells that it is too late.
            flight = self.flights.pop(fileno, None)
            if flight is None:
                self._poll.unregister(fileno)
            else:
                work, _, results, place = flight
                ended += self.step(work, results, place)
        return ended

    def _out_of_time(self) -> list[tuple[int, int]]:
        """Return those that have waited long enough."""
        now = clocks.steady()
        late = [(fileno, 0) for fileno, flight in self.flights.items() if flight[1] <= now]
        self._first = min((flight[1] for flight in self.flights.values() if flight[1] > now), default=float("inf"))
        return late
