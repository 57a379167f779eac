"""The votes for one request: how they are counted, and how they are shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import AcquireRequest, Busy, Granted, ReleaseRequest, Reply
from tenure.contracts.owner_metadata import read_metadata
from tenure.errors import StoreError, Vote
from tenure.escaping import shown

SPAN = 16
"""How many tokens are reserved at most: the low bits of a token count through them."""

KINDS = 64
"""How many kinds of tokens there are. An attempt uses tokens of one kind only, which it draws at random."""

STEP = SPAN * KINDS
"""The distance between two tokens of a kind: about a millisecond, so that a proposal is hardly ahead of the clock."""

RAISED, REFUSED = "raised", "refused"


def next_of_kind(least: int, kind: int) -> int:
    """Return the first token of a kind (0 to KINDS - 1) that is at least `least`."""
    return least + (kind * SPAN - least) % STEP


def vote_request(request: AcquireRequest, request_id: str, channel: str, proposal: int, span: int) -> AcquireRequest:
    """Return the vote request of an attempt. It is written out because `replace` takes four times as long."""
    return AcquireRequest(
        request.name,
        request_id,
        channel,
        request.owner,
        request.ttl,
        request.interval,
        request.waiter_ttl,
        request.weight,
        request.capacity,
        request.lock_delay,
        proposal,
        request.wait,
        span,
        votes=True,
    )


@dataclass(slots=True, eq=False)
class Votes:
    """The replies of the nodes to one attempt, which has a request id of its own."""

    request: AcquireRequest
    """The request that is sent to the nodes, except for its channel."""
    base: str
    """The caller's request id, of which this is an attempt."""
    quorum: int
    kind: int
    replies: list[Reply | Exception | None]
    """The replies by node; None for a node that has not replied yet."""
    proposed: int = 0
    """The proposed token: if a majority issues it, it is the token of the lease."""
    token: int = 0
    """The token that a majority has issued; 0 before that."""
    tokens: list[int] = field(default_factory=list[int])
    """By node: the token of its vote, 0 if it is not known. Filled when the lease begins."""
    revoked: set[int] = field(default_factory=set[int])
    """The nodes at which the lease was revoked."""
    stands_at: set[int] = field(default_factory=set[int])
    """The nodes in whose queues the request stood before."""
    ends_at: float = 0.0
    """The instant at which the nodes let the lease expire, unless it is renewed."""

    def for_channel(self, channel: str) -> AcquireRequest:
        """Return the vote request for a node that pushes to this channel."""
        request = self.request
        return vote_request(request, request.request_id, channel, request.proposal, request.span)

    def are_clear(self) -> bool:
        """Return whether it is certain that a majority grants or not, and that it issues the proposed token or not."""
        granted = exact = unheard = 0
        for reply in self.replies:
            if reply is None:
                unheard += 1
            elif type(reply) is Granted:
                granted += 1
                if reply.token == self.proposed:
                    exact += 1
        quorum = self.quorum
        return exact >= quorum or granted + unheard < quorum or granted >= quorum > exact + unheard

    def granted(self) -> list[Granted]:
        """Return the grants."""
        return [reply for reply in self.replies if type(reply) is Granted]

    def may_hold(self, node: int) -> bool:
        """Return whether a node may hold a vote for this attempt: it granted, or its outcome is unknown."""
        reply = self.replies[node]
        return (
            reply is None
            or type(reply) is Granted
            or (isinstance(reply, Exception) and type(reply) is not NodeNotAsked)
        )

    def places(self) -> set[int]:
        """Return the nodes in whose queues the request may stand."""
        if not self.request.wait:
            return set()
        return {node for node, reply in enumerate(self.replies) if type(reply) not in {NodeNotAsked, Granted}}

    def queued(self) -> set[int]:
        """Return the nodes in whose queues a granted request still stands: those that refused it now or earlier.

        A node that has not replied yet drops the request with the release.
        """
        places = set(self.stands_at)
        if self.request.wait:
            places |= {node for node, reply in enumerate(self.replies) if type(reply) is Busy}
        return {node for node in places if not self.certain(node)}

    def certain(self, node: int) -> bool:
        """Return whether a node has certainly granted the request."""
        return type(self.replies[node]) is Granted

    def enter(self, token: int) -> None:
        """Begin the lease with a token that a majority has issued."""
        self.token = token
        self.tokens = [reply.token if type(reply) is Granted else 0 for reply in self.replies]

    def token_at(self, node: int) -> int:
        """Return the token of a node's vote, as far as it is known."""
        reply = self.replies[node]
        return self.tokens[node] or (reply.token if type(reply) is Granted else self.token)

    def release_at(self, node: int, release: ReleaseRequest) -> ReleaseRequest:
        """Return the release request for a node."""
        return ReleaseRequest(
            release.name, self.request.request_id, self.token_at(node), not self.certain(node), release.keep
        )

    def told(self, titles: Sequence[str]) -> tuple[Vote, ...]:
        """Return what each node said, for people to read."""
        return tuple(Vote(title, say(reply)) for title, reply in zip(titles, self.replies, strict=True))


class NodeNotAsked(StoreError):
    """The node got no request, because it does not vote now."""


def say(reply: Reply | Exception | None) -> str:
    """Describe a node's reply, for people to read."""
    if reply is None:
        return "had not replied yet"
    if isinstance(reply, Exception):
        return str(reply)
    if isinstance(reply, Granted):
        return "granted it"
    if isinstance(reply, Busy):
        if reply.quarantine:
            wait = f"{seconds(reply.quarantine):.1f} s"
            return f"gives no vote for another {wait}: it restarted or is new, and may have forgotten"
        owners = list(dict.fromkeys(read_metadata(holder).owner for holder in reply.holders))
        return f"held by {' and '.join(map(shown, owners))}" if owners else "blocked by a lock delay"
    return "refused: the name is in use with another capacity, or the request was withdrawn"
