"""Requests to several servers side by side in one thread: all are sent, then the replies are taken as they come.

A coroutine that would block in place for a reply awaits `Readable` instead, if it is run here. One that has not ended
when the caller has heard enough is put aside with its connection, which owes a reply: later calls look whether it has
come.
"""

import contextlib
import select
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtimes import clocks


class Readable:
    """A wait until a descriptor can be read, or until a steady instant."""

    __slots__ = ("fileno", "until")

    def __init__(self, fileno: int, until: float) -> None:
        """Wait for `fileno`."""
        self.fileno = fileno
        self.until = until

    def __await__(self) -> Generator["Readable", None, None]:
        yield self


@dataclass(slots=True)
class _Flight:
    """A coroutine that has sent its request, what it waits for, and where its result belongs."""

    work: Coroutine[Any, Any, Any]
    wait: Readable
    results: list[Any]
    place: int

    def go_on(self) -> bool:
        """Take a step; return whether it is over."""
        try:
            self.wait = self.work.send(None)
        except StopIteration as end:
            self.results[self.place] = end.value
        except Exception as error:  # noqa: BLE001 - it is a result
            self.results[self.place] = error
        else:
            return False
        return True


class Scatter:
    """The requests of one client that are asked side by side, by any of its threads."""

    def __init__(self) -> None:
        """Start with none."""
        self._aside: deque[_Flight] = deque()

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
        flights: dict[int, _Flight] = {}
        poll = select.poll()
        ended = 0
        try:
            for place, work in enumerate(works):
                if work is None:
                    continue
                try:
                    wait = work.send(None)
                except StopIteration as end:
                    results[place] = end.value
                    ended += 1
                except Exception as error:  # noqa: BLE001 - it is a result
                    results[place] = error
                    ended += 1
                else:
                    flights[wait.fileno] = _Flight(work, wait, results, place)
                    poll.register(wait.fileno, select.POLLIN)
            while flights and not (ended >= least and enough()):
                ended += _take_what_came(poll, flights)
        finally:
            if flights:
                self._aside.extend(flights.values())

    def settle(self, until: float) -> None:
        """Wait for the replies that nobody waits for, until a steady instant."""
        while self._aside and (left := until - clocks.steady()) > 0:
            self._look_aside(min(left, 0.05))

    def drop(self) -> None:
        """Close what has not ended."""
        while self._aside:
            with contextlib.suppress(IndexError):  # others take them meanwhile
                self._aside.popleft().work.close()

    def _look_aside(self, patience: float) -> None:
        """Let go on what can, of that which was put aside."""
        flights: dict[int, _Flight] = {}
        poll = select.poll()
        while self._aside:
            with contextlib.suppress(IndexError):  # others take them meanwhile
                flight = self._aside.popleft()
                flights[flight.wait.fileno] = flight
                poll.register(flight.wait.fileno, select.POLLIN)
        try:
            _take_what_came(poll, flights, patience)
        finally:
            self._aside.extend(flights.values())


def _take_what_came(poll: "select.poll", flights: dict[int, _Flight], patience: float | None = None) -> int:
    """Wait until some can go on, and let them; return how many have ended."""
    if not flights:
        return 0
    left = min(flight.wait.until for flight in flights.values()) - clocks.steady()
    if patience is not None and patience < left:
        left = patience
    ready = [fileno for fileno, _ in poll.poll(left * 1000.0 + 0.5 if left > 0.0 else 0.0)]
    if not ready:
        now = clocks.steady()
        ready = [fileno for fileno, flight in flights.items() if flight.wait.until <= now]
    ended = 0
    for fileno in ready:
        poll.unregister(fileno)
        flight = flights.pop(fileno)
        if flight.go_on():
            ended += 1
        else:
            flights[flight.wait.fileno] = flight
            poll.register(flight.wait.fileno, select.POLLIN)
    return ended
