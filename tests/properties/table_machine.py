"""Histories of one name at the grant table, every step of them judged."""

# ruff: noqa: D102, PLR0917 - a rule's name says what happens; Hypothesis gives its arguments by name

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    NameView,
    ReleaseRequest,
    RenewRequest,
    WithdrawRequest,
)
from tenure.table.state import PLACEHOLDER, NameState, Queue
from tenure.table.step import Step
from tenure.table.times import TOMBSTONE
from tests.properties.model import LONGEST_DELAY, Answer, Judge, Request, RequestRevocation, Resize, Taken

CAPACITY = 3
CHANNELS = ("a", "b", "c")

picks = st.integers(0, 2**16)
lengths = st.sampled_from([1, 20, 100, 300, 300, 5_000_000])


def copy(state: NameState) -> NameState:
    """Copy a state, but for asks, which nobody changes."""
    return replace(
        state,
        holders=[replace(each) for each in state.holders],
        queue=Queue(replace(each) for each in state.queue),
        tombstones=dict(state.tombstones),
    )


class TableMachine(RuleBasedStateMachine):
    """One name, some clients, a clock, and whatever they can do to each other."""

    make: type[Step] = Step

    def __init__(self) -> None:
        super().__init__()
        self.state = NameState()
        self.now = 10_000
        self.wall = 50_000
        self.quarantined_until = 0
        self.forgotten: list[NameState] = []
        """What the store knew at earlier times."""
        self.tokens: dict[str, int] = {}
        """By request: the token by which it ever held."""
        self.open = set(CHANNELS)
        self.requests: list[AcquireRequest] = []
        self.judge = Judge()

    def take(self, message: Request, operation: Callable[[Step], Answer]) -> None:
        """Take one step, and have it judged."""
        before = copy(self.state)
        step = self.make(self.state, self.now, self.wall, self.listening, self.quarantined_until)
        answer = operation(step)
        self.state = step.state
        seen = (before, self.state, self.now, self.wall, message, answer, step.notifications, self.listening)
        self.judge.judge(Taken(*seen, self.quarantined_until, 0))
        self.tokens |= {holder.request_id: holder.token for holder in self.state.holders}

    def keep(self, request: AcquireRequest, ttl: int) -> None:
        """Take the step of a renewal that says what the lease came of."""
        renewal = RenewRequest("name", request.request_id, self.tokens[request.request_id], ttl, request)
        self.take(renewal, lambda step: step.renew(renewal))

    def let_go(self, release: ReleaseRequest) -> None:
        """Take the step of a release. No request holds a second time, and so none is kept for another time."""
        held = {each.request_id for each in self.state.holders}
        if {release.request_id, PLACEHOLDER + release.request_id} <= held:
            release = replace(release, keep=0)
        self.take(release, lambda step: step.release(release))

    def listening(self, channel: str) -> bool:
        """Tell whether somebody listens."""
        return not channel or channel in self.open

    def recent(self, pick: int) -> AcquireRequest:
        """Return one of the last few requests."""
        return self.requests[-1 - pick % min(len(self.requests), 6)]

    def token(self, request_id: str) -> int:
        """Return the token by which a request holds, or one that is not its own."""
        return next((each.token for each in self.state.holders if each.request_id == request_id), self.state.counter)

    @rule(
        channel=st.sampled_from([*CHANNELS, *CHANNELS, ""]),
        ttl=lengths,
        waiter_ttl=lengths,
        weight=st.sampled_from([1, 1, 2, 3]),
        capacity=st.sampled_from([CAPACITY] * 7 + [CAPACITY + 1]),
        lock_delay=st.sampled_from([0, 0, 0, LONGEST_DELAY]),
        proposal=st.sampled_from([0, 0, 60_000, 2**52]),
        wait=st.sampled_from([True, True, True, False]),
        span=st.sampled_from([1, 5]),
    )
    def ask(
        self,
        channel: str,
        ttl: int,
        waiter_ttl: int,
        weight: int,
        capacity: int,
        lock_delay: int,
        proposal: int,
        wait: bool,
        span: int,
    ) -> None:
        number = len(self.requests)
        request = AcquireRequest(
            "name",
            f"r{number}",
            channel,
            f"o{number}",
            ttl,
            max(1, ttl // 8),
            waiter_ttl,
            weight,
            capacity,
            lock_delay,
            proposal,
            wait,
            span,
        )
        self.requests.append(request)
        self.take(request, lambda step: step.acquire(request))

    @rule(
        weight=st.sampled_from([1, 2, 3]),
        lock_delay=st.sampled_from([0, 0, LONGEST_DELAY]),
        ttl=st.sampled_from([300, 300, 5_000_000]),
    )
    def a_crowd_comes(self, weight: int, lock_delay: int, ttl: int) -> None:
        for channel in CHANNELS:
            self.ask(channel, ttl, 300, weight, CAPACITY, lock_delay, 0, True, 5)

    @rule()
    def the_head_dies_and_all_holders_let_go(self) -> None:
        self.a_waiter_dies()
        for holder in list(self.state.holders):
            self.let_go(ReleaseRequest("name", holder.request_id, holder.token))

    @rule(pick=picks)
    def ask_again(self, pick: int) -> None:
        if self.requests:
            request = self.recent(pick)
            self.take(request, lambda step: step.acquire(request))

    @rule(pick=picks)
    def ask_again_of_one_who_waits(self, pick: int) -> None:
        if self.state.queue:
            request = self.state.queue[pick % len(self.state.queue)].request
            self.take(request, lambda step: step.acquire(request))

    @rule(pick=picks)
    def ask_again_of_one_who_holds(self, pick: int) -> None:
        held = {each.request_id for each in self.state.holders}
        if requests := [each for each in self.requests if each.request_id in held]:
            request = requests[pick % len(requests)]
            self.take(request, lambda step: step.acquire(request))

    @rule(pick=picks, unsure=st.booleans(), keep=st.sampled_from([0, 0, 40]))
    def release(self, pick: int, unsure: bool, keep: int) -> None:
        if self.requests:
            request_id = self.recent(pick).request_id
            self.let_go(ReleaseRequest("name", request_id, self.token(request_id), unsure, keep))

    @rule(pick=picks, keep=st.sampled_from([1, 40, 400]))
    def a_holder_is_too_quick(self, pick: int, keep: int) -> None:
        if self.state.holders:
            holder = self.state.holders[pick % len(self.state.holders)]
            release = ReleaseRequest("name", holder.request_id, holder.token, keep=keep)
            for _ in range(2):  # the first reply is lost
                self.let_go(release)

    @rule(before=st.sampled_from([CAPACITY, CAPACITY, 0, 1]), after=st.sampled_from([1, 2, CAPACITY, CAPACITY + 1]))
    def resize(self, before: int, after: int) -> None:
        before = before or self.state.capacity
        self.take(Resize(before, after), lambda step: step.resize(before, after))

    @rule()
    def request_revocation(self) -> None:
        self.take(RequestRevocation(), lambda step: step.request_revocation())

    @rule(pick=picks)
    def release_by_a_holder(self, pick: int) -> None:
        if self.state.holders:
            holder = self.state.holders[pick % len(self.state.holders)]
            self.let_go(ReleaseRequest("name", holder.request_id, holder.token))

    @rule(pick=picks, ttl=lengths)
    def renew(self, pick: int, ttl: int) -> None:
        if self.requests:
            request_id = self.recent(pick).request_id
            renewal = RenewRequest("name", request_id, self.token(request_id), ttl)
            self.take(renewal, lambda step: step.renew(renewal))

    @rule(pick=picks, ttl=lengths)
    def take_up(self, pick: int, ttl: int) -> None:
        if requests := [each for each in self.requests[-8:] if each.request_id in self.tokens]:
            self.keep(requests[pick % len(requests)], ttl)

    @rule(pick=picks, weight=st.sampled_from([0, 1, 1, 2, 3]), owner=st.sampled_from(["", "new"]))
    def adjust(self, pick: int, weight: int, owner: str) -> None:
        if self.requests:
            request_id = self.recent(pick).request_id
            self.change(AdjustRequest("name", request_id, self.token(request_id), weight, owner))

    @rule(pick=picks, weight=st.sampled_from([1, 2]), off=st.sampled_from([-1, 0, 0]))
    def a_holder_makes_room(self, pick: int, weight: int, off: int) -> None:
        if self.state.holders:
            holder = self.state.holders[pick % len(self.state.holders)]
            self.change(AdjustRequest("name", holder.request_id, holder.token + off, weight))

    def change(self, adjust: AdjustRequest) -> None:
        """Take the step of an adjustment."""
        self.take(adjust, lambda step: step.adjust(adjust))

    @rule()
    def a_copy_is_taken(self) -> None:
        self.forgotten.append(copy(self.state))

    @rule(pick=picks, quarantine=st.sampled_from([30, 300, 300]))
    def the_store_forgets(self, pick: int, quarantine: int) -> None:
        kept = [NameState(), *self.forgotten[-3:]]
        self.state = copy(kept[pick % len(kept)])
        self.judge.forgets(self.state)
        self.quarantined_until = self.now + quarantine

    @rule()
    def whoever_holds_takes_it_up_again(self) -> None:
        held = {each.request_id for each in self.state.holders}
        self.the_store_forgets(0, 300)
        for request in self.requests:
            if request.request_id in held:
                self.keep(request, 300)

    @rule(pick=picks, unsure=st.booleans())
    def withdraw(self, pick: int, unsure: bool) -> None:
        if self.requests:
            withdraw = WithdrawRequest("name", self.recent(pick).request_id, unsure)
            self.take(withdraw, lambda step: step.withdraw(withdraw))

    @rule()
    def revoke(self) -> None:
        self.take(None, lambda step: step.revoke())

    @rule()
    def look(self) -> None:
        before = copy(self.state)
        step = self.make(self.state, self.now, self.wall, self.listening)
        view = step.view("name")
        live = [each.token for each in before.holders if each.expires_at > self.now]
        assert isinstance(view, NameView)
        assert [each.token for each in view.holders] == live
        assert [each.owner for each in view.waiters] == [each.request.owner for each in before.queue]
        assert view.last_token == before.counter
        assert not step.notifications
        self.state = before  # as a store that looks at a snapshot

    @rule(by=st.integers(0, 30))
    def time_goes_by(self, by: int) -> None:
        self.now += by
        self.wall += by

    @rule(pick=picks, off=st.sampled_from([-1, 0, 0, 1]))
    def time_comes_to_an_end_of_something(self, pick: int, off: int) -> None:
        ends = [each.expires_at for each in self.state.holders] + [each.fresh_until for each in self.state.queue]
        ends += [self.state.blocked_until, *self.state.tombstones.values()]
        later = [end + off for end in ends if self.now <= end + off < self.now + TOMBSTONE // 2]
        if later:
            self.now = later[pick % len(later)]

    @rule()
    def time_goes_by_until_tombstones_fall(self) -> None:
        self.now += TOMBSTONE - 30

    @rule(by=st.integers(1, 5_000))
    def clock_steps_back(self, by: int) -> None:
        if self.now - by > 0:
            self.now -= by
            self.quarantined_until = min(self.quarantined_until, self.now + 300)
            self.judge.stepped_back = True

    @rule(by=st.integers(-20_000, 1_000))
    def wall_clock_steps(self, by: int) -> None:
        self.wall = max(1, self.wall + by)

    @rule()
    def a_waiter_dies(self) -> None:
        if self.state.queue:
            self.open.discard(self.state.queue[0].request.channel)

    @rule(channel=st.sampled_from(CHANNELS))
    def channel_opens_or_closes(self, channel: str) -> None:
        self.open ^= {channel}


class BargingTableMachine(TableMachine):
    """Some requests allow that they are passed for a time."""

    @rule(
        channel=st.sampled_from([*CHANNELS, *CHANNELS, ""]),
        waiter_ttl=st.sampled_from([20, 5_000_000, 5_000_000]),
        weight=st.sampled_from([1, CAPACITY, CAPACITY]),
        fair_after=st.sampled_from([5, 40, 2_000, 10_000]),
        wait=st.sampled_from([True, True, True, False]),
    )
    def one_comes_that_may_be_passed(
        self, channel: str, waiter_ttl: int, weight: int, fair_after: int, wait: bool
    ) -> None:
        number = len(self.requests)
        ids, sizes = (f"r{number}", channel, f"o{number}"), (weight, CAPACITY)
        times = (5_000_000, 600_000, waiter_ttl)
        request = AcquireRequest("name", *ids, *times, *sizes, wait=wait, fair_after=fair_after)
        self.requests.append(request)
        self.take(request, lambda step: step.acquire(request))

    @rule(fair_after=st.sampled_from([40, 2_000, 10_000]))
    def a_crowd_comes_that_may_be_passed(self, fair_after: int) -> None:
        for channel in CHANNELS:
            self.one_comes_that_may_be_passed(channel, 5_000_000, CAPACITY, fair_after, True)

    @rule()
    def all_holders_let_go(self) -> None:
        for holder in list(self.state.holders):
            self.let_go(ReleaseRequest("name", holder.request_id, holder.token))

    @rule(pick=picks, off=st.sampled_from([-1, 0, 1]))
    def time_comes_to_a_bound(self, pick: int, off: int) -> None:
        waiters = [each for each in self.state.queue if each.request.fair_after]
        ends = [each.joined_at + each.request.fair_after for each in waiters] + [each.quiet_until for each in waiters]
        ends += [each.joined_at + each.request.fair_after // 2 for each in waiters]
        later = sorted({end + off for end in ends if end + off > self.now})
        if later:
            self.wall += later[pick % len(later)] - self.now
            self.now = later[pick % len(later)]
