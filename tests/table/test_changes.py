"""What a holder, or somebody who looks after a name, may change while it is held."""

from tenure.contracts.messages import Busy, CapacityMismatch, Granted, NotificationKind, Queued, Withdrawn
from tenure.outcome import Outcome
from tenure.table.times import RETRY
from tests.table.tools import TTL, Name

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
    assert [who for who, _ in name.heard(NotificationKind.GRANTED)] == ["a", "b"]
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
    assert name.notifications == []


def test_a_holder_can_change_what_is_read_of_it() -> None:
    """A new owner is shown from now on; the lease lasts no longer for it."""
    name = Name()
    name.win("a")
    name.now += 100
    assert name.adjust("a", owner="leader at b:80") is None
    [holder] = name.view().holders
    assert (holder.owner, holder.weight, holder.expires_in) == ("leader at b:80", 1, (TTL - 100) / 1e6)


def test_a_change_does_not_prolong() -> None:
    """A holder that changes its holding holds it no longer for that."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.release("a")
    name.now += 100
    assert name.adjust("b", owner="new") is None
    assert name.state.holders[0].expires_at == name.now - 100 + TTL


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
    name.requests["w"].weight = 1
    assert name.take_up("w", token) is None
    name.now += TTL - 1
    name.take_up("w", token)
    name.now += 1
    assert isinstance(name.ask("a", capacity=3), Granted)
    assert isinstance(name.ask("x", capacity=3, weight=3), Queued)


# -- a name that is kept after its release --------------------------------------------------------------------------


def test_a_name_that_is_kept_is_granted_when_that_is_over() -> None:
    """A release that comes too early keeps the name; at the very end of that, and not before, the next is granted."""
    name = Name()
    name.win("a", lock_delay=5 * TTL)
    assert name.release("a", keep=300) is Outcome.RELEASED
    name.now += 299
    assert name.ask("b", wait=False) == Busy(RETRY, ("owner a",))
    name.now += 1
    assert isinstance(name.ask("b"), Granted)


def test_who_waits_is_told_when_a_name_is_no_longer_kept() -> None:
    """The head of the queue hears of the earlier end, though it was the head before."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.release("a", keep=50_000)
    assert name.heard(NotificationKind.HEAD) == [("b", 50_000)]
    name.now += 50_000
    assert isinstance(name.ask("b"), Granted)


def test_a_release_that_keeps_may_be_asked_again() -> None:
    """The same release gets the same answer, also when others of a semaphore have been released since."""
    name = Name()
    token = name.win("a", capacity=2)
    name.win("b", capacity=2)
    name.release("a", keep=1_000)
    assert name.release("a", token, keep=1_000) is Outcome.RELEASED
    name.release("b")
    assert name.release("a", token, keep=1_000) is Outcome.RELEASED
    assert name.state.holders[0].expires_at == name.now + 1_000


def test_a_kept_name_is_nobodys() -> None:
    """Neither a renewal, nor a request, nor a change revives the holding, and nobody is told that it is wanted."""
    name = Name()
    token = name.win("a")
    name.release("a", keep=1_000)
    assert name.renew("a", token) is Outcome.EXPIRED
    assert name.adjust("a", token, owner="x") is Outcome.EXPIRED
    assert isinstance(name.ask("a"), Withdrawn)
    assert name.request_revocation() == []
    assert name.state.holders[0].expires_at == name.now + 1_000


def test_a_kept_name_is_not_taken_up_again() -> None:
    """In quarantine a late renewal of what was released is refused."""
    name = Name()
    token = name.win("a")
    name.release("a", keep=1_000)
    name.quarantined_until = name.now + TTL
    assert name.take_up("a", token) is not None


def test_a_kept_name_can_be_taken_by_force() -> None:
    """A revocation ends the keeping."""
    name = Name()
    name.win("a")
    name.release("a", keep=TTL)
    name.revoke()
    assert isinstance(name.ask("b"), Granted)


def test_a_clock_that_stepped_back_keeps_no_name_for_hours() -> None:
    """What remains is never more than was asked for."""
    name = Name()
    name.win("a")
    name.release("a", keep=1_000)
    name.now -= 100 * TTL
    name.ask("b")
    name.now += 1_000
    assert isinstance(name.ask("b"), Granted)


# -- a capacity that is changed --------------------------------------------------------------------------------------


def test_more_room_is_passed_on_at_once() -> None:
    """A larger capacity grants those whom it makes room for in the same step."""
    name = Name()
    name.win("a", capacity=1)
    for who in "bcd":
        name.ask(who, capacity=1)
    assert name.resize(1, 3) == 3
    assert (name.holders(), name.queue()) == ("abc", "d")


def test_holders_keep_what_they_hold_of_a_smaller_capacity() -> None:
    """A smaller capacity takes nothing away, and nobody is granted until there is room by it."""
    name = Name()
    for who in "abc":
        name.win(who, capacity=3)
    assert name.resize(3, 1) == 1
    assert name.holders() == "abc"
    name.ask("d", capacity=1)
    name.release("a")
    name.release("b")
    assert (name.holders(), name.queue()) == ("c", "d")
    name.release("c")
    assert name.holders() == "d"


def test_who_waits_keeps_its_place_whatever_number_it_named() -> None:
    """A waiter that asks again for the old capacity is not refused; a newcomer is."""
    name = Name()
    name.win("a", capacity=3, weight=3)
    name.ask("b", capacity=3)
    name.resize(3, 2)
    assert isinstance(name.ask("b", capacity=3), Queued)
    assert name.ask("c", capacity=3) == CapacityMismatch(2)
    assert isinstance(name.ask("d", capacity=2), Queued)
    assert name.queue() == "bd"


def test_who_waits_for_more_than_there_is_is_sent_away() -> None:
    """A waiter that would wait for ever is told to ask again, and is refused then; those behind it move up."""
    name = Name()
    name.win("a", capacity=3)
    name.ask("heavy", capacity=3, weight=3)
    name.ask("b", capacity=3)
    assert name.resize(3, 2) == 2
    assert (name.holders(), name.queue()) == ("ab", "")
    assert name.heard(NotificationKind.HEAD) == [("heavy", RETRY)]
    assert name.ask("heavy", capacity=3, weight=3) == CapacityMismatch(2)


def test_a_capacity_is_changed_only_by_who_knows_it() -> None:
    """Another capacity than the one given is left as it is while the name is in use; asked again, it is changed."""
    name = Name()
    name.win("a", capacity=3)
    assert name.resize(2, 5) == 3
    assert name.resize(3, 5) == 5
    assert name.resize(3, 5) == 5
    name.release("a")
    assert name.resize(2, 7) == 7


# -- a name that is asked for ------------------------------------------------------------------------------------------


def test_whoever_holds_is_asked_to_let_go() -> None:
    """Every holder is told so by its token, and loses nothing."""
    name = Name()
    tokens = [name.win(who, capacity=2) for who in "ab"]
    assert [each.token for each in name.request_revocation()] == tokens
    assert name.heard(NotificationKind.REVOCATION_REQUESTED) == list(zip("ab", tokens, strict=True))
    assert name.holders() == "ab"
    assert name.state.counter == tokens[1]
