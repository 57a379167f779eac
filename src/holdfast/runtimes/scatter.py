"""Requests to several servers side by side in one thread: all are sent, then the replies are gathered as they come.

A coroutine that would block in place for a reply awaits `Readable` instead, if it is run here. One that has not ended
when the caller has heard enough is closed where it waits (GeneratorExit): its connection then owes a reply.
"""

import select
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

from holdfast.runtimes import clocks

T = TypeVar("T")


class Readable:
    """A wait until a descriptor can be read, or until a steady instant."""

    __slots__ = ("fileno", "until")

    def __init__(self, fileno: int, until: float) -> None:
        """Wait for `fileno`."""
        self.fileno = fileno
        self.until = until

    def __await__(self) -> Generator["Readable", None, None]:
        yield self


class Scattered(Generic[T]):
    """Coroutines of which each has sent its request, and what they wait for."""

    def __init__(self) -> None:
        """Start with none."""
        self.results: list[T | Exception | None] = []
        self._waiting: dict[int, tuple[int, Coroutine[Any, Any, T], Readable]] = {}
        self._poll = select.poll()

    def start(self, works: Sequence[Coroutine[Any, Any, T]]) -> None:
        """Let all send their requests."""
        self.results = [None] * len(works)
        for number, work in enumerate(works):
            self._step(number, work)

    def is_over(self) -> bool:
        """Tell whether all have ended."""
        return not self._waiting

    def gather(self) -> None:
        """Wait until something can go on, and let it."""
        until = min(wait.until for _, _, wait in self._waiting.values())
        left = max(0.0, until - clocks.steady())
        ready = {fileno for fileno, _ in self._poll.poll(left * 1000.0 + 1.0)}
        now = clocks.steady()
        for fileno, (number, work, wait) in list(self._waiting.items()):
            if fileno in ready or wait.until <= now:
                del self._waiting[fileno]
                self._poll.unregister(fileno)
                self._step(number, work)

    def drop(self) -> None:
        """Close what has not ended."""
        for _, work, _ in self._waiting.values():
            work.close()
        self._waiting.clear()

    def _step(self, number: int, work: Coroutine[Any, Any, T]) -> None:
        try:
            wait = work.send(None)
        except StopIteration as end:
            self.results[number] = end.value
        except Exception as error:  # noqa: BLE001 - it is a result
            self.results[number] = error
        else:
            self._waiting[wait.fileno] = number, work, wait
            self._poll.register(wait.fileno, select.POLLIN)


def race(
    works: Sequence[Coroutine[Any, Any, T]], enough: Callable[[list[T | Exception | None]], bool]
) -> list[T | Exception | None]:
    """Run coroutines side by side until all have ended, or it is enough."""
    scattered = Scattered[T]()
    try:
        scattered.start(works)
        while not scattered.is_over() and not enough(scattered.results):
            scattered.gather()
    finally:
        scattered.drop()
    return scattered.results
