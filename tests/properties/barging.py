"""Histories of a store whose requests allow barging, beside those of `store_machine.py`."""

# ruff: noqa: D102, PLR0917 - a rule's name says what happens; Hypothesis gives its arguments by name

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tenure.contracts.messages import AcquireRequest, ReleaseRequest
from tests.properties.store_machine import NAMES, SECOND, StoreMachine, picks

bounds = st.sampled_from([500, 100_000, 100_000, 100_000, 2 * SECOND])


class BargingMachine(StoreMachine):
    """A store of which some requests allow that they are passed for a time; a base beside that of a store."""

    def barge(self, client: int, name: str, fair_after: int, waiter_ttl: int, wait: bool, span: int) -> None:
        channel, number = self.clients[client % 3].channel, len(self.requests)
        ids = (f"r{number}", channel, f"owner {number} é")
        self.requests.append(
            AcquireRequest(name, *ids, SECOND, SECOND // 8, waiter_ttl, wait=wait, span=span, fair_after=fair_after)
        )
        self.ask_again(client, 0)

    @rule(
        client=picks,
        name=st.sampled_from(NAMES[:2]),
        fair_after=bounds,
        waiter_ttl=st.sampled_from([50_000, SECOND, SECOND]),
        wait=st.sampled_from([True, True, True, False]),
        span=st.sampled_from([1, 1, 7]),
    )
    def one_comes_that_may_be_passed(
        self, client: int, name: str, fair_after: int, waiter_ttl: int, wait: bool, span: int
    ) -> None:
        self.barge(client, name, fair_after, waiter_ttl, wait, span)

    @rule(name=st.sampled_from(NAMES[:2]), fair_after=bounds, span=st.sampled_from([1, 7]))
    def a_crowd_comes_that_may_be_passed(self, name: str, fair_after: int, span: int) -> None:
        for client in range(3):
            self.barge(client, name, fair_after, SECOND, True, span)

    @rule(client=picks, pick=picks, fair_after=bounds)
    def a_holder_lets_go_and_comes_again(self, client: int, pick: int, fair_after: int) -> None:
        held = {each.request_id for name in NAMES if name in self.states for each in self.states[name].holders}
        if requests := [each for each in self.requests if each.request_id in held]:
            request = requests[pick % len(requests)]
            self.let_go(client, ReleaseRequest(request.name, request.request_id, self.token(request)))
            self.barge(client, request.name, fair_after, SECOND, True, 1)

    @rule(client=picks, pick=picks)
    def a_waiter_asks_again(self, client: int, pick: int) -> None:
        waiting = {each.request.request_id for state in self.states.values() for each in state.queue}
        if requests := [each for each in self.requests if each.request_id in waiting]:
            self.ask_again(client, self.requests[::-1].index(requests[pick % len(requests)]))

    @rule(pick=picks, off=st.sampled_from([-1, 0, 1]))
    def time_comes_to_a_bound(self, pick: int, off: int) -> None:
        waiters = [waiter for state in self.states.values() for waiter in state.queue if waiter.request.fair_after]
        ends = [waiter.joined_at + waiter.request.fair_after + off for waiter in waiters]
        ends += [waiter.quiet_until + off for waiter in waiters]
        if later := sorted({end for end in ends if end > self.clocks.now}):
            self.clocks.stamp += later[pick % len(later)] - self.clocks.now
            self.clocks.now = later[pick % len(later)]
