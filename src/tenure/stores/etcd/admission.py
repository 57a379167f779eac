"""The limit of concurrent requests: each needs a connection, and a client may have a thousand waiters."""

from collections import deque

from tenure.contracts.runtime import Event, Runtime


class Admission:
    """Admits a fixed number of requests at once, in the order in which they arrive."""

    def __init__(self, runtime: Runtime, count: int) -> None:
        """Create an admission with `count` free slots."""
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._free = count
        self._waiting: deque[Event] = deque()

    async def take(self, until: float, *, first: bool = False) -> bool:
        """Wait for a slot, with `first` before all others; return False if none was free by `until`."""
        with self._mutex:
            if self._free > 0:
                self._free -= 1
                return True
            slot = self._runtime.event()
            self._waiting.insert(0 if first else len(self._waiting), slot)
        taken = False
        try:
            taken = await slot.wait(until)
        finally:
            if not taken:
                self._give_up(slot)
        return taken

    def give_back(self) -> None:
        """Give the slot to the next request in the queue."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def _give_up(self, slot: Event) -> None:
        """Leave the queue. A slot that was given meanwhile goes to the next request."""
        with self._mutex:
            waits = slot in self._waiting
            if waits:
                self._waiting.remove(slot)
        if not waits:
            self.give_back()
