"""What many need, and one has to see to."""

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.contracts.runtime import Event, Runtime


class SingleFlight:
    """Has one of those who need something see to it, while the others wait for that.

    What was begun goes on though its beginner is cancelled: the others wait for it.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Prepare; nothing is under way yet."""
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._under_way: Event | None = None

    async def fly(
        self, needed: Callable[[], bool], work: Callable[[], Coroutine[Any, Any, None]], until: float
    ) -> bool:
        """See to it, unless it is not needed by now; or wait for who does. Return whether nobody is at it any more.

        It may be needed all the same afterwards: look again, as after any wait. Raises what `work` raises, to who began
        it alone.
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
                self._end(mine)  # wherever it was interrupted
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

    async def settle(self, until: float) -> bool:
        """Wait for what is under way, if anything is; return whether it has ended."""
        with self._mutex:
            flight = self._under_way
        return flight is None or await flight.wait(until)
