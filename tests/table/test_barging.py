"""Requests that allow barging: who may pass whom, until when, and who is woken."""

import pytest

from tenure.contracts.messages import Busy, Granted, NotificationKind, Queued
from tenure.table.times import GRACE, RETRY
from tests.table.tools import INTERVAL, TTL, Name

BOUND = 100_000
HELD_FOR = 5_000


@pytest.fixture
def name() -> Name:
    """Return a name that was never used."""
    return Name()


def come(name: Name, who: str, *, wait: bool = True, bound: int = BOUND) -> Granted | Queued | Busy:
    """Ask with barging."""
    reply = name.ask(who, wait=wait, fair_after=bound)
    assert isinstance(reply, Granted | Queued | Busy)
    return reply


def let_go(name: Name, who: str, after: int = HELD_FOR) -> None:
    """Release after a while."""
    name.now += after
    name.release(who)


def test_a_release_frees_the_name_and_wakes_the_head(name: Name) -> None:
    """Nobody is granted, and the first waiter is told to ask at once."""
    come(name, "a")
    come(name, "b")
    come(name, "c")
    let_go(name, "a")
    assert (name.holders(), name.queue()) == ("", "bc")
    assert name.heard(NotificationKind.HEAD) == [("b", 0)]
    assert not name.heard(NotificationKind.GRANTED)


def test_a_newcomer_takes_what_is_free(name: Name) -> None:
    """It is told that others wait, who keep their places."""
    come(name, "a")
    come(name, "b")
    let_go(name, "a")
    reply = come(name, "d")
    assert isinstance(reply, Granted)
    assert reply.contended
    assert name.queue() == "b"
    let_go(name, "d")
    assert isinstance(come(name, "b"), Granted)
    assert name.queue() == ""


def test_any_waiter_takes_what_is_free(name: Name) -> None:
    """Whoever asks first, also from the middle of the queue, which it leaves."""
    for who in "abcd":
        come(name, who)
    let_go(name, "a")
    assert isinstance(come(name, "c"), Granted)
    assert name.queue() == "bd"


def test_who_has_waited_for_its_bound_is_handed_the_name(name: Name) -> None:
    """By the next release, and until then nobody passes it."""
    come(name, "a")
    come(name, "b")
    let_go(name, "a", BOUND)
    assert name.holders() == "b"
    assert name.heard(NotificationKind.GRANTED) == [("b", name.token("b"))]


def test_nobody_passes_who_has_waited_for_its_bound(name: Name) -> None:
    """A newcomer that finds the name free has it handed to the waiter."""
    come(name, "a")
    come(name, "b")
    let_go(name, "a")
    name.now += BOUND - HELD_FOR - 1
    assert isinstance(come(name, "d"), Granted)
    let_go(name, "d", 0)
    name.now += 1
    assert isinstance(come(name, "e"), Queued)
    assert (name.holders(), name.queue()) == ("b", "e")


def test_nobody_passes_a_fair_waiter(name: Name) -> None:
    """Wherever it stands: those before it are served in their order."""
    come(name, "a")
    come(name, "b")
    name.ask("f")
    come(name, "c")
    let_go(name, "a")
    assert name.holders() == "b"
    let_go(name, "b")
    assert name.holders() == "f"
    let_go(name, "f")
    assert (name.holders(), name.queue()) == ("", "c")


def test_a_fair_newcomer_passes_nobody(name: Name) -> None:
    """It finds the name free, and has it handed to the first waiter."""
    come(name, "a")
    come(name, "b")
    let_go(name, "a")
    assert isinstance(name.ask("f"), Queued)
    assert (name.holders(), name.queue()) == ("b", "f")


def test_a_fair_newcomer_that_may_not_wait_is_refused(name: Name) -> None:
    """And the first waiter has the name."""
    come(name, "a")
    come(name, "b")
    let_go(name, "a")
    assert isinstance(name.ask("f", wait=False), Busy)
    assert (name.holders(), name.queue()) == ("b", "")


def test_the_shortest_bound_counts(name: Name) -> None:
    """Of all waiters, from when the first of them came."""
    come(name, "a")
    come(name, "b", bound=10 * BOUND)
    come(name, "c", bound=2 * HELD_FOR)
    let_go(name, "a")
    assert isinstance(come(name, "d"), Granted)
    let_go(name, "d")
    assert name.holders() == "b"
    let_go(name, "b")
    assert name.holders() == "c"


def test_who_comes_too_late_is_told_again_after_as_long_as_it_waited(name: Name) -> None:
    """And is told in the reply when to ask by itself, should it not be told."""
    come(name, "a")
    come(name, "b")
    let_go(name, "a")
    come(name, "d")
    name.now += 1_000
    late = come(name, "b")
    assert isinstance(late, Queued)
    assert late.retry_in == HELD_FOR - 1_000
    let_go(name, "d", 0)
    assert not name.heard(NotificationKind.HEAD)
    come(name, "e")
    name.now += HELD_FOR - 1_000
    name.release("e")
    assert name.heard(NotificationKind.HEAD) == [("b", 0)]


def test_from_half_its_bound_on_a_waiter_is_not_woken(name: Name) -> None:
    """It asks by itself, shortly before its bound and soon after it."""
    bound = INTERVAL // 2
    come(name, "a")
    late = come(name, "b", bound=bound)
    assert isinstance(late, Queued)
    assert late.retry_in == bound * 3 // 4
    name.now += bound - GRACE
    late = come(name, "b", bound=bound)
    assert isinstance(late, Queued)
    assert late.retry_in == 2 * GRACE
    let_go(name, "a", 0)
    assert not name.notifications
    name.now += late.retry_in
    assert isinstance(come(name, "b", bound=bound), Granted)


def test_a_waiter_that_died_is_not_woken(name: Name) -> None:
    """The next one is."""
    for who in "abc":
        come(name, who)
    name.deaf.add("b")
    let_go(name, "a")
    assert name.heard(NotificationKind.HEAD) == [("c", 0)]
    assert name.queue() == "c"


def test_a_head_that_leaves_a_free_name_has_the_next_one_woken(name: Name) -> None:
    """Nobody waits for a name that is free."""
    for who in "abc":
        come(name, who)
    let_go(name, "a")
    name.withdraw("b")
    assert name.heard(NotificationKind.HEAD) == [("c", 0)]


def test_a_newcomer_passes_who_came_after_one_that_died(name: Name) -> None:
    """The dead head has waited for its bound, the next one has not: the newcomer has the name."""
    come(name, "a")
    come(name, "b")
    name.now += BOUND - HELD_FOR
    come(name, "c")
    let_go(name, "a")
    name.deaf.add("b")
    name.state.holders = []
    assert isinstance(come(name, "d"), Granted)
    assert name.queue() == "c"


def test_a_clock_that_steps_back_does_not_stretch_a_bound(name: Name) -> None:
    """The waiter is passed for one more bound at most."""
    come(name, "a", bound=BOUND)
    come(name, "b")
    name.now -= 50 * BOUND
    name.renew("a")
    let_go(name, "a", BOUND)
    assert name.holders() == "b"


def test_the_retry_time_is_no_shorter_than_allowed(name: Name) -> None:
    """Even with a bound of a microsecond."""
    come(name, "a")
    late = come(name, "b", bound=1)
    assert isinstance(late, Queued)
    assert RETRY <= late.retry_in <= TTL
