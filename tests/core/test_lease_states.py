"""The states of a lease: the transition table, and that a lease follows it in every order of events."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import AsyncClient
from tenure.contracts.deadlines import NEVER
from tenure.contracts.messages import AcquireRequest
from tenure.core import lease as module
from tenure.core.lease import EXPIRED, TRANSITIONS, CoreLease, Grant, LeaseEvent, LeaseState
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tests import virtual

SECOND = 1_000_000
TTL = 10.0

Happening = tuple[LeaseEvent, Callable[[CoreLease], object]]


class StoppedRuntime:
    """A runtime whose clock stands still until a test moves it."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        """Return the time."""
        return self.time

    def post(self, action: Callable[[], None]) -> bool:
        """Run at once."""
        action()
        return True


def held() -> CoreLease:
    """Return a lease that was granted just now."""
    runtime: Any = StoppedRuntime()
    request = AcquireRequest("space:name", "r1", "", "owner", int(TTL * SECOND), SECOND, SECOND)
    grant = Grant(request, "name", 7, unsure=False)
    return CoreLease(runtime, nullcontext(), grant, 7, request.ttl, runtime.now() + TTL, NEVER)


HAPPENINGS: dict[str, Happening] = {
    "renewed": (LeaseEvent.RENEWED, lambda lease: lease.renewed(lease.runtime.now(), int(TTL * SECOND))),
    "failed": (LeaseEvent.RENEWAL_FAILED, lambda lease: lease.failed(StoreUnavailable("no answer"))),
    "lost": (LeaseEvent.LOSS, lambda lease: lease.lose(EXPIRED)),
    "let go": (LeaseEvent.RELEASE, lambda lease: lease.begin_release()),
}


def test_the_table_has_every_state_and_leads_out_of_none_that_is_final() -> None:
    """LOST is final; a RELEASED lease can only turn out to have been lost before."""
    assert set(TRANSITIONS) == set(LeaseState)
    assert set(TRANSITIONS[LeaseState.LOST].values()) == {LeaseState.LOST}
    assert TRANSITIONS[LeaseState.RELEASED] == {LeaseEvent.NOT_KEPT: LeaseState.LOST}
    assert {event for row in TRANSITIONS.values() for event in row} == set(LeaseEvent)


@given(st.lists(st.sampled_from(sorted(HAPPENINGS)), max_size=6))
def test_a_lease_follows_the_table(happenings: list[str]) -> None:
    """After any sequence of events, the state is the one of the table."""
    follow(happenings)


def follow(happenings: list[str]) -> None:
    """Apply the events to a lease, and compare it with the table after each of them."""
    lease, state = held(), LeaseState.HELD
    for happening in happenings:
        event, happen = HAPPENINGS[happening]
        happen(lease)
        state = TRANSITIONS[state].get(event, state)
        assert lease.state() is state, f"{happening} after {happenings}"
        assert lease.trusted() is (state in {LeaseState.HELD, LeaseState.AT_RISK})
        assert bool(lease.lost_because) is (state is LeaseState.LOST)


def test_a_deadline_that_passes_is_a_loss() -> None:
    """The lease is lost at its deadline without any call; a later successful renewal does not revive it."""
    lease = held()
    runtime: Any = lease.runtime
    runtime.time += TTL
    assert lease.state() is LeaseState.LOST
    assert not lease.renewed(runtime.now(), int(TTL * SECOND))
    assert lease.state() is LeaseState.LOST


@pytest.mark.parametrize("outcome", Outcome)
def test_the_answer_to_a_release_may_show_a_loss(outcome: Outcome) -> None:
    """The lease is RELEASED, unless the store answers that it had ended before."""
    lease = held()
    assert lease.begin_release()
    lease.settle(outcome)
    assert lease.state() is (LeaseState.RELEASED if outcome.kept else LeaseState.LOST)
    assert not lease.begin_release(), "a lease is released once"


def test_a_loss_is_reported_once_and_a_released_lease_is_not_lost() -> None:
    """Only the first `lose` calls the callbacks; after a release there is no loss."""
    told: list[str] = []
    lease = held()
    lease.when_lost(told.append)
    assert (lease.lose("first"), lease.lose("second")) == (True, False)
    assert told == ["first"]
    released = held()
    released.when_lost(told.append)
    released.begin_release()
    assert not released.lose("late")
    assert released.void
    assert told == ["first"]


@pytest.mark.parametrize(
    ("state", "event", "wrong"),
    [
        (LeaseState.LOST, LeaseEvent.RENEWED, LeaseState.HELD),
        (LeaseState.LOST, LeaseEvent.RELEASE, LeaseState.RELEASED),
        (LeaseState.RELEASED, LeaseEvent.RENEWED, LeaseState.HELD),
        (LeaseState.RELEASED, LeaseEvent.LOSS, LeaseState.LOST),
        (LeaseState.HELD, LeaseEvent.RENEWAL_FAILED, LeaseState.HELD),
        (LeaseState.AT_RISK, LeaseEvent.RENEWED, LeaseState.AT_RISK),
    ],
)
def test_a_wrong_table_is_found(
    monkeypatch: pytest.MonkeyPatch, state: LeaseState, event: LeaseEvent, wrong: LeaseState
) -> None:
    """Planted bugs: the table has one transition too many or a wrong one; some sequence of events shows it."""
    planted = {**module.TRANSITIONS, state: {**module.TRANSITIONS[state], event: wrong}}
    ways = [[a, b, c] for a in HAPPENINGS for b in HAPPENINGS for c in HAPPENINGS]
    monkeypatch.setattr(module, "TRANSITIONS", planted)
    found = 0
    for way in ways:
        try:
            follow(way)
        except AssertionError:
            found += 1
    assert found


def test_a_holder_sees_the_states() -> None:
    """The public lease shows the states from the grant to the release."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.lock("name").acquire()
            seen = [lease.state]
            await lease.release()
            assert [*seen, lease.state] == [LeaseState.HELD, LeaseState.RELEASED]

    virtual.run(main)
