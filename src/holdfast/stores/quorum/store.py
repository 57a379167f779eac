"""The quorum store: Redlock, with fencing tokens.

A name is held by who holds it at a majority of independent nodes, each of which is a store that grants by ttl. All of
them are asked side by side, and the call ends as soon as a majority is certain or impossible.

https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ describes Redlock. What is added here:

*   **Fencing tokens**, by the strict-ack protocol (docs/tokens.md). The client proposes a token; a node grants with the
    least number that is larger than all that it ever issued, and no smaller than the proposal. If a majority granted
    with one and the same number, that is the token: one round trip. Else the client asks those that granted to raise
    theirs to one more than the largest that it saw, which each does if it has issued nothing as large; the raised
    number is the token once a majority did. So a node issues a number to one request at most, and its numbers grow;
    two majorities share a node; hence tokens are unique, and larger than that of whoever was done before.
*   A grant whose validity is not long enough any more when it is complete is none.
*   Votes that came to nothing are given back at once on every node, also where no answer came: a tombstone refuses what
    arrives late.
*   A renewal asks for a vote where a node has lost it. A node in quarantine gives none.
"""

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from holdfast.core.deadlines import micros, seconds
from holdfast.core.labels import read_label
from holdfast.core.messages import (
    Adjust,
    Ask,
    Busy,
    Gone,
    Granted,
    HolderView,
    Leave,
    Left,
    NameView,
    Notice,
    NoticeKind,
    Release,
    Renewal,
    RenewReply,
    Reply,
)
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.outcome import Outcome
from holdfast.runtimes.runtime import Runtime
from holdfast.stores.quorum.node import Node
from holdfast.stores.store import Capabilities, StoreSource

T = TypeVar("T")

log = logging.getLogger("holdfast")

LEAD = 20_000
"""How far ahead of the client's clock a token is proposed, in microseconds: by more than a request takes and the clocks
of the nodes disagree, so that the nodes issue what was proposed and not what their own clocks show."""

LEAST_VALIDITY = 0.5
"""Of a lease that is granted, at least so much must be left when the votes are counted."""

RETRY = 0.03
"""About how many seconds later to try again the first time; then longer, and each time by chance."""

LONGEST_RETRY = 0.24

GRACE = 0.05
"""How long the last nodes are waited for once a majority is there, in seconds."""

MOST_ENDED = 1000
"""Of how many requests it is remembered that they are over."""

MOST_TRIED = 1000
"""Of how many requests it is remembered how often they were tried."""


@dataclass(slots=True, eq=False)
class Votes:
    """What the nodes said to one request of one round."""

    name: str
    request: str
    """By which the nodes know it: that of the caller, and the number of the round."""
    tokens: list[int]
    """What each node granted it with, 0 if it is not known to."""
    token: int = 0
    """The token that a majority has issued to it; 0 before that."""
    asks: list[Ask] = field(default_factory=list[Ask])
    asked: set[int] = field(default_factory=set[int])
    """The nodes that may know of it."""
    revoked: set[int] = field(default_factory=set[int])
    """The nodes at which it was taken by force."""


