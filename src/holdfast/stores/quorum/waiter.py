"""Who was refused by a quorum, and when it asks again."""

from dataclasses import dataclass, field

from holdfast.stores.quorum.votes import Votes

RETRY = 0.03
"""About how many seconds later to ask again the first time; then longer, and each time by chance."""

LONGEST_RETRY = 0.24

FREE_AT_SOME = 0.004
"""About how many seconds later to ask again when the name is free at some node, but not at a majority yet."""


@dataclass(slots=True, eq=False)
class QuorumWaiter:
    """One of a client who was refused, and waits to be told that the name is free."""

    refused: int = 0
    """How often it was."""
    free_at: set[int] = field(default_factory=set[int])
    """The nodes that told it since it asked last."""
    stands_at: set[int] = field(default_factory=set[int])
    """The nodes in whose queues it stands."""
    last: Votes | None = None
    """What the nodes said last."""

    def pause(self, quorum: int) -> float:
        """Return about how many seconds later to ask again, if nothing is heard."""
        if len(self.free_at) >= quorum:
            return 0.0
        return FREE_AT_SOME if self.free_at else min(RETRY * 2 ** min(self.refused, 8), LONGEST_RETRY)

    def hear(self, node: int, quorum: int) -> float | None:
        """Note that the name is free at a node; return about how many seconds later to ask, if that changes anything.

        At once when it is free at a majority.
        """
        if node in self.free_at:
            return None
        self.free_at.add(node)
        known = len(self.free_at)
        return self.pause(quorum) if known in {1, quorum} else None
