"""The quorum store: Redlock, with fencing tokens.

A client holds a name if it holds the name at a majority of independent nodes, each of which is a store that grants by
ttl. A request goes to all nodes in parallel, and the call ends as soon as a majority is certain or impossible.

https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ describes Redlock. This store adds:

*   **Fencing tokens**, by the strict-ack protocol (docs/tokens.md). An attempt draws a kind at random and proposes a
    token of that kind. A node issues the proposal, or its last token plus one if that is larger; so a node issues a
    number to one attempt at most, and its numbers grow. If a majority issued the proposal, it is the token: one round
    trip. Otherwise the attempt asks the nodes that granted to raise their tokens to the next token of its kind above
    all that it saw. A node does so if it has issued no token as large. The raised token is the token once a majority
    issued it. Two majorities share a node, so tokens are unique, and larger than those of all earlier leases.
*   A minimal validity: a grant that is complete too late in its ttl does not count.
*   The return of useless votes on every node, also on nodes that did not reply. A tombstone refuses a request that
    arrives late. A node that can't be reached receives the withdrawal when it is back, before it votes again.
*   Queues: a refused request stands in the queue of each node, in the same order everywhere. A node tells the first
    waiter that the name is free, and keeps the name for that waiter for a moment. A waiter that hears so from a
    majority repeats its request at once, else after a random time.
*   New votes with a renewal, where a node has lost its vote or gave none before: a lease lasts while a majority has it,
    not while those nodes have it that voted first. A node in quarantine does not vote.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from tenure.contracts.deadlines import micros, seconds
from tenure.contracts.findings import Finding, Report, ignore_findings
from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    CapacityMismatch,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Page,
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
    Reply,
    Withdrawn,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, Examinable, Forgetful, Store, StoreSource, renew_together
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.quorum.examining import examine_nodes
from tenure.stores.quorum.node import Node
from tenure.stores.quorum.node_set import NodeSet, Replies
from tenure.stores.quorum.views import majority, view_of
from tenure.stores.quorum.vote_registry import VoteRegistry
from tenure.stores.quorum.votes import KINDS, RAISED, REFUSED, SPAN, NodeNotAsked, Votes, next_of_kind, vote_request
from tenure.stores.quorum.waiter import QuorumWaiter

log = logging.getLogger("tenure")

LEAST_VALIDITY = 0.5
"""The part of a lease's ttl that must be left when the votes are counted."""

VOTE_TIMEOUT = 0.3
"""How long a request waits for the vote of a node that may decide it, in seconds."""


