"""What one client holds on a quorum, and what became of what it held."""

import contextlib
from typing import Any

from holdfast.outcome import Outcome
from holdfast.stores.quorum.votes import Votes

MOST_ENDED = 1000
"""Of how many requests it is remembered that they are over."""


class VoteRegistry:
    """The requests of one client, by the id that its caller gave them. Used by several threads."""

    def __init__(self) -> None:
        """Know of none."""
        self.held: dict[str, Votes] = {}
        """What is held, or is just being asked for."""
        self._lost: dict[str, Votes] = {}
        """What was held of late, until that was lost, or its release not answered by enough."""
        self._ended: dict[str, Outcome] = {}
        """What became of the requests that were released or given up of late."""
        self._crowd = MOST_ENDED
        """With how many held to look for those that have lapsed."""

    def known(self, request_id: str) -> Votes | None:
        """Return the votes of what is held, or was of late."""
        return self.held.get(request_id) or self._lost.get(request_id)

    def valid(self, request_id: str, token: int) -> Votes | None:
        """Return the votes of what is held by this token."""
        votes = self.held.get(request_id)
        return votes if votes is not None and votes.token == token else None

    def outcome(self, request_id: str) -> Outcome | None:
        """Return what became of a request that is over, if that is still known."""
        return self._ended.get(request_id)

    def lose(self, request_id: str, votes: Votes) -> None:
        """Hold it no more, but remember for a while who may have to hear of its release."""
        self.held.pop(request_id, None)
        self._lost[request_id] = votes
        _forget_oldest(self._lost)

    def end(self, request_id: str, outcome: Outcome) -> None:
        """Hold it no more, and remember how it ended: it may be asked again."""
        self.held.pop(request_id, None)
        self._lost.pop(request_id, None)
        self._ended[request_id] = outcome
        _forget_oldest(self._ended)

    def forget_lapsed(self, now: float) -> None:
        """Hold no more what ran out, and was never released; looks only when much is held."""
        if len(self.held) <= self._crowd:
            return
        for request_id, votes in list(self.held.items()):
            if votes.token and votes.ends_at < now:
                self.lose(request_id, votes)
        self._crowd = max(MOST_ENDED, 2 * len(self.held))


def _forget_oldest(kept: dict[str, Any]) -> None:
    while len(kept) > MOST_ENDED:
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # other threads do the same
            del kept[next(iter(kept))]
