"""An estimate of the ensemble's time that is never ahead of it.

ZooKeeper tells its time only in the nodes that it writes. From then on the local clock continues, a little slower.
"""

from collections.abc import Callable

from tenure.stores.zookeeper.library import Stat

PACE = 0.99
"""The rate of the local clock in the estimate; it is certainly slower than the ensemble's clock."""

FRESH = 5.0
"""How many seconds after a write the estimate is exact enough."""


class Clock:
    """The earliest time that the ensemble may have."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ahead = float("-inf")
        """The ensemble's time minus `PACE` times the local time: the largest difference seen so far."""
        self._written_at = float("-inf")

    def see(self, stat: Stat) -> None:
        """Learn from the times of a node: they are not in the future."""
        self._ahead = max(self._ahead, max(stat.ctime, stat.mtime) / 1000 - self._now() * PACE)

    def wrote(self, stat: Stat) -> None:
        """Learn from the times of a node that this client has just written."""
        self.see(stat)
        self._written_at = self._now()

    def is_fresh(self) -> bool:
        """Return whether the estimate is exact enough."""
        return self._now() - self._written_at < FRESH

    def since(self, milliseconds: int) -> float:
        """Return how many seconds have certainly passed since an instant of the ensemble."""
        return max(0.0, self._ahead + self._now() * PACE - milliseconds / 1000)
