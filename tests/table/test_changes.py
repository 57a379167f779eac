"""What a holder, or somebody who looks after a name, may change while it is held."""

from holdfast.core.messages import Granted, NoticeKind, Waiting
from holdfast.outcome import Outcome
from tests.table.tools import PUSHED, TTL, Name

# -- a holding that is changed ----------------------------------------------------------------------------------


def test_what_a_holder_no_longer_takes_is_passed_on_at_once() -> None:
    """A writer that becomes a reader lets in the readers at the head of the queue, in the same step."""
    name = Name()
    token = name.win("w", capacity=3, weight=3)
    for who in ("a", "b"):
        name.ask(who, capacity=3)
    name.ask("x", capacity=3, weight=3)
    name.ask("c", capacity=3)
    assert name.adjust("w", weight=1) is None
    assert (name.holders(), name.queue()) == ("wab", "xc")
    assert [who for who, _ in name.heard(NoticeKind.GRANTED)] == ["a", "b"]
    assert name.token("w") == token


def test_a_holding_never_becomes_heavier() -> None:
    """A change to a larger weight, or one that comes late, leaves the smaller weight."""
    name = Name()
    name.win("w", capacity=3, weight=2)
    assert name.adjust("w", weight=1) is None
    assert name.adjust("w", weight=2) is None
    assert name.state.holders[0].weight == 1
    assert name.adjust("w") is None
    assert name.state.holders[0].weight == 1


def test_a_change_that_is_asked_again_changes_nothing_more() -> None:
    """A change whose reply was lost may be asked for again."""
    name = Name()
    name.win("w", capacity=3, weight=3)
    name.ask("a", capacity=3)
    name.adjust("w", weight=1, owner="reader w")
    before = name.holders(), name.state.counter
    assert name.adjust("w", weight=1, owner="reader w") is None
    assert (name.holders(), name.state.counter) == before
    assert name.notices == []


def test_a_holder_can_change_what_is_read_of_it() -> None:
    """A new owner is shown from now on; the lease lasts no longer for it."""
    name = Name()
    name.win("a")
    name.now += 100
    assert name.adjust("a", owner="leader at b:80") is None
    [holder] = name.view().holders
    assert (holder.owner, holder.weight, holder.expires_in) == ("leader at b:80", 1, (TTL - 100) / 1e6)


def test_a_change_says_that_its_holder_lives() -> None:
    """A holder that was granted by a push and changes its holding has heard of it, but holds no longer for it."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.release("a")
    assert name.adjust("b", owner="new") is None
    assert name.view().holders[0].confirmed
    assert name.state.holders[0].expires_at == name.now + PUSHED


def test_who_does_not_hold_changes_nothing() -> None:
    """A change by somebody who lost the name is refused, and tells it what became of its lease."""
    name = Name()
    token = name.win("a")
    assert name.adjust("a", token - 1, weight=1) is Outcome.TAKEN_OVER
    name.now += TTL
    assert name.adjust("a", token, owner="x") is Outcome.EXPIRED
    name.win("b")
    assert name.adjust("a", token, owner="x") is Outcome.TAKEN_OVER
    assert name.view().holders[0].owner == "owner b"


def test_a_change_that_is_refused_moves_the_queue_all_the_same() -> None:
    """Whoever comes hands on what has expired."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.now += TTL
    name.adjust("a", 1, weight=1)
    assert name.holders() == "b"


def test_a_changed_lease_is_taken_up_as_it_was_last() -> None:
    """A holder that became lighter says so when the store has forgotten it, and leaves room for others."""
    name = Name()
    token = name.win("w", capacity=3, weight=3)
    name.adjust("w", weight=1)
    name.forget(TTL)
    name.asks["w"].weight = 1
    assert name.take_up("w", token) is None
    name.now += TTL - 1
    name.take_up("w", token)
    name.now += 1
    assert isinstance(name.ask("a", capacity=3), Granted)
    assert isinstance(name.ask("x", capacity=3, weight=3), Waiting)