class QuorumStore:
    """One client's access to the locks on a quorum."""

    def __init__(
        self, runtime: Runtime, sources: Sequence[StoreSource], quorum: int, operation_timeout: float = 1.0
    ) -> None:
        """Prepare; nothing is connected yet. A name is held by whoever has the votes of `quorum` nodes."""
        self.capabilities = capabilities_of(sources)
        self._runtime = runtime
        self._quorum = quorum
        self._nodes = [Node(runtime, source, operation_timeout) for source in sources]
        self._held: dict[str, Votes] = {}
        """By the caller's request: what it holds, or is just being asked for."""
        self._rounds = 0
        self._ended: dict[str, Outcome] = {}
        """What became of the requests that were released or given up of late."""
        self._tried: dict[str, int] = {}
        """How often a request has been refused, for those that were of late."""
        self._changed = runtime.event()
        self._deliver: Callable[[Notice], None] = _ignore

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, deliver: Callable[[Notice], None], until: float) -> str:
        """Connect to all nodes; a majority is enough to begin. Raises StoreUnavailable if there is none by `until`."""
        self._deliver = deliver
        for number, node in enumerate(self._nodes):
            node.begin(partial(self._hear, number), self._changed.set)
        while len(self._voting()) < self._quorum:
            self._changed.clear()
            if not await self._changed.wait(until) or self._runtime.now() >= until:
                raise StoreUnavailable(self._too_few())
        settled_by = min(until, self._runtime.now() + GRACE)
        while len(self._voting()) < len(self._nodes) and self._runtime.now() < settled_by:
            self._changed.clear()
            await self._changed.wait(settled_by)
        return ""

    async def close(self) -> None:
        """Disconnect from all nodes."""
        self._deliver = _ignore
        until = self._runtime.now() + 1.0
        for node in self._nodes:
            await node.close(until)

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        for node in self._nodes:
            node.store.abandon()

    # -- acquiring -----------------------------------------------------------------------------------------

    async def acquire(self, ask: Ask, until: float) -> Reply:
        """Ask all nodes; grant if a majority does. Otherwise nobody's vote is kept."""
        if ask.request in self._ended:
            return Gone()
        if (before := self._held.get(ask.request)) is not None:
            if before.token and (again := await self._keep_again(ask, before, until)) is not None:
                return again
            del self._held[ask.request]
            await self._give_back(before, until)  # an answer was not waited for: nobody knows what it brought
        sent = self._runtime.now()
        self._rounds += 1
        votes = Votes(ask.name, f"{ask.request}/{self._rounds:x}", [0] * len(self._nodes))
        proposal = max(ask.proposal, self._runtime.wall() + LEAD)
        votes.asks = [
            replace(ask, request=votes.request, inbox=node.inbox, proposal=proposal, wait=False) for node in self._nodes
        ]
        self._held[ask.request] = votes

        def begin(number: int, node: Node) -> Coroutine[Any, Any, Reply]:
            votes.asked.add(number)
            return node.store.acquire(votes.asks[number], until)

        replies = await self._ask_all(begin, self._is_clear)
        granted = {number: reply for number, reply in enumerate(replies) if isinstance(reply, Granted)}
        for number, reply in granted.items():
            votes.tokens[number] = reply.token
        if len(granted) >= self._quorum:
            votes.token = await self._agree(votes, until)
            ttl = min(reply.ttl for reply in granted.values())
            if votes.token and self._runtime.now() - sent < seconds(ttl) * (1 - LEAST_VALIDITY):
                return Granted(votes.token, ttl)
        await self._give_back(votes, until)
        self._held.pop(ask.request, None)
        return self._refusal(replies, ask.request)

    async def _keep_again(self, ask: Ask, votes: Votes, until: float) -> Granted | None:
        """Answer an ask of what is held already: renew it, if a majority still has it."""
        renewal = Renewal(ask.name, ask.request, votes.token, ask.first_ttl)
        kept = (await self.renew([renewal], until))[0] is None
        return Granted(votes.token, ask.first_ttl) if kept else None

    def _is_clear(self, replies: list[Reply | Exception | None]) -> bool:
        """Tell whether a majority granted, with one token; or cannot any more."""
        tokens = Counter(reply.token for reply in replies if isinstance(reply, Granted))
        if tokens and max(tokens.values()) >= self._quorum:
            return True
        open_yet = sum(reply is None for reply in replies)
        return tokens.total() + open_yet < self._quorum

    async def _agree(self, votes: Votes, until: float) -> int:
        """Return a token that a majority has issued to this request; 0 if there is none."""
        token, count = Counter(token for token in votes.tokens if token).most_common(1)[0]
        if count >= self._quorum:
            return token
        span = votes.asks[0].span
        token = max(votes.tokens) + span

        def ask_to_raise(number: int, node: Node) -> Coroutine[Any, Any, RenewReply] | None:
            if not votes.tokens[number]:
                return None
            adjust = Adjust(votes.name, votes.request, votes.tokens[number], raise_to=token)
            return node.store.adjust(adjust, until)

        async def wrapped(work: Coroutine[Any, Any, RenewReply]) -> str:
            return RAISED if await work is None else REFUSED

        def begin(number: int, node: Node) -> Coroutine[Any, Any, str] | None:
            work = ask_to_raise(number, node)
            return None if work is None else wrapped(work)

        replies = await self._ask_all(begin, self._is_raised)
        for number, reply in enumerate(replies):
            if reply == RAISED:
                votes.tokens[number] = token
        return token if sum(reply == RAISED for reply in replies) >= self._quorum else 0

    def _refusal(self, replies: Sequence[Reply | Exception | None], request: str) -> Reply:
        """Say why there is no majority."""
        busy = [reply for reply in replies if isinstance(reply, Busy)]
        if sum(isinstance(reply, Exception) for reply in replies) > len(self._nodes) - self._quorum:
            raise StoreUnavailable(self._too_few())
        for reply in replies:
            if reply is not None and not isinstance(reply, (Granted, Busy, Exception)):
                return reply
        holders = tuple(dict.fromkeys(holder for reply in busy for holder in reply.holders))
        quarantine = sorted((reply.quarantine for reply in busy), reverse=True)
        needed = len(self._nodes) - self._quorum
        if len(self._tried) >= MOST_TRIED:
            self._tried.clear()
        before = self._tried[request] = self._tried.get(request, -1) + 1
        retry_in = micros(min(RETRY * 2 ** min(before, 8), LONGEST_RETRY))
        return Busy(retry_in, holders, quarantine[needed] if len(quarantine) > needed else 0)

    # -- giving back ---------------------------------------------------------------------------------------

    async def _give_back(self, votes: Votes, until: float) -> None:
        """Have every node forget a request, whether or not it granted; wait for those that did."""
        leave = Leave(votes.name, votes.request, unsure=True)

        def give_back(number: int, node: Node) -> Coroutine[Any, Any, Left] | None:
            return node.store.leave(leave, until) if number in votes.asked else None

        await self._ask_all(give_back, lambda replies: _all_of(votes.tokens, replies))
        self._owe(votes, leave)

    def _owe(self, votes: Votes, leave: Leave) -> None:
        """Have the nodes that are in trouble forget a request when they are there again."""
        for number in votes.asked:
            if self._nodes[number].trouble:
                self._nodes[number].owe(leave)

    async def leave(self, leave: Leave, until: float) -> Left:
        """Give up."""
        votes = self._held.pop(leave.request, None)
        self._end(leave.request, Outcome.EXPIRED)
        if votes is not None:
            await self._give_back(votes, until)
        return Left()

    def _end(self, request: str, outcome: Outcome) -> None:
        """Remember of a request that it is over, and how: it may be asked again."""
        self._ended[request] = outcome
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    async def adjust(self, adjust: Adjust, until: float) -> RenewReply:
        """Change a holding at all nodes."""
        votes = self._held.get(adjust.request)
        if votes is None or votes.token != adjust.token:
            return Outcome.EXPIRED
        votes.asks = [replace(ask, owner=adjust.owner or ask.owner) for ask in votes.asks]

        async def change(number: int, node: Node) -> str:
            mine = replace(adjust, request=votes.request, token=votes.tokens[number])
            return RAISED if await node.store.adjust(mine, until) is None else REFUSED

        replies = Counter(reply for reply in await self._ask_all(change, self._is_raised) if isinstance(reply, str))
        if replies[RAISED] >= self._quorum:
            return None
        if replies[REFUSED] > len(self._nodes) - self._quorum:
            return Outcome.EXPIRED
        raise OutcomeUnknown(self._too_few())

    def _is_raised(self, replies: Sequence[object]) -> bool:
        raised = sum(reply == RAISED for reply in replies)
        return raised >= self._quorum or raised + sum(reply is None for reply in replies) < self._quorum

    async def release(self, release: Release, until: float) -> Outcome:
        """Let go on all nodes."""
        if (ended := self._ended.get(release.request)) is not None:
            return ended
        votes = self._held.get(release.request)
        if votes is None:  # of an earlier life: the nodes may know what became of it
            return self._fate(await self._ask_all(lambda _, node: node.store.release(release, until), self._is_settled))

        def let_go(number: int, node: Node) -> Coroutine[Any, Any, Outcome]:
            token = votes.tokens[number] or votes.token
            return node.store.release(
                Release(release.name, votes.request, token, unsure=True, keep=release.keep), until
            )

        outcomes = await self._ask_all(let_go, self._is_settled)
        self._owe(votes, Leave(release.name, votes.request, unsure=True))
        for number, token in enumerate(votes.tokens):
            if not token and outcomes[number] is Outcome.TAKEN_OVER:  # it may be that it granted us a larger one
                outcomes[number] = Outcome.EXPIRED
        outcome = self._fate(outcomes)
        self._held.pop(release.request, None)
        self._end(release.request, outcome)
        return outcome

    def _fate(self, outcomes: Sequence[Outcome | Exception | None]) -> Outcome:
        """Return what became of a lease, as the nodes see it. Raises OutcomeUnknown if too few of them tell."""
        told = Counter(outcome for outcome in outcomes if isinstance(outcome, Outcome))
        if told.total() < self._quorum:
            raise OutcomeUnknown(self._too_few())
        if told[Outcome.RELEASED] >= self._quorum:
            return Outcome.RELEASED
        return Outcome.TAKEN_OVER if told[Outcome.TAKEN_OVER] else Outcome.EXPIRED

    def _is_settled(self, outcomes: list[Outcome | Exception | None]) -> bool:
        return sum(outcome is Outcome.RELEASED for outcome in outcomes) >= self._quorum

    # -- keeping -------------------------------------------------------------------------------------------

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewReply]:
        """Renew on all nodes; and where one has lost its vote, ask for it again."""
        known = [(renewal, self._votes_of(renewal)) for renewal in renewals]

        async def renew(number: int, node: Node) -> list[RenewReply]:
            mine = [
                replace(renewal, ask=None)
                if votes is None
                else Renewal(renewal.name, votes.request, votes.tokens[number], renewal.ttl)
                for renewal, votes in known
            ]
            return await node.store.renew(mine, until)

        def is_clear(replies: list[list[RenewReply] | Exception | None]) -> bool:
            return all(self._count(replies, place) >= self._quorum for place in range(len(known)))

        replies = await self._ask_all(renew, is_clear)
        answered = sum(isinstance(reply, list) for reply in replies)
        results: list[RenewReply] = []
        for place, (_, votes) in enumerate(known):
            kept = self._count(replies, place)
            refused = answered - kept
            if kept >= self._quorum:
                results.append(None)
            elif votes is None or refused > len(self._nodes) - self._quorum:
                results.append(Outcome.TAKEN_OVER if _some_taken(replies, place) else Outcome.EXPIRED)
            else:
                raise OutcomeUnknown(self._too_few())
        await self._heal(known, replies, until)
        return results

    def _votes_of(self, renewal: Renewal) -> Votes | None:
        votes = self._held.get(renewal.request)
        return votes if votes is not None and votes.token == renewal.token else None

    def _count(self, replies: Sequence[list[RenewReply] | Exception | None], place: int) -> int:
        return sum(isinstance(reply, list) and reply[place] is None for reply in replies)

    async def _heal(
        self,
        known: Sequence[tuple[Renewal, Votes | None]],
        replies: Sequence[list[RenewReply] | Exception | None],
        until: float,
    ) -> None:
        """Ask for a vote again where a node has lost it, or has come back."""
        for place, (_, votes) in enumerate(known):
            if votes is None or self._count(replies, place) < self._quorum:
                continue
            lacking = {
                number for number, reply in enumerate(replies) if isinstance(reply, list) and reply[place] is not None
            }
            if not lacking:
                continue
            await self._vote_again(votes, lacking, until)

    async def _vote_again(self, votes: Votes, lacking: set[int], until: float) -> None:
        def ask(number: int, node: Node) -> Coroutine[Any, Any, Reply] | None:
            if number not in lacking:
                return None
            votes.asked.add(number)
            return node.store.acquire(votes.asks[number], until)

        for number, reply in enumerate(await self._ask_all(ask, lambda _: False)):
            if isinstance(reply, Granted):
                votes.tokens[number] = reply.token
                log.debug("the node %s has %r again", self._nodes[number].title, votes.name)

    # -- looking -------------------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Show who holds a name at a majority."""
        views = await self._views(lambda _, node: node.store.inspect(name, until))
        shown = NameView(name, 1, max(view.last_token for view in views))
        shown.holders = _majority([holder for view in views for holder in view.holders], self._needed(views))
        shown.blocked_for = max(view.blocked_for for view in views)
        return shown

    async def names(self, prefix: str, until: float) -> list[str]:
        """List the names that are in use at a majority."""
        found = await self._views(lambda _, node: node.store.names(prefix, until))
        counted = Counter(name for names in found for name in names)
        return sorted(name for name, count in counted.items() if count >= self._needed(found))

    async def revoke(self, name: str, until: float) -> list[HolderView]:
        """Take a name from its holders on all nodes."""
        found = await self._views(lambda _, node: node.store.revoke(name, until))
        return _majority([holder for holders in found for holder in holders], self._needed(found))

    async def ask_back(self, name: str, until: float) -> list[HolderView]:
        """Ask the holders of a name to let go."""
        found = await self._views(lambda _, node: node.store.ask_back(name, until))
        return _majority([holder for holders in found for holder in holders], self._needed(found))

    def _needed(self, answers: Sequence[object]) -> int:
        """Return how many of those that answered must know of something that a majority may know."""
        return max(1, self._quorum - (len(self._nodes) - len(answers)))

    async def acquire_many(self, asks: Sequence[Ask], until: float) -> list[Reply]:
        """Not in one step: the nodes would have to agree on all names at once."""
        raise NotImplementedError

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Not at all: a quorum keeps no semaphores."""
        raise NotImplementedError

    async def _views(self, ask: Callable[[int, Node], Coroutine[Any, Any, T]]) -> list[T]:
        replies = await self._ask_all(ask, lambda _: False)
        views = [reply for reply in replies if reply is not None and not isinstance(reply, Exception)]
        if len(views) < self._quorum:
            raise StoreUnavailable(self._too_few())
        return views

    # -- nodes ---------------------------------------------------------------------------------------------

    async def _ask_all(
        self,
        ask: Callable[[int, Node], Coroutine[Any, Any, T] | None],
        enough: Callable[[list[T | Exception | None]], bool],
    ) -> list[T | Exception | None]:
        """Ask those that vote, side by side. What did not answer, or was not asked, is an error."""
        asked: list[tuple[int, Coroutine[Any, Any, T]]] = []
        results: list[T | Exception | None] = []
        for number, node in enumerate(self._nodes):
            results.append(_not_asked(node))
            if not node.trouble and (work := ask(number, node)) is not None:
                asked.append((number, work))
        places = [number for number, _ in asked]

        def all_of(replies: list[T | Exception | None]) -> list[T | Exception | None]:
            for number, reply in zip(places, replies, strict=True):
                results[number] = reply
            return results

        replies = await self._runtime.race([work for _, work in asked], lambda replies: enough(all_of(replies)))
        for number, reply in enumerate(all_of(replies)):
            if isinstance(reply, StoreError) and number in places:
                self._nodes[number].failed(reply)
        return list(results)

    def _voting(self) -> list[Node]:
        return [node for node in self._nodes if not node.trouble]

    def _too_few(self) -> str:
        troubles = "; ".join(f"{node.title}: {node.trouble}" for node in self._nodes if node.trouble)
        return f"of {len(self._nodes)} nodes {len(self._voting())} vote, and {self._quorum} must: {troubles}"

    # -- pushes --------------------------------------------------------------------------------------------

    def _hear(self, number: int, notice: Notice) -> None:
        """Pass on what a node says to a holder, once enough of them say it."""
        request, _, _ = notice.request.rpartition("/")
        votes = self._held.get(request)
        if votes is None or votes.request != notice.request:
            return
        if notice.kind is NoticeKind.REVOKED:
            votes.revoked.add(number)
            if sum(token > 0 for token in votes.tokens) - len(votes.revoked) >= self._quorum:
                return
        self._deliver(replace(notice, request=request, token=votes.token))


RAISED, REFUSED = "raised", "refused"


def capabilities_of(sources: Sequence[StoreSource]) -> Capabilities:
    """Return what a quorum of stores can do. Semaphores are not among it: their permits could be given twice."""
    return Capabilities(
        min_ttl=max(source.capabilities.min_ttl for source in sources),
        queue=False,
        weights=False,
        local=False,
        pushes_count=False,
        max_ttl=min(source.capabilities.max_ttl for source in sources),
    )


def _not_asked(node: Node) -> Exception:
    return StoreUnavailable(node.trouble or "not asked")


def _all_of(tokens: Sequence[int], replies: Sequence[object]) -> bool:
    """Tell whether all nodes that granted have answered."""
    return all(reply is not None for token, reply in zip(tokens, replies, strict=True) if token)


def _some_taken(replies: Sequence[list[RenewReply] | Exception | None], place: int) -> bool:
    return any(isinstance(reply, list) and reply[place] is Outcome.TAKEN_OVER for reply in replies)


def _majority(holders: Sequence[HolderView], quorum: int) -> list[HolderView]:
    """Return those that hold at a majority, each as most of the nodes see it."""
    found: dict[str, list[HolderView]] = {}
    for holder in holders:
        found.setdefault(read_label(holder.owner).owner, []).append(holder)
    return [_most_said(seen) for seen in found.values() if len(seen) >= quorum]


def _most_said(seen: Sequence[HolderView]) -> HolderView:
    said = Counter(holder.owner for holder in seen).most_common(1)[0][0]
    return max((holder for holder in seen if holder.owner == said), key=lambda holder: holder.expires_in)


def _ignore(notice: Notice) -> None: ...
