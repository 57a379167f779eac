"""Requests to several servers side by side in one thread: all are sent, then the replies are taken as they come.

A coroutine that would block in place for a reply awaits `readable` instead, if it is run here. One that has not ended
when the caller has heard enough is put aside with its connection, which owes a reply: later calls look whether it has
come.
"""

import contextlib
import inspect
import select
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from holdfast.runtimes import clocks

Wait = tuple[int, float]
"""A descriptor to be read, and the steady instant until which to wait for that."""

Flight = tuple[Coroutine[Any, Any, Any], float, list[Any], int]
"""A coroutine that waits for a descriptor, until when, and where its result belongs."""


@types.coroutine
def readable(fileno: int, until: float) -> Generator[Wait, None, None]:
    """Wait until a descriptor can be read, or until a steady instant."""
    yield fileno, until


class Scatter:
    """The requests of one client that are asked side by side, by any of its threads."""

    def __init__(self) -> None:
        """Start with none."""
        self._aside: deque[tuple[int, Flight]] = deque()

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
        air = _Air()
        ended = 0
        try:
            for place, work in enumerate(works):
                if work is not None:
                    ended += air.step(work, results, place)
            while air.flights and not (ended >= least and enough()):
                ended += air.take_what_came()
        except BaseException:
            for each in works:
                if each is not None and inspect.getcoroutinestate(each) == inspect.CORO_CREATED:
                    each.close()
            raise
        finally:
            if air.flights:
                self._aside.extend(air.flights.items())

    def settle(self, until: float) -> None:
        """Wait for the replies that nobody waits for, until a steady instant."""
        while self._aside and (left := until - clocks.steady()) > 0:
            self._look_aside(min(left, 0.05))

    def drop(self) -> None:
        """Close what has not ended."""
        while self._aside:
            with contextlib.suppress(IndexError):  # others take them meanwhile
                self._aside.popleft()[1][0].close()

    def _look_aside(self, patience: float) -> None:
        """Let go on what can, of that which was put aside."""
        air = _Air()
        while self._aside:
            with contextlib.suppress(IndexError):  # others take them meanwhile
                air.wait_for(*self._aside.popleft())
        try:
            air.take_what_came(patience)
        finally:
            self._aside.extend(air.flights.items())


class _Air:
    """The coroutines that wait for replies, by descriptor."""

    __slots__ = ("_first", "_poll", "flights")

    def __init__(self) -> None:
        self.flights: dict[int, Flight] = {}
        self._poll = select.poll()
        self._first = float("inf")
        """No later than when the first of them has waited long enough."""

    def wait_for(self, fileno: int, flight: Flight) -> None:
        self.flights[fileno] = flight
        self._poll.register(fileno, select.POLLIN)
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

    def take_what_came(self, patience: float = float("inf")) -> int:
        """Wait until some can go on, and let them; return how many have ended."""
        if not self.flights:
            return 0
        left = min(self._first - clocks.steady(), patience)
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
