"""Histories of the memcached store at an imitation of the server, and a judge of what clients may believe.

No item is evicted in these histories, and the server does not restart. Then at most one client believes in a lease of a
name, tokens grow though the clocks of the clients differ, and no request holds a name after its withdrawal.
"""

# ruff: noqa: D102 - a rule's name says what happens; Hypothesis gives its arguments by name

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tenure.contracts.messages import (
    AcquireRequest,
    Busy,
    Granted,
    ReleaseRequest,
    RenewRequest,
    WithdrawRequest,
)
from tenure.contracts.store import renew_together
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tenure.runtimes.threads import drive
from tests.memcached.imitation import Clock, FaultyLink, Imitation, VirtualRuntime, store_at

T = TypeVar("T")

NAMES: tuple[str, ...] = ("name", "名 \n")
SECOND = 1_000_000

picks = st.integers(0, 2**16)
ttls = st.sampled_from([2.0, 2.4, 5.0, 20.0])
pauses = st.sampled_from([0.01, 0.3, 0.7, 1.0, 1.7, 2.0, 5.0])
faults = st.sampled_from(["", "", "", "swallow", "delay"])
skips = st.sampled_from([0, 0, 1])


@dataclass
class Story:
    """A request, and what its client believes of it."""

    request: AcquireRequest
    client: int
    token: int = 0
    believes_until: float = 0.0
    renewals: int = 0
    let_go: bool = False
    """Whether its client has begun to release or to withdraw it."""
    released: bool = False
    withdrawn: bool = False
    revoked: bool = False


