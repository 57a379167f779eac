"""The agenda: instants by key, the earliest first. Each change takes time logarithmic in their number."""

from heapq import heapify, heappop, heappush

SPARE = 64
"""How many outdated entries are kept before all of them are removed."""


class Agenda:
    """The next instant of each key. The caller holds a mutex for every change but `drop`."""

    __slots__ = ("_heap", "entries")

    def __init__(self) -> None:
        """Start empty."""
        self.entries: dict[str, tuple[float, str]] = {}
        """The valid entries. Any thread may remove one at any time."""
        self._heap: list[tuple[float, str]] = []
        """All entries, with outdated ones: those that are not in `entries`."""

    def __len__(self) -> int:
        """Return how many keys have an instant."""
        return len(self.entries)

    def put(self, key: str, at: float) -> None:
        """Set the instant of a key, or replace it."""
        entry = self.entries[key] = (at, key)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self.entries) + SPARE:
            self._heap = list(self.entries.values())
            heapify(self._heap)

    def drop(self, key: str) -> None:
        """Remove a key. Any thread may do so at any time."""
        self.entries.pop(key, None)

    def first(self) -> tuple[float, str] | None:
        """Return the earliest instant and its key; None if there is none."""
        while self._heap:
            first = self._heap[0]
            if self.entries.get(first[1]) is first:
                return first
            heappop(self._heap)
        return None

    def take(self, by: float) -> str | None:
        """Remove and return the key with the earliest instant, if that instant is not after `by`; else return None."""
        first = self.first()
        if first is None or first[0] > by:
            return None
        heappop(self._heap)
        self.drop(first[1])
        return first[1]
