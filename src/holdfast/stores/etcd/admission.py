"""How many requests are under way at once: each needs a connection, and a client may have a thousand waiters."""

from collections import deque

from holdfast.contracts.runtime import Event, Runtime


class Admission:
    """Lets in so many at once, in the order in which they came."""

    def __init__(self, runtime: Runtime, count: int) -> None:
        """Have all turns free."""
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._free = count
        self._waiting: deque[Event] = deque()

    async def take(self, until: float, *, first: bool = False) -> bool:
        """Wait for a turn, before all others if `first`; False if there was none in time."""
        with self._mutex:
            if self._free > 0:
                self._free -= 1
                return True
            turn = self._runtime.event()
            self._waiting.insert(0 if first else len(self._waiting), turn)
        taken = False
        try:
            taken = await turn.wait(until)
        finally:
            if not taken:
                self._give_up(turn)
        return taken

    def give_back(self) -> None:
        """Let the next one in."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def _give_up(self, turn: Event) -> None:
        """Wait no longer; a turn that was given meanwhile is the next one's."""
        with self._mutex:
            waits = turn in self._waiting
            if waits:
                self._waiting.remove(turn)
        if not waits:
            self.give_back()
