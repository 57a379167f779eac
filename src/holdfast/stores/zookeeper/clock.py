"""An estimate of the ensemble's time, which never runs ahead of it.

The time shows only in what is written. From when that was heard of, our own clock goes on, a little slower.
"""

from collections.abc import Callable

from holdfast.stores.zookeeper.library import Stat

PACE = 0.99
"""How fast our clock counts, so that it is slower than the ensemble's for certain."""

FRESH = 5.0
"""For how many seconds a time that was heard is good enough."""


class Clock:
    """The time at the ensemble, at the earliest."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ahead = float("-inf")
        """The time there, less `PACE` of ours; the greatest that was ever seen."""
        self._written_at = float("-inf")

    def see(self, stat: Stat) -> None:
        """Learn from a node: it is not in the future."""
        self._ahead = max(self._ahead, max(stat.ctime, stat.mtime) / 1000 - self._now() * PACE)

    def wrote(self, stat: Stat) -> None:
        """Learn from a node that was just written by us."""
        self.see(stat)
        self._written_at = self._now()

    def is_fresh(self) -> bool:
        """Tell whether the estimate is a good one."""
        return self._now() - self._written_at < FRESH

    def since(self, milliseconds: int) -> float:
        """Return for how many seconds an instant there is certainly past."""
        return max(0.0, self._ahead + self._now() * PACE - milliseconds / 1000)
