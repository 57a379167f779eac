"""Calls of Tenure within another call of Tenure, in one thread: by a signal handler, or by a `__del__`.

Such a call may come between any two lines, while its own thread holds a mutex or is in the middle of a change. It would
wait for itself. So each thread knows whether it is inside Tenure: while it drives an operation, and for all its life if
it is a thread of Tenure. A release that finds this runs in the background; every other operation is refused. Callbacks
of users are outside: they run where nothing is held.
"""

import threading  # noqa: TID251 - a mark belongs to its thread
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from tenure.contracts.runtime import NoThreadLeft, ShuttingDown
from tenure.errors import UsageError

T = TypeVar("T")


class _Life:
    """An object that lives as long as its thread."""

    __slots__ = ("__weakref__",)


class ThreadMark:
    """An object of one thread alone: unlike an ident, no later thread gets it again."""

    __slots__ = ("_life", "inside")

    def __init__(self, life: _Life) -> None:
        """Begin outside Tenure, in the thread that has `life`."""
        self.inside = False
        """Whether the thread is inside Tenure."""
        self._life = weakref.ref(life)

    def ended(self) -> bool:
        """Return whether the thread has ended."""
        return self._life() is None


class _Marks(threading.local):
    def __init__(self) -> None:
        self.life = _Life()
        self.mark = ThreadMark(self.life)


marks = _Marks()


def holds(mutex: Any) -> bool:  # noqa: ANN401 - the type of a mutex does not say who holds it
    """Return whether the calling thread holds `mutex`, which is one of `ThreadsRuntime.mutex`."""
    return bool(mutex._is_owned())  # noqa: SLF001 - as threading.Condition does


def is_inside(mutex: Any) -> bool:  # noqa: ANN401
    """Return whether the calling thread is inside Tenure, or holds `mutex`."""
    return bool(marks.mark.inside or mutex._is_owned())  # noqa: SLF001


def reentered() -> UsageError:
    """Make the error of an operation that is called inside another."""
    return UsageError(
        "this thread is in the middle of another call of Tenure: a signal handler or a `__del__` makes this one, and "
        "would wait for itself. Only release() may be called there, and runs in the background then. Let a handler set "
        "a flag or raise an error, and make this call where the flag is seen."
    )


def outside(callback: Callable[..., T], *arguments: object) -> T:
    """Call a callback of the user, which may use Tenure like any other code."""
    mark = marks.mark
    before = mark.inside
    try:
        mark.inside = False
        return callback(*arguments)
    finally:
        mark.inside = before


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread of Tenure.

    Raises ShuttingDown if the interpreter starts no more threads, NoThreadLeft if the system does not.
    """
    thread = threading.Thread(target=inside, args=(run,), name=f"tenure-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if "shutdown" in str(error):
            raise ShuttingDown(str(error)) from error
        if "start new thread" not in str(error):
            raise  # of a Condition that an interrupt left while it waited for the thread, which may run
        raise NoThreadLeft(
            f"this process could start no thread for Tenure ({error}): let it start fewer threads, or raise the limit "
            "of its user or container (`ulimit -u`, `pids.max`)"
        ) from error
    return thread


def inside(action: Callable[[], T]) -> T:
    """Call `action`, which is a part of Tenure that no operation drives."""
    mark = marks.mark
    before = mark.inside
    try:
        mark.inside = True
        return action()
    finally:
        mark.inside = before
