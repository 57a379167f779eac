"""A waiter at a quorum: a request that was refused, and the time at which it is repeated."""

from dataclasses import dataclass, field

from tenure.stores.quorum.votes import Votes

RETRY = 0.03
"""The first re-poll delay in seconds; it doubles with each refusal, and a random factor applies."""

LONGEST_RETRY = 0.24

FREE_AT_SOME = 0.004
"""The re-poll delay, in seconds, when the name is free at some nodes but not yet at a majority."""


@dataclass(slots=True, eq=False)
class QuorumWaiter:
    """A request of this client that was refused, and waits for the news that the name is free."""

    refused: int = 0
    """How often it was refused."""
    free_at: set[int] = field(default_factory=set[int])
    """The nodes that reported the name as free since the last request."""
    stands_at: set[int] = field(default_factory=set[int])
    """The nodes in whose queues it stands."""
    last: Votes | None = None
    """The votes of the last attempt."""

    def pause(self, quorum: int) -> float:
        """Return the re-poll delay in seconds without the random factor."""
        if len(self.free_at) >= quorum:
            return 0.0
        return FREE_AT_SOME if self.free_at else min(RETRY * 2 ** min(self.refused, 8), LONGEST_RETRY)

    def hear(self, node: int, quorum: int) -> float | None:
        """Record that the name is free at a node; return the new re-poll delay in seconds, or None if it stays.

        The delay is 0 when the name is free at a majority.
        """
        if node in self.free_at:
            return None
        self.free_at.add(node)
        known = len(self.free_at)
        return self.pause(quorum) if known in {1, quorum} else None
