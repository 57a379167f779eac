"""What a face needs to know of the task that calls it.

Each function imports asyncio when it is called, so that a program of threads does not import asyncio.
"""

import sys
import weakref
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import asyncio


def in_event_loop() -> bool:
    """Tell whether this thread runs an event loop."""
    if "asyncio" not in sys.modules:
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def mark() -> object:
    """Return an object of the calling task alone, which does not keep the task alive; None outside a task."""
    from tenure.runtimes import aio

    return aio.mark()


def ended(of: object) -> bool:
    """Tell whether the task of a mark has ended."""
    task = cast("weakref.ref[asyncio.Task[object]]", of)() if isinstance(of, weakref.ref) else None
    return task is None or task.done()


class Guarded(Protocol):
    """A lease that a task has entered."""

    _guard: "BodyGuard | None"


def in_this_loop(lease: Guarded) -> bool:
    """Tell whether a lease was entered in the running event loop."""
    guard = lease._guard  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - not for users
    return guard is None or guard.is_here()


class BodyGuard:
    """Cancels the task in an `async with` block when its lease is lost, and recognises its own cancellation.

    This works as asyncio.timeout() does: a cancellation from elsewhere is never swallowed.
    """

    __slots__ = ("_armed", "_before", "_fired", "_task")

    def __init__(self) -> None:
        import asyncio

        task = asyncio.current_task()
        if task is None:
            message = "`async with` on a lease needs a task: run it in one, as asyncio.run() does"
            raise RuntimeError(message)
        self._task = task
        self._before = task.cancelling()
        self._armed = True
        self._fired = False

    def fire(self) -> None:
        """Cancel the task once, unless the block has ended."""
        if self._armed and not self._fired:
            self._fired = True
            self._task.cancel("the lease was lost")

    def is_here(self) -> bool:
        """Return whether the running event loop is that of the task."""
        import asyncio

        return self._task.get_loop() is asyncio.get_running_loop()

    def disarm(self) -> None:
        """Note that the block has ended: cancel nothing from now on."""
        self._armed = False

    def was_mine(self, error: BaseException | None) -> bool:
        """Tell whether `error` is the cancellation that `fire` caused, and no other."""
        if not self._fired:
            return False
        import asyncio

        self._fired = False
        foreign = self._task.uncancel() > self._before
        elsewhere = asyncio.current_task() is not self._task  # another task leaves the block: this was not for it
        return isinstance(error, asyncio.CancelledError) and not foreign and not elsewhere