class QuorumStore:
    """One client's access to the locks on a quorum."""

    def __init__(
        self, runtime: Runtime, sources: Sequence[StoreSource], quorum: int, operation_timeout: float = 1.0
    ) -> None:
        """Prepare the store; nothing is connected yet. `quorum` nodes must vote for a request."""
        self.capabilities = capabilities_of(sources)
        self._runtime = runtime
        self._quorum = quorum
        self._node_set = NodeSet(runtime, sources, quorum, operation_timeout)
        self._nodes = self._node_set.nodes
        self._channel = runtime.new_id()
        self._vote_registry = VoteRegistry()
        self._waiters: dict[str, QuorumWaiter] = {}
        """The waiters by the caller's request id."""
        self._rounds = 0
        self._highest = 0
        """The largest token that was granted to this client."""
        self._deliver: Callable[[Notification], None] = _ignore
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        for node in self._nodes:
            if isinstance(node.store, Examinable):
                node.store.on_findings = self._note_findings

    def identity(self) -> str:
        """Return "": a quorum is several stores."""
        return ""

    def _note_findings(self, findings: Sequence[Finding]) -> None:
        self.on_findings(findings)

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect to all nodes; a majority is enough to begin. Raises StoreUnavailable if too few vote by `until`."""
        self._deliver = deliver
        await self._node_set.open(self._hear, until)
        return self._channel

    async def close(self) -> None:
        """Disconnect from all nodes."""
        self._deliver = _ignore
        await self._node_set.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._node_set.abandon()

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings of each node, and whether the nodes are independent."""
        return await examine_nodes(self._node_set, ttl, timeout)

    # -- acquire -------------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Send the request to all nodes, and grant it if a majority does. Otherwise return the votes."""
        if self._vote_registry.outcome(request.request_id) is not None:
            return Withdrawn()
        if (before := self._vote_registry.current.get(request.request_id)) is not None:
            if before.token and (again := await self._keep_again(request, before, until)) is not None:
                return again
            del self._vote_registry.current[request.request_id]
            await self._give_back(before, until)  # a reply was not awaited, so the vote of its node is unknown
        waiter = self._waiters.get(request.request_id)
        if waiter is not None:
            waiter.free_at.clear()
        sent = self._runtime.now()
        self._vote_registry.forget_lapsed(sent)
        until = min(until, sent + VOTE_TIMEOUT)
        votes = self._vote_registry.current[request.request_id] = self._propose(request)
        await self._node_set.send_to_all(
            [
                self._node_set.of(node, node.store.acquire, votes.for_channel(node.channel), until)
                for node in self._nodes
            ],
            votes.replies,
            votes.are_clear,
        )
        granted = votes.granted()
        if len(granted) >= self._quorum:
            votes.enter(await self._agree(votes, granted, until))
            ttl = min(reply.ttl for reply in granted)
            votes.ends_at = self._runtime.now() + seconds(ttl)
            if votes.token and self._runtime.now() - sent < seconds(ttl) * (1 - LEAST_VALIDITY):
                self._stop_waiting(request, votes)
                self._highest = max(self._highest, votes.token)
                return Granted(votes.token, ttl, any(reply.contended for reply in granted))
        await self._give_back(votes, until)
        self._vote_registry.current.pop(request.request_id, None)
        return self._refusal(request, votes)

    def _propose(self, request: AcquireRequest) -> Votes:
        """Begin an attempt. Its proposal is the current time, so a later request may overtake one that waited."""
        self._rounds += 1
        kind = int(self._runtime.random() * KINDS)
        proposal = next_of_kind(max(request.proposal, self._highest, self._runtime.wall()), kind)
        span = min(request.span, SPAN)
        request_id = f"{request.request_id}/{self._rounds:x}"
        mine = vote_request(request, request_id, "", proposal, span)
        replies: list[Reply | Exception | None] = [
            NodeNotAsked(node.ailment) if node.ailment else None for node in self._nodes
        ]
        return Votes(
            mine, request.request_id, self._quorum, kind, replies, proposal + span - 1, tokens=[0] * len(self._nodes)
        )

    async def _keep_again(self, request: AcquireRequest, votes: Votes, until: float) -> Granted | None:
        """Reply to a repeated request that has a lease: renew the lease, and grant if a majority still has it."""
        renewal = RenewRequest(request.name, request.request_id, votes.token, request.ttl)
        (reply,) = await renew_together(self, [renewal], until)
        return Granted(votes.token, request.ttl) if reply is None else None

    async def _agree(self, votes: Votes, granted: Sequence[Granted], until: float) -> int:
        """Return a token that a majority has issued to this attempt, or 0."""
        if sum(reply.token == votes.proposed for reply in granted) >= self._quorum:
            return votes.proposed
        span = votes.request.span
        token = next_of_kind(max(reply.token for reply in granted) + 1, votes.kind) + span - 1
        raised: Replies[str] = [None] * len(self._nodes)

        async def request_raise(node: Node, before: int) -> str:
            adjust = AdjustRequest(votes.request.name, votes.request.request_id, before, raise_to=token)
            return RAISED if await node.attempt(node.store.adjust, adjust, until) is None else REFUSED

        works = [
            request_raise(node, reply.token) if type(reply) is Granted and not node.ailment else None
            for node, reply in zip(self._nodes, votes.replies, strict=True)
        ]
        await self._node_set.send_to_all(works, raised, lambda: raised.count(RAISED) >= self._quorum)
        for number, reply in enumerate(raised):
            before = votes.replies[number]
            if reply == RAISED and type(before) is Granted:
                votes.replies[number] = replace(before, token=token)
        return token if raised.count(RAISED) >= self._quorum else 0

    def _refusal(self, request: AcquireRequest, votes: Votes) -> Reply:
        """Return or raise the reason why there is no majority."""
        replies, told = votes.replies, votes.told(self._node_set.titles)
        able = sum(not isinstance(reply, Exception) for reply in replies)
        if able < self._quorum:
            if self._node_set.refusal(replies):
                raise StoreError(self._node_set.short_of_votes(able, told))
            raise StoreUnavailable(self._node_set.short_of_votes(able, told), told)
        for reply in replies:
            if isinstance(reply, CapacityMismatch):  # Withdrawn: this attempt's own withdrawal overtook it
                return reply
        waiter = self._waiters.get(request.request_id) or QuorumWaiter()
        if request.wait:
            self._waiters[request.request_id] = waiter
            waiter.stands_at |= votes.places()
        busy = [reply for reply in replies if isinstance(reply, Busy)]
        holders = tuple(dict.fromkeys(holder for reply in busy for holder in reply.holders))
        quarantine = sorted((reply.quarantine for reply in busy), reverse=True)
        may_fail = self._node_set.may_fail
        quarantined = quarantine[may_fail] if len(quarantine) > may_fail else 0
        retry_in = micros(waiter.pause(self._quorum))
        waiter.refused += 1
        waiter.last = votes
        return Busy(retry_in, holders, quarantined, told, stands=request.wait)

    def _stop_waiting(self, request: AcquireRequest, votes: Votes) -> None:
        """Record the queues in which a granted request stood before; the release removes it from them."""
        if (waiter := self._waiters.pop(request.request_id, None)) is not None:
            votes.stands_at = waiter.stands_at

    # -- withdraw, adjust and release ----------------------------------------------------------------------

    async def _give_back(self, votes: Votes, until: float, among: Collection[int] | None = None) -> None:
        """Return the votes of an attempt on every node that may have granted it; wait for those that certainly did.

        With `among`, only the votes of these nodes are returned.
        """
        among = range(len(self._nodes)) if among is None else among
        granted = [number for number in among if votes.certain(number)]
        left: Replies[NotGranted] = [None] * len(self._nodes)
        works: list[Coroutine[Any, Any, NotGranted] | None] = []
        for number, node in enumerate(self._nodes):
            withdraw = WithdrawRequest(votes.request.name, votes.request.request_id, unsure=not votes.certain(number))
            works.append(
                self._node_set.tell(node, node.store.withdraw, withdraw, until, withdraw)
                if number in among and votes.may_hold(number)
                else None
            )
        await self._node_set.send_to_all(works, left, lambda: all(left[number] is not None for number in granted))

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Return the votes of a request, and remove it from all queues."""
        votes = self._vote_registry.current.get(withdraw.request_id)
        waiter = self._waiters.pop(withdraw.request_id, None)
        self._vote_registry.end(withdraw.request_id, Outcome.EXPIRED)
        places: set[int] = set() if waiter is None else waiter.stands_at
        if votes is not None:
            places |= votes.places()
            await self._give_back(votes, until)
        await self._leave_queues(withdraw.name, withdraw.request_id, places, until)
        if waiter is None or waiter.last is None:
            return NotGranted()
        return NotGranted(votes=waiter.last.told(self._node_set.titles))  # with the replies since its last refusal

    async def _leave_queues(self, name: str, base: str, places: set[int], until: float) -> None:
        withdraw = WithdrawRequest(name, base, unsure=False)
        left: Replies[NotGranted] = [None] * len(self._nodes)
        works = [
            self._node_set.tell(node, node.store.withdraw, withdraw, until, withdraw) if number in places else None
            for number, node in enumerate(self._nodes)
        ]
        await self._node_set.send_to_all(works, left, lambda: True)

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a lease on all nodes."""
        votes = self._vote_registry.valid(adjust.request_id, adjust.token)
        if votes is None:
            return Outcome.EXPIRED
        votes.request.owner = adjust.owner or votes.request.owner
        changed: Replies[str] = [None] * len(self._nodes)

        async def change(number: int, node: Node) -> str:
            mine = replace(adjust, request_id=votes.request.request_id, token=votes.token_at(number))
            return RAISED if await node.attempt(node.store.adjust, mine, until) is None else REFUSED

        works = [None if node.ailment else change(number, node) for number, node in enumerate(self._nodes)]
        await self._node_set.send_to_all(works, changed, lambda: changed.count(RAISED) >= self._quorum)
        if changed.count(RAISED) >= self._quorum:
            return None
        if changed.count(REFUSED) > self._node_set.may_fail:
            return Outcome.EXPIRED
        raise self._node_set.refusal(changed) or self._node_set.unknown()

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release the lease on all nodes."""
        if (ended := self._vote_registry.outcome(release.request_id)) is not None:
            return ended
        outcomes: Replies[Outcome] = [None] * len(self._nodes)
        votes = self._vote_registry.known(release.request_id)
        if votes is None:  # a request of an earlier store object: the nodes may know its outcome
            works = [self._node_set.of(node, node.store.release, replace(release), until) for node in self._nodes]
            await self._node_set.send_to_all(works, outcomes, lambda: outcomes.count(Outcome.RELEASED) >= self._quorum)
            return self._fate(outcomes)
        nothing: Replies[Outcome] = []
        await self._runtime.race((), nothing, 0, _enough)  # late replies tell which nodes hold a vote
        leaves = [WithdrawRequest(release.name, votes.request.request_id, unsure=True)]
        if votes.request.wait:
            leaves.append(WithdrawRequest(release.name, votes.base, unsure=False))
        may_hold = [votes.may_hold(number) for number in range(len(self._nodes))]
        works = [
            self._node_set.tell(node, node.store.release, votes.release_at(number, release), until, *leaves)
            if may_hold[number]
            else None
            for number, node in enumerate(self._nodes)
        ]
        if may_hold.count(True) < self._quorum:  # the other nodes have refused to renew the lease: it is over
            outcomes = [None if holds else Outcome.EXPIRED for holds in may_hold]
        await self._node_set.send_to_all(works, outcomes, lambda: outcomes.count(Outcome.RELEASED) >= self._quorum)
        for number, outcome in enumerate(outcomes):
            if outcome is Outcome.TAKEN_OVER and not votes.certain(number):  # the node may hold a larger token of ours
                outcomes[number] = Outcome.EXPIRED
        try:
            outcome = self._fate(outcomes)
        except OutcomeUnknown:
            self._vote_registry.lose(release.request_id, votes)
            raise
        self._vote_registry.end(release.request_id, outcome)
        if stands_at := votes.queued():
            await self._leave_queues(release.name, votes.base, stands_at, until)
        return outcome

    def _fate(self, outcomes: Sequence[Outcome | Exception | None]) -> Outcome:
        """Return the outcome of a lease according to the nodes. Raises OutcomeUnknown if too few nodes tell."""
        if outcomes.count(Outcome.RELEASED) >= self._quorum:
            return Outcome.RELEASED
        if sum(isinstance(outcome, Outcome) for outcome in outcomes) < self._quorum:
            raise self._node_set.unknown()
        return Outcome.TAKEN_OVER if Outcome.TAKEN_OVER in outcomes else Outcome.EXPIRED

    # -- renew ---------------------------------------------------------------------------------------------

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew leases on all nodes. A renewal is a vote too: a node that does not know a lease may vote for it now."""
        known = [(renewal, self._vote_registry.valid(renewal.request_id, renewal.token)) for renewal in renewals]
        replies: Replies[RenewReplies] = [None] * len(self._nodes)

        def mine(number: int) -> list[RenewRequest]:
            return [
                replace(renewal, request=None)
                if votes is None
                else RenewRequest(renewal.name, votes.request.request_id, votes.token_at(number), renewal.ttl)
                for renewal, votes in known
            ]

        batches = [mine(number) for number in range(len(self._nodes))]
        works = [
            self._node_set.of(node, node.store.renew, each, until)
            for node, each in zip(self._nodes, batches, strict=True)
        ]
        await self._node_set.send_to_all(
            works, replies, lambda: all(self._count(replies, place) >= self._quorum for place in range(len(known)))
        )
        results: list[RenewReply | StoreError] = []
        for place, (renewal, votes) in enumerate(known):
            kept = self._count(replies, place)
            if votes is not None and await self._vote_again(votes, renewal.ttl, replies, place, until):
                kept = max(kept, self._quorum)
            if kept >= self._quorum:
                if votes is not None:
                    votes.ends_at = self._runtime.now() + seconds(renewal.ttl)
                renewal.contended = any(each[place].contended for each in batches)
                results.append(None)
            elif votes is None or len(_refusals(replies, place)) > self._node_set.may_fail:
                if votes is not None:
                    self._vote_registry.lose(renewal.request_id, votes)
                renewal.refused_because = f"only {kept} of {len(self._nodes)} nodes still know the lease"
                taken = Outcome.TAKEN_OVER in _refusals(replies, place).values()
                results.append(Outcome.TAKEN_OVER if taken else Outcome.EXPIRED)
            else:
                results.append(self._node_set.refusal(replies) or self._node_set.unknown())
        return results

    def _count(self, replies: Replies[RenewReplies], place: int) -> int:
        """Return how many nodes renewed a lease."""
        return sum(isinstance(reply, Sequence) and reply[place] is None for reply in replies)

    async def _vote_again(
        self, votes: Votes, ttl: int, renewed: Replies[RenewReplies], place: int, until: float
    ) -> bool:
        """Request a vote from each node that replied and does not know the lease; return whether a majority has it.

        Such a node has lost its vote, or has come back, or was not needed before. Its vote counts only with the token
        of the lease: then the node has issued no larger token, so it took part in no later lease, and the lease was not
        revoked there. A lease without a majority is lost, so no request is sent if the votes could not suffice.

        The ttl is that of the renewal: the lease may have been extended, and its next renewal is due by that ttl.
        """
        lacking = set(_refusals(renewed, place))
        kept = self._count(renewed, place)
        if not lacking or kept + len(lacking) < self._quorum:
            return kept >= self._quorum
        request = replace(votes.request, ttl=ttl, proposal=votes.token - votes.request.span + 1, wait=False)
        replies: Replies[Reply] = [None] * len(self._nodes)
        works: list[Coroutine[Any, Any, Reply] | None] = [None] * len(self._nodes)
        for number in lacking:
            node = self._nodes[number]
            works[number] = self._node_set.of(node, node.store.acquire, replace(request, channel=node.channel), until)
            if works[number] is not None:
                votes.replies[number] = None

        def counted() -> int:
            return kept + sum(type(reply) is Granted and reply.token == votes.token for reply in replies)

        await self._node_set.send_to_all(works, replies, lambda: kept < self._quorum <= counted())
        for number in lacking:
            reply = replies[number]
            if reply is not None:
                votes.replies[number] = reply
            if isinstance(reply, Granted):
                votes.tokens[number] = reply.token
                log.debug("the node %s has %r again", self._node_set.titles[number], votes.request.name)
        if counted() < self._quorum:
            await self._give_back(votes, until, lacking)
            return False
        return True

    # -- inspect and revoke --------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Return who holds a name, and who waits for it, at a majority."""
        views = await self._node_set.views(lambda store: store.inspect, name, until)
        return view_of(name, views, self._node_set.needed(views))

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:  # noqa: ARG002 - there is none
        """Return all names in use at a majority, in one page. Each page of a node may take the whole given time."""
        timeout = max(0.0, until - self._runtime.now())
        found = await self._node_set.views(lambda store: partial(self._names_at, store, timeout), prefix, until)
        counted = Counter(name for names in found for name in names)
        return Page(sorted(name for name, count in counted.items() if count >= self._node_set.needed(found)))

    async def _names_at(self, store: Store, timeout: float, prefix: str, until: float) -> list[str]:
        """Return the names in use at one node."""
        page = await store.names(prefix, until)
        found = page.names
        while page.rest is not None:
            page = await store.names(prefix, self._runtime.now() + timeout, page.rest)
            found += page.names
        return found

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Revoke the leases of a name, or only the lease with a token, on all nodes."""
        found = await self._node_set.views(lambda store: partial(store.revoke, token=token), name, until)
        return majority(found, self._node_set.needed(found))

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request to the holders of a name."""
        found = await self._node_set.views(lambda store: store.request_revocation, name, until)
        return majority(found, self._node_set.needed(found))

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine of every node that replies; return the longest one in seconds."""

        def end(store: Store) -> Callable[[str, float], Coroutine[Any, Any, float]]:
            return lambda _name, until: cast("Forgetful", store).end_quarantine(until)

        return max(await self._node_set.views(end, "", until))

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Raise NotImplementedError: the nodes would have to agree on all names in one step."""
        raise NotImplementedError

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Raise NotImplementedError: a quorum has no semaphores."""
        raise NotImplementedError

    # -- notifications -------------------------------------------------------------------------------------

    def _hear(self, number: int, notification: Notification) -> None:
        """Deliver a node's notification, once it holds for a majority."""
        if notification.kind is NotificationKind.HEAD:
            self._hear_of_free_name(number, notification)
            return
        request_id, _, _ = notification.request_id.rpartition("/")
        votes = self._vote_registry.current.get(request_id)
        if notification.kind is NotificationKind.GAP:
            self._deliver(replace(notification, channel=self._channel))
            return
        if votes is None or votes.request.request_id != notification.request_id:
            return
        if notification.kind is NotificationKind.REVOKED:
            votes.revoked.add(number)
            if len(votes.granted()) - len(votes.revoked) >= self._quorum:
                return
        self._deliver(replace(notification, request_id=request_id, token=votes.token))

    def _hear_of_free_name(self, number: int, notification: Notification) -> None:
        """Have a waiter repeat its request: at once when the name is free at a majority, else a little later."""
        waiter = self._waiters.get(notification.request_id)
        after = None if waiter is None else waiter.hear(number, self._quorum)
        if after is not None:
            self._deliver(replace(notification, after=micros(after and after * (0.5 + self._runtime.random()))))


def capabilities_of(sources: Sequence[StoreSource]) -> Capabilities:
    """Return the capabilities of a quorum. It has no semaphores, because permits could be granted twice."""
    return Capabilities(
        min_ttl=max(source.capabilities.min_ttl for source in sources),
        queue=False,
        weights=False,
        runs_in_caller=False,
        pushes_count=False,
        max_ttl=min(source.capabilities.max_ttl for source in sources),
        span=SPAN,
        notifies_contention=True,
        barging=True,
    )


def _refusals(replies: Replies[RenewReplies], place: int) -> dict[int, Outcome]:
    """Return which nodes did not renew a lease, and why."""
    said = ((number, reply[place]) for number, reply in enumerate(replies) if isinstance(reply, Sequence))
    return {number: each for number, each in said if isinstance(each, Outcome)}


def _enough() -> bool:
    return True


def _ignore(notification: Notification) -> None: ...
