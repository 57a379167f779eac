"""What the nodes of a quorum say to one request: how it is counted, and how it is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.contracts.deadlines import seconds
from holdfast.contracts.messages import AcquireRequest, Busy, Granted, ReleaseRequest, Reply
from holdfast.contracts.owner_metadata import read_metadata
from holdfast.errors import StoreError, Vote
from holdfast.escaping import shown

SPAN = 16
"""How many tokens are reserved at most: the low bits of a token count through them."""

KINDS = 64
"""How many kinds of tokens there are. An attempt takes tokens of one kind only, which it draws."""

STEP = SPAN * KINDS
"""The distance of two tokens of a kind: about a millisecond, so that who proposes one is hardly ahead of the clock."""

RAISED, REFUSED = "raised", "refused"


def next_of_kind(least: int, kind: int) -> int:
    """Return the first token of a kind (0 to KINDS - 1) that is not below `least`."""
    return least + (kind * SPAN - least) % STEP


def vote_request(request: AcquireRequest, request_id: str, channel: str, proposal: int, span: int) -> AcquireRequest:
    """Return what an attempt asks a node: for a vote. In its own words, for `replace` takes four times as long."""
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
    """What the nodes said to one attempt, which they know by a request of its own."""

    request: AcquireRequest
    """What the nodes are asked, but for the channel."""
    base: str
    """The caller's request, of which this is an attempt."""
    quorum: int
    kind: int
    replies: list[Reply | Exception | None]
    """By node. None: not answered yet."""
    contended: int = 0
    """The token that was proposed: if a majority issues it, that is the token."""
    token: int = 0
    """The token that a majority has issued to it; 0 before that."""
    tokens: list[int] = field(default_factory=list[int])
    """By node: the token by which it holds, 0 if it is not known to. Kept from when it holds on."""
    revoked: set[int] = field(default_factory=set[int])
    """The nodes at which it was taken by force."""
    stands_at: set[int] = field(default_factory=set[int])
    """The nodes in whose queues its caller stood before."""
    ends_at: float = 0.0
    """When the nodes have let it lapse, unless it is renewed."""

    def for_channel(self, channel: str) -> AcquireRequest:
        """Return what a node is asked that pushes to this channel."""
        request = self.request
        return vote_request(request, request.request_id, channel, request.proposal, request.span)

    def are_clear(self) -> bool:
        """Tell whether it is certain by now whether a majority grants, and whether it issues the token proposed."""
        granted = exact = unheard = 0
        for reply in self.replies:
            if reply is None:
                unheard += 1
            elif type(reply) is Granted:
                granted += 1
                if reply.token == self.contended:
                    exact += 1
        quorum = self.quorum
        return exact >= quorum or granted + unheard < quorum or granted >= quorum > exact + unheard

    def granted(self) -> list[Granted]:
        """Return the grants."""
        return [reply for reply in self.replies if type(reply) is Granted]

    def may_hold(self, node: int) -> bool:
        """Tell whether a node may hold the name for it: it granted, or nobody knows."""
        reply = self.replies[node]
        return (
            reply is None
            or type(reply) is Granted
            or (isinstance(reply, Exception) and type(reply) is not NodeNotAsked)
        )

    def places(self) -> set[int]:
        """Return the nodes in whose queues its caller may stand."""
        if not self.request.wait:
            return set()
        return {node for node, reply in enumerate(self.replies) if type(reply) not in {NodeNotAsked, Granted}}

    def queued(self) -> set[int]:
        """Return the nodes in whose queues its caller stands though it was granted: who refused it, and earlier ones.

        One that has not answered yet drops it with the release.
        """
        places = set(self.stands_at)
        if self.request.wait:
            places |= {node for node, reply in enumerate(self.replies) if type(reply) is Busy}
        return {node for node in places if not self.certain(node)}

    def certain(self, node: int) -> bool:
        """Tell whether a node is known to have carried the request out."""
        return type(self.replies[node]) is Granted

    def enter(self, token: int) -> None:
        """Hold by a token that a majority has issued."""
        self.token = token
        self.tokens = [reply.token if type(reply) is Granted else 0 for reply in self.replies]

    def token_at(self, node: int) -> int:
        """Return the token by which a node holds it, as far as is known."""
        reply = self.replies[node]
        return self.tokens[node] or (reply.token if type(reply) is Granted else self.token)

    def release_at(self, node: int, release: ReleaseRequest) -> ReleaseRequest:
        """Return how a node is told to let go."""
        return ReleaseRequest(
            release.name, self.request.request_id, self.token_at(node), not self.certain(node), release.keep
        )

    def told(self, titles: Sequence[str]) -> tuple[Vote, ...]:
        """Tell what each node said, for people."""
        return tuple(Vote(title, say(reply)) for title, reply in zip(titles, self.replies, strict=True))


class NodeNotAsked(StoreError):
    """A node was not asked, for it does not vote just now."""


def say(reply: Reply | Exception | None) -> str:
    """Tell what a node said, for people."""
    if reply is None:
        return "had not answered yet"
    if isinstance(reply, Exception):
        return str(reply)
    if isinstance(reply, Granted):
        return "granted it"
    if isinstance(reply, Busy):
        if reply.quarantine:
            wait = f"{seconds(reply.quarantine):.1f} s"
            return f"gives no vote for another {wait}: it restarted or is new, and may have forgotten"
        owners = list(dict.fromkeys(read_metadata(holder).owner for holder in reply.holders))
        return f"held by {' and '.join(map(shown, owners))}" if owners else "kept from all by a lock delay"
    return "refused: it is in use as something else, or was given up"
