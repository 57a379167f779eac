"""Single flight: work that many callers need, and one of them does."""

from collections.abc import Callable, Coroutine
from typing import Any

from tenure.contracts.runtime import Event, Runtime


class SingleFlight:
    """Runs work that several callers need once, while the other callers wait for its end.

    The work goes on if the caller that started it is cancelled, for the others wait for it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._under_way: Event | None = None

    async def run(
        self, needed: Callable[[], bool], work: Callable[[], Coroutine[Any, Any, None]], until: float
    ) -> bool:
        """Run `work` if it is needed and not under way; else wait for its end. Return whether it has ended.

        The work may be needed again afterwards, so check, as after any wait. Only the caller that ran the work gets its
        error.
        """
        mine: Event | None = None
        try:
            with self._mutex:
                other = self._under_way
                if other is None:
                    if not needed():
                        return True
                    mine = self._runtime.event()
                    self._under_way = mine
            if mine is not None:
                await self._runtime.finish(self._carry_out(work, mine))
        except BaseException as error:
            if mine is not None and (isinstance(error, KeyboardInterrupt) or not self._runtime.goes_on):
                self._end(mine)  # the interruption may have come before the work began
            raise
        return other is None or await other.wait(until)

    async def _carry_out(self, work: Callable[[], Coroutine[Any, Any, None]], flight: Event) -> None:
        try:
            await work()
        finally:
            self._end(flight)

    def _end(self, flight: Event) -> None:
        with self._mutex:
            if self._under_way is flight:
                self._under_way = None
        flight.set()

    def under_way(self) -> bool:
        """Return whether work is under way."""
        return self._under_way is not None

    async def settle(self, until: float) -> bool:
        """Wait for the work that is under way; return whether it has ended, or there was none."""
        with self._mutex:
            flight = self._under_way
        return flight is None or await flight.wait(until)
