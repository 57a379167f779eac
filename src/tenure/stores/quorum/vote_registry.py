"""The vote registry: the votes for the leases of one client, and the outcomes of its ended requests."""

import contextlib
from typing import Any

from tenure.outcome import Outcome
from tenure.stores.quorum.votes import Votes

MOST_ENDED = 1000
"""How many ended requests are remembered."""


class VoteRegistry:
    """The votes of one client, by the caller's request id. Several threads use it."""

    def __init__(self) -> None:
        """Create an empty registry."""
        self.current: dict[str, Votes] = {}
        """The votes of leases, and of requests under way."""
        self._lost: dict[str, Votes] = {}
        """The votes of leases that were lost recently, or whose release got too few replies."""
        self._ended: dict[str, Outcome] = {}
        """The outcomes of requests that were released or withdrawn recently."""
        self._crowd = MOST_ENDED
        """The number of current votes at which expired ones are searched for."""

    def known(self, request_id: str) -> Votes | None:
        """Return the votes of a lease, current or recently lost."""
        return self.current.get(request_id) or self._lost.get(request_id)

    def valid(self, request_id: str, token: int) -> Votes | None:
        """Return the votes of the current lease with this token, or None."""
        votes = self.current.get(request_id)
        return votes if votes is not None and votes.token == token else None

    def outcome(self, request_id: str) -> Outcome | None:
        """Return the outcome of an ended request, if it is still remembered."""
        return self._ended.get(request_id)

    def lose(self, request_id: str, votes: Votes) -> None:
        """Move votes to the lost ones: their nodes may have to receive the release for a while."""
        self.current.pop(request_id, None)
        self._lost[request_id] = votes
        _forget_oldest(self._lost)

    def end(self, request_id: str, outcome: Outcome) -> None:
        """Drop the votes of a request, and remember its outcome: the request may be repeated."""
        self.current.pop(request_id, None)
        self._lost.pop(request_id, None)
        self._ended[request_id] = outcome
        _forget_oldest(self._ended)

    def forget_lapsed(self, now: float) -> None:
        """Drop the votes of leases that expired and were never released. It searches only if there are many."""
        if len(self.current) <= self._crowd:
            return
        for request_id, votes in list(self.current.items()):
            if votes.token and votes.ends_at < now:
                self.lose(request_id, votes)
        self._crowd = max(MOST_ENDED, 2 * len(self.current))


def _forget_oldest(kept: dict[str, Any]) -> None:
    while len(kept) > MOST_ENDED:
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # other threads do the same
            del kept[next(iter(kept))]
