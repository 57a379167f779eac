"""Wait until sockets can be read or written: by poll() where the system has it, by select() elsewhere, as on Windows.

poll() is preferred because it needs no descriptor of its own, which a forked child would share with its parent, and
because it takes any number of sockets.
"""

import contextlib
import select
from collections.abc import Callable
from typing import Protocol

READABLE: int = getattr(select, "POLLIN", 1)
WRITABLE: int = getattr(select, "POLLOUT", 4)
INVALID: int = getattr(select, "POLLNVAL", 32)
"""Reported for a descriptor that was closed while it was registered."""


class HasFileno(Protocol):
    """A socket, or whatever stands for one."""

    def fileno(self) -> int:
        """Return the descriptor; -1 once it is closed."""
        ...


class Poll(Protocol):
    """The part of `select.poll` that Tenure uses."""

    def register(self, fd: int | HasFileno, eventmask: int = ..., /) -> None:
        """Wait for events of a descriptor from now on. Raises ValueError if it is closed."""

    def unregister(self, fd: int | HasFileno, /) -> None:
        """Wait for it no more. Raises KeyError if it is not registered."""

    def poll(self, timeout: float | None = ..., /) -> list[tuple[int, int]]:
        """Return what is ready, as descriptors and events; wait for that so many milliseconds, or for ever."""
        ...


class SelectPoll:
    """Does what `select.poll` does, by means of `select.select`.

    On Windows, select() takes sockets alone, and at most 512 of them.
    """

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: int | HasFileno, eventmask: int = READABLE | WRITABLE, /) -> None:
        """Wait for events of a descriptor from now on. Raises ValueError if it is closed."""
        self._events[_number(fd)] = eventmask

    def unregister(self, fd: int | HasFileno, /) -> None:
        """Wait for it no more. Raises KeyError if it is not registered."""
        del self._events[_number(fd)]

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Return what is ready, as descriptors and events; wait for that so many milliseconds, or for ever."""
        try:
            readable, writable = self._select(timeout)
        except OSError:
            if closed := [number for number in self._events if _is_closed(number)]:
                return [(number, INVALID) for number in closed]
            raise
        return [
            (number, READABLE * (number in readable) | WRITABLE * (number in writable))
            for number in self._events
            if number in readable or number in writable
        ]

    def _select(self, timeout: float | None) -> tuple[set[int], set[int]]:
        readers = [number for number, mask in self._events.items() if mask & READABLE]
        writers = [number for number, mask in self._events.items() if mask & WRITABLE]
        seconds = None if timeout is None or timeout < 0 else timeout / 1000
        # On Windows, a connection that failed is told only by the third list.
        readable, writable, failed = select.select(readers, writers, [*self._events], seconds)
        return {*readable, *failed}, {*writable}


new_poll: Callable[[], Poll] = getattr(select, "poll", SelectPoll)
"""Return a Poll on which nothing is registered."""


def is_readable(connection: HasFileno) -> bool:
    """Tell whether something can be read now, or the other end has closed. Raises ValueError if it is closed here."""
    ready = new_poll()
    ready.register(connection, READABLE)
    return bool(ready.poll(0))


def _number(fd: int | HasFileno) -> int:
    number = fd if isinstance(fd, int) else fd.fileno()
    if number < 0:
        raise ValueError(f"the descriptor {number} cannot be waited for: it is closed")
    return number


def _is_closed(number: int) -> bool:
    with contextlib.suppress(OSError):
        select.select([number], [], [], 0)
        return False
    return True