class MemcachedMachine(RuleBasedStateMachine):
    """Some clients of an imitation."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.imitation = Imitation(self.clock)
        self.links = [FaultyLink(self.imitation) for _ in range(2)]
        self.runtimes = [VirtualRuntime(self.clock, wrong=-3600.0 * number) for number in range(2)]
        self.stores = [store_at(*each) for each in zip(self.links, self.runtimes, strict=True)]
        self.stories: list[Story] = []
        self.last_tokens = dict.fromkeys(NAMES, 0)
        self.certainly_free = dict.fromkeys(NAMES, True)
        self.last_over: dict[str, Story] = {}
        """Whose end the record of a name shows."""

    # -- the judge ---------------------------------------------------------------------------------------------

    def _carry_out(self, client: int, operation: Coroutine[Any, Any, T], fault: str, skip: int) -> T | None:
        """Return the reply to an operation, or None if there is none."""
        link = self.links[client]
        if fault:
            setattr(link, fault, 1)
            link.skip = skip
        try:
            return drive(operation)
        except StoreUnavailable:
            return None
        finally:
            link.heal()

    def _believes(self, story: Story) -> bool:
        return self.clock.now < story.believes_until and not story.let_go

    def _alone(self, story: Story) -> None:
        rivals = [
            each
            for each in self.stories
            if each is not story and each.request.name == story.request.name and self._believes(each)
        ]
        assert not rivals, "two clients believe in a lease of one name"

    def _acquire(self, story: Story, fault: str, skip: int) -> None:
        name, sent, believed = story.request.name, self.clock.now, self._believes(story)
        free = self.certainly_free[name]
        self.last_over.pop(name, None)
        self.certainly_free[name] = False
        reply = self._carry_out(story.client, self.stores[story.client].acquire(story.request, sent + 9), fault, skip)
        if isinstance(reply, Granted):
            assert not story.withdrawn, "a withdrawn request is granted"
            if story.token and (believed or reply.token <= self.last_tokens[name]):
                assert reply.token == story.token, "a repeated request has another token"
            else:
                assert reply.token > self.last_tokens[name], "tokens do not grow"
                self.last_tokens[name] = story.token = reply.token
            story.believes_until = max(story.believes_until, sent + reply.ttl / SECOND)
            self._alone(story)
        elif reply is not None:
            assert not free, f"a free name is refused: {reply}"
            if isinstance(reply, Busy):
                assert not self._believes(story), "a holder is told that its name is busy"

    # -- the rules ---------------------------------------------------------------------------------------------

    @rule(client=st.integers(0, 1), name=st.sampled_from(NAMES), ttl=ttls, fault=faults, skip=skips)
    def acquire(self, client: int, name: str, ttl: float, fault: str, skip: int) -> None:
        runtime = self.runtimes[client]
        request_id = runtime.new_id()
        proposal = runtime.wall()
        request = AcquireRequest(
            name, request_id, "", request_id, round(ttl * SECOND), 20_000, 4_000_000, proposal=proposal
        )
        self.stories.append(Story(request, client))
        self._acquire(self.stories[-1], fault, skip)

    @precondition(lambda self: self.stories)
    @rule(pick=picks, fault=faults, skip=skips)
    def acquire_again(self, pick: int, fault: str, skip: int) -> None:
        story = self.stories[-1 - pick % min(len(self.stories), 3)]
        if not story.let_go:
            self._acquire(story, fault, skip)

    @precondition(lambda self: any(story.token for story in self.stories))
    @rule(pick=picks, ttl=ttls, fault=faults, skip=skips)
    def renew(self, pick: int, ttl: float, fault: str, skip: int) -> None:
        held = [story for story in self.stories if story.token and not story.let_go]
        if not held:
            return
        story, sent = held[-1 - pick % min(len(held), 3)], self.clock.now
        believed = self._believes(story)
        renewal = RenewRequest(
            story.request.name, story.request.request_id, story.token, round(ttl * SECOND), story.request
        )
        replies = self._carry_out(
            story.client, renew_together(self.stores[story.client], [renewal], sent + 9), fault, skip
        )
        if replies is None:
            return
        if replies[0] is None:
            assert self.last_tokens[story.request.name] == story.token, "a lease is renewed that another followed"
            story.believes_until = max(story.believes_until, sent + renewal.ttl / SECOND)
            self._alone(story)
        else:
            assert not believed, f"the lease of a holder is not renewed: {replies[0]}"
            story.believes_until = 0.0

    @precondition(lambda self: any(story.token for story in self.stories))
    @rule(pick=picks, fault=faults, skip=skips)
    def release(self, pick: int, fault: str, skip: int) -> None:
        held = [story for story in self.stories if story.token]
        story = held[-1 - pick % min(len(held), 3)]
        believed, name = self._believes(story), story.request.name
        release = ReleaseRequest(name, story.request.request_id, story.token, unsure=True)
        rivals = [each for each in self.stories if each is not story and self._believes(each)]
        story.let_go = True
        store = self.stores[story.client]
        outcome = self._carry_out(story.client, store.release(release, self.clock.now + 9), fault, skip)
        if outcome is None:
            return
        assert not (story.revoked and release.unrevoked_for), "a lease that was revoked is told to be unrevoked"
        if believed or (story.released and self.last_over.get(name) is story):
            assert outcome is Outcome.RELEASED, f"the release of a holder is answered by {outcome}"
        if self.last_tokens[name] > story.token:
            assert outcome is Outcome.TAKEN_OVER, f"a lease that another followed is answered by {outcome}"
        elif outcome is Outcome.RELEASED and not story.released:
            story.released = True
            self.last_over[name] = story
            self.certainly_free[name] = not self._has_ghosts()
        for rival in rivals:
            view = drive(store.inspect(rival.request.name, self.clock.now + 9))
            assert [holder.token for holder in view.holders] == [rival.token], "a release took a name from its holder"

    def _has_ghosts(self) -> bool:
        return any(link.ghosts for link in self.links)

    @precondition(lambda self: self.stories)
    @rule(pick=picks, fault=faults, skip=skips)
    def withdraw(self, pick: int, fault: str, skip: int) -> None:
        story = self.stories[-1 - pick % min(len(self.stories), 3)]
        if story.token:
            return
        story.let_go = True
        self.last_over.pop(story.request.name, None)
        withdraw = WithdrawRequest(story.request.name, story.request.request_id, unsure=True)
        store = self.stores[story.client]
        reply = self._carry_out(story.client, store.withdraw(withdraw, self.clock.now + 9), fault, skip)
        story.withdrawn = story.withdrawn or reply is not None

    @precondition(lambda self: self.stories)
    @rule(client=st.integers(0, 1), name=st.sampled_from(NAMES))
    def revoke(self, client: int, name: str) -> None:
        holders = drive(self.stores[client].revoke(name, self.clock.now + 9))
        if holders:
            for story in self.stories:
                if story.request.name == name and story.token == holders[0].token:
                    story.let_go = story.revoked = True
            self.last_tokens[name] = max(self.last_tokens[name], holders[0].token + 1)
            self.certainly_free[name] = False

    @rule(seconds=pauses)
    def pause(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(late=st.booleans())
    def the_server_counts(self, late: bool) -> None:
        self.imitation.be_late(late=late)

    @precondition(lambda self: self._has_ghosts())
    @rule()
    def ghosts_arrive(self) -> None:
        for link in self.links:
            link.arrive()
        self.certainly_free = dict.fromkeys(NAMES, False)
        self.last_over.clear()
        for name in NAMES:
            view = drive(self.stores[0].inspect(name, self.clock.now + 9))
            owners = [holder.owner for holder in view.holders]
            over = [story.request.request_id for story in self.stories if story.withdrawn or story.released]
            assert not set(owners).intersection(over), "a late copy of a request that is over holds the name"
