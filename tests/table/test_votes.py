"""What a store does that is asked for its vote, by those who ask other stores as well."""

import pytest

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    Granted,
    NotificationKind,
    ReleaseRequest,
    WithdrawRequest,
)
from tenure.outcome import Outcome
from tenure.table.state import PLACEHOLDER
from tenure.table.times import EARLIER, VOTE_OFFER
from tests.table.tools import INTERVAL, TEST_TIMEOUT, TTL, Name

WALL = 10_000_000


@pytest.fixture
def name() -> Name:
    """Return a name that was never used."""
    return Name(wall=WALL)


def vote(name: Name, who: str, round_: int = 1, *, proposal: int = WALL, wait: bool = True) -> Granted | Busy:
    """Ask for a vote."""
    times = (TTL, INTERVAL, TEST_TIMEOUT)
    request = AcquireRequest(
        "name", f"{who}/{round_}", who, f"owner {who}", *times, proposal=proposal, wait=wait, votes=True
    )
    reply = name.step().acquire(request)
    assert isinstance(reply, Granted | Busy)
    return reply


def let_go(name: Name, request_id: str) -> None:
    """Release."""
    assert name.release(request_id) is Outcome.RELEASED


def test_the_token_is_the_proposal_whatever_the_clock_shows(name: Name) -> None:
    """So that stores whose clocks differ issue the same one."""
    reply = vote(name, "a", proposal=WALL - 5_000_000)
    assert isinstance(reply, Granted)
    assert reply.token == WALL - 5_000_000


def test_a_token_is_larger_than_all_before(name: Name) -> None:
    """Whatever was proposed."""
    vote(name, "a", proposal=WALL + 7)
    let_go(name, "a/1")
    reply = vote(name, "b", proposal=WALL)
    assert isinstance(reply, Granted)
    assert reply.token == WALL + 8


def test_who_waits_is_told_and_not_granted(name: Name) -> None:
    """It asks all stores again when told; and for that while the name is kept for it."""
    vote(name, "a")
    assert isinstance(vote(name, "b"), Busy)
    assert isinstance(vote(name, "c"), Busy)
    let_go(name, "a/1")
    assert [request_id for request_id, _ in name.heard(NotificationKind.HEAD)] == ["b"]
    assert name.heard(NotificationKind.GRANTED) == []
    assert name.holders() == PLACEHOLDER + "b"
    assert isinstance(vote(name, "d"), Busy)
    assert isinstance(vote(name, "b", 2), Granted)
    assert name.holders() == "b/2"


def test_who_does_not_come_loses_its_turn(name: Name) -> None:
    """The next one is told, as soon as anybody asks."""
    vote(name, "a")
    vote(name, "b")
    vote(name, "c")
    let_go(name, "a/1")
    name.now += VOTE_OFFER
    name.withdraw("nobody")
    assert [request_id for request_id, _ in name.heard(NotificationKind.HEAD)] == ["c"]
    assert name.queue() == "c"


def test_who_asks_first_has_what_nobody_was_told_of(name: Name) -> None:
    """A vote that is free goes to whoever asks."""
    vote(name, "a")
    vote(name, "b")
    name.now += TTL
    assert isinstance(vote(name, "c"), Granted)


def test_places_are_in_the_order_of_the_askers_clocks(name: Name) -> None:
    """Within bounds: nobody's clock gets it far ahead, nor behind whoever comes later."""
    vote(name, "a")
    vote(name, "d", proposal=WALL - 10)
    vote(name, "c", proposal=WALL - 20)
    vote(name, "e", proposal=WALL + 3_600_000)
    vote(name, "b", proposal=WALL - EARLIER)
    vote(name, "f", proposal=0)
    assert name.queue() == "bfcde"
    vote(name, "d", 2, proposal=0)
    assert name.queue() == "bfcde", "who asks again keeps its place"


def test_who_gives_up_makes_room_for_the_next(name: Name) -> None:
    """Also when the name is kept for it just then."""
    vote(name, "a")
    vote(name, "b")
    vote(name, "c")
    let_go(name, "a/1")
    name.withdraw("b")
    assert [request_id for request_id, _ in name.heard(NotificationKind.HEAD)] == ["c"]


def test_who_cannot_be_told_is_passed_over(name: Name) -> None:
    """Its connection is gone."""
    vote(name, "a")
    vote(name, "b")
    vote(name, "c")
    name.deaf.add("b")
    let_go(name, "a/1")
    assert [request_id for request_id, _ in name.heard(NotificationKind.HEAD)] == ["c"]


def test_who_does_not_wait_takes_no_place(name: Name) -> None:
    """And gives up the one that it had."""
    vote(name, "a")
    vote(name, "b")
    assert isinstance(vote(name, "b", 2, wait=False), Busy)
    assert name.queue() == ""


def test_a_token_is_raised_once(name: Name) -> None:
    """A store acknowledges a number to one attempt, and never a smaller one after it."""
    reply = vote(name, "a")
    assert isinstance(reply, Granted)

    def adjust(token: int, raise_to: int) -> object:
        return name.step().adjust(AdjustRequest("name", "a/1", token, raise_to=raise_to))

    assert adjust(reply.token, WALL + 100) is None
    assert adjust(reply.token, WALL + 100) is None, "asked again"
    assert adjust(reply.token, WALL + 50) is not None, "an older ask that comes late"
    assert name.token("a/1") == name.state.counter == WALL + 100
    name.state.counter = WALL + 200
    assert adjust(WALL + 100, WALL + 150) is not None, "one as large was issued"
    assert adjust(WALL + 100, WALL + 200) is not None
    assert adjust(WALL + 100, WALL + 201) is None


def test_a_vote_that_was_given_back_is_not_given_late(name: Name) -> None:
    """The request of an attempt that is over finds a tombstone."""
    name.step().withdraw(WithdrawRequest("name", "a/1", unsure=True))
    times = (TTL, INTERVAL, TEST_TIMEOUT)
    reply = name.step().acquire(AcquireRequest("name", "a/1", "a", "owner a", *times, proposal=WALL, votes=True))
    assert not isinstance(reply, Granted)
    assert name.step().release(ReleaseRequest("name", "a/1", 1)) is not Outcome.RELEASED
