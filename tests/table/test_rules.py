"""The nine rules of the grant table, each by examples named after what it guarantees."""

from typing import TYPE_CHECKING

from tenure.contracts.messages import Busy, CapacityMismatch, Granted, NotificationKind, Queued, Withdrawn
from tenure.outcome import Outcome
from tenure.stores.tabled import RETENTION
from tenure.table.times import CROWD, LATEST, LONGEST_SILENCE, PROPOSAL_BOUND, RETRY, STAGGER, TOMBSTONE
from tests.table.tools import INTERVAL, TEST_TIMEOUT, TTL, Name

if TYPE_CHECKING:
    from collections.abc import Callable

# -- 1. the store's clock decides -------------------------------------------------------------------------------


def test_a_lease_that_ends_now_has_ended() -> None:
    """At the very instant of its end a lease is over; a microsecond before it is not."""
    name = Name()
    token = name.win("a")
    name.now += TTL - 1
    assert isinstance(name.ask("b", wait=False), Busy)
    name.now += 1
    assert name.win("b") > token


def test_a_renewal_at_the_end_comes_too_late() -> None:
    """A renewal at the very instant of the end is refused."""
    name = Name()
    token = name.win("a")
    name.now += TTL
    assert name.renew("a", token) is Outcome.EXPIRED


def test_a_holder_keeps_what_it_renews() -> None:
    """A renewal lets a lease live on from now."""
    name = Name()
    name.win("a")
    name.now += TTL - 1
    assert name.renew("a") is None
    name.now += TTL - 1
    assert name.holders() == "a"
    assert isinstance(name.ask("b"), Queued)


# -- 2. head first, as many as fit, no overtaking -----------------------------------------------------------------


def test_waiters_are_granted_in_the_order_of_their_coming() -> None:
    """The queue is first in, first out."""
    name = Name()
    name.win("a")
    for who in "bcd":
        name.ask(who)
    granted = ""
    for who in "abcd":
        granted += name.holders()
        assert name.release(who) is Outcome.RELEASED
    assert granted == "abcd"


def test_as_many_heads_are_granted_as_fit() -> None:
    """What one release makes room for is granted in one step."""
    name = Name()
    name.win("a", capacity=3, weight=3)
    for who in "bcde":
        name.ask(who, capacity=3)
    name.release("a")
    assert (name.holders(), name.queue()) == ("bcd", "e")
    assert [who for who, _ in name.heard(NotificationKind.GRANTED)] == ["b", "c", "d"]


def test_a_newcomer_that_would_fit_does_not_overtake_a_head_that_does_not() -> None:
    """A writer that waits is not starved by readers."""
    name = Name()
    name.win("a", capacity=3)
    assert isinstance(name.ask("w", capacity=3, weight=3), Queued)
    assert isinstance(name.ask("b", capacity=3), Queued)
    assert isinstance(name.ask("c", capacity=3, wait=False), Busy)
    assert (name.holders(), name.queue()) == ("a", "wb")


def test_who_does_not_wait_keeps_no_place() -> None:
    """A single ask is told who holds the name and when to try again, and is not in the queue."""
    name = Name()
    name.win("a")
    assert name.ask("b", wait=False) == Busy(TTL, ("owner a",))
    assert name.queue() == ""


def test_a_heavier_request_than_the_capacity_is_granted_alone() -> None:
    """A request that could never fit beside others does not block the queue for ever."""
    name = Name()
    name.win("a", capacity=2, weight=5)
    assert isinstance(name.ask("b", capacity=2), Queued)


def test_another_capacity_is_refused_while_the_name_is_in_use() -> None:
    """All users of a name agree on its capacity; a free name takes a new one."""
    name = Name()
    name.win("a", capacity=3)
    assert name.ask("b", capacity=2) == CapacityMismatch(3)
    assert name.queue() == ""
    name.release("a")
    name.win("b", capacity=2)


# -- 3. whoever comes moves the queue -----------------------------------------------------------------------------


def test_any_request_hands_on_what_has_expired() -> None:
    """A holder that fell silent is followed by the first waiter, whoever moves the queue."""
    moves: list[Callable[[Name], object]] = [
        lambda name: name.ask("z"),
        lambda name: name.release("z", 1),
        lambda name: name.renew("z", 1),
        lambda name: name.withdraw("z"),
        lambda name: name.revoke(),
    ]
    for move in moves:
        name = Name()
        name.win("a")
        name.ask("b")
        name.now += TTL
        move(name)
        assert name.heard(NotificationKind.GRANTED) == [("b", name.token("b"))]


def test_a_waiter_that_stopped_asking_is_dropped() -> None:
    """A stale head is passed over; one that is fresh to this very instant is not."""
    for late, granted in ((0, "b"), (1, "c")):
        name = Name()
        name.win("a", ttl=10 * TEST_TIMEOUT)
        name.ask("b", waiter_ttl=TEST_TIMEOUT // 2)
        name.ask("c")
        name.now += TEST_TIMEOUT // 2 + late
        name.release("a")
        assert name.holders() == granted


def test_a_waiter_that_nobody_can_reach_is_skipped() -> None:
    """A head whose channel has no listener is skipped in the same step."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.ask("c")
    name.deaf.add("b")
    name.release("a")
    assert (name.holders(), name.queue()) == ("c", "")


def test_a_head_asks_again_when_a_lock_delay_ends() -> None:
    """After a lock delay there may be room beside those who hold, long before one of them ends."""
    name = Name()
    name.win("a", capacity=2, ttl=TTL // 2, lock_delay=INTERVAL // 2)
    name.win("b", capacity=2)
    name.now += TTL // 2
    reply = name.ask("c", capacity=2)
    assert isinstance(reply, Queued)
    assert reply.retry_in == INTERVAL // 2


def test_a_deaf_head_that_is_too_heavy_blocks_no_lighter_one() -> None:
    """A dead head that does not fit is passed over as soon as somebody behind it fits."""
    name = Name()
    name.win("a", capacity=3)
    name.ask("heavy", capacity=3, weight=3)
    name.ask("light", capacity=3)
    assert (name.holders(), name.queue()) == ("a", "heavylight")
    name.deaf.add("heavy")
    assert isinstance(name.ask("light", capacity=3), Granted)
    assert (name.holders(), name.queue()) == ("alight", "")


def test_a_deaf_head_that_is_too_heavy_keeps_its_place_once_the_lighter_ones_have_left() -> None:
    """Whoever cannot be reached for a moment loses its place only to somebody who fits."""
    name = Name()
    name.win("a", capacity=3)
    for who, weight in [("x", 3), ("y", 3), ("b", 1), ("c", 2)]:
        name.ask(who, capacity=3, weight=weight)
    name.withdraw("b")
    name.withdraw("c")
    name.deaf |= {"x", "y"}
    name.ask("y", capacity=3, weight=3)
    assert (name.holders(), name.queue()) == ("a", "xy")
    name.ask("c", capacity=3, weight=2)
    assert (name.holders(), name.queue()) == ("ac", "")


def test_a_waiter_that_asks_is_alive() -> None:
    """A head that is stale and unreachable is granted when it is the one that asks."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.deaf.add("b")
    name.now += 2 * TEST_TIMEOUT
    assert isinstance(name.ask("b"), Granted)


def test_who_becomes_head_is_told_when_to_ask() -> None:
    """A waiter that moves up to the head is told when the holder's lease ends; one that asks learns it anyway."""
    name = Name()
    name.win("a")
    name.ask("b")
    assert name.heard(NotificationKind.HEAD) == []
    name.ask("c")
    name.now += 1_000
    name.withdraw("b")
    assert name.heard(NotificationKind.HEAD) == [("c", TTL - 1_000)]


def test_the_next_head_of_a_handed_over_name_is_told() -> None:
    """A hand-off tells the next in line when the new holder's lease ends."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.ask("c")
    name.release("a")
    assert name.heard(NotificationKind.HEAD) == [("c", TTL)]


def test_waiters_ask_again_one_after_another() -> None:
    """Each place asks a little later than the one before, and all of them by their interval at the latest."""
    name = Name()
    name.win("a", ttl=50_000)
    pokes = [reply.retry_in for who in "bcd" if isinstance(reply := name.ask(who), Queued)]
    assert pokes == [50_000, 50_000 + STAGGER, 50_000 + 2 * STAGGER]
    slow = Name()
    slow.win("a")
    pokes = [reply.retry_in for who in "bcd" if isinstance(reply := slow.ask(who), Queued)]
    assert pokes == [INTERVAL, INTERVAL * 11 // 10, INTERVAL * 12 // 10]


def test_nobody_is_told_to_ask_at_once_again() -> None:
    """However soon a lease ends, there is a least time before asking again."""
    name = Name()
    name.win("a")
    name.now += TTL - 1
    reply = name.ask("b")
    assert isinstance(reply, Queued)
    assert reply.retry_in == RETRY


def test_a_refused_request_moves_the_queue_too() -> None:
    """Who is refused, or is granted already, hands on what has expired as well."""
    name = Name()
    name.win("a", capacity=2)
    name.win("b", capacity=2, ttl=5 * TTL)
    for who in "cd":
        name.ask(who, capacity=2)
    name.withdraw("z", unsure=True)
    name.now += TTL
    assert isinstance(name.ask("z", capacity=2), Withdrawn)
    assert (name.holders(), name.queue()) == ("bc", "d")
    name.now += TTL
    assert isinstance(name.ask("b", capacity=2), Granted)
    assert name.holders() == "bd"


def test_dead_waiters_do_not_impose_their_capacity() -> None:
    """A name whose waiters all died takes a new capacity, though nobody came to drop them."""
    name = Name()
    name.win("a", capacity=3, weight=3)
    name.ask("b", capacity=3)
    name.now += TEST_TIMEOUT + 1
    name.win("c", capacity=1)


# -- 4. the same answer, asked again ------------------------------------------------------------------------------


def test_a_holder_that_asks_again_gets_its_token() -> None:
    """A request that was granted is granted the same, and holds once."""
    name = Name()
    token = name.win("a")
    name.now += 10
    assert name.ask("a") == Granted(token, TTL)
    assert name.holders() == "a"


def test_a_waiter_that_asks_again_keeps_its_place() -> None:
    """Asking again makes a waiter fresh and moves it nowhere."""
    name = Name()
    name.win("a", ttl=10 * TEST_TIMEOUT)
    name.ask("b")
    name.ask("c")
    name.now += TEST_TIMEOUT
    reply = name.ask("b")
    assert isinstance(reply, Queued)
    assert (reply.place, name.queue()) == (0, "bc")
    name.now += 1
    name.release("a")
    assert name.holders() == "b"


def test_a_request_that_was_given_up_is_gone() -> None:
    """A late request of a request that left, or was released, is refused until its tombstone falls."""
    name = Name()
    name.withdraw("a", unsure=True)
    name.win("b")
    name.release("b", unsure=True)
    assert isinstance(name.ask("a"), Withdrawn)
    name.now += TOMBSTONE - 1
    assert isinstance(name.ask("b"), Withdrawn)
    assert isinstance(name.ask("a"), Withdrawn)
    name.now += 1
    assert isinstance(name.ask("a"), Granted)
    assert name.state.tombstones == {}


def test_a_duplicate_of_the_last_released_request_is_gone() -> None:
    """A second copy of a request that comes after the release is not granted again."""
    name = Name()
    name.win("a")
    name.release("a")
    assert isinstance(name.ask("a"), Withdrawn)
    name.win("b")


def test_a_request_that_is_surely_not_under_way_leaves_no_tombstone() -> None:
    """A leave or release that is sure leaves nothing to remember."""
    name = Name()
    name.withdraw("a")
    name.win("b")
    name.release("b")
    assert name.state.tombstones == {}


def test_a_late_ask_of_a_released_lease_does_not_stay_in_the_queue() -> None:
    """A release of a lease that ran out takes the ghost of its request out of the queue."""
    name = Name()
    old = name.win("a")
    name.now += TTL
    name.win("b")
    assert isinstance(name.ask("a"), Queued)
    assert name.release("a", old, unsure=True) is Outcome.TAKEN_OVER
    assert name.queue() == ""


def test_a_release_asked_again_is_no_error() -> None:
    """The reply to a release may be lost: asked again, it answers the same and touches nobody."""
    name = Name()
    token = name.win("a")
    name.ask("b")
    assert name.release("a", token) is Outcome.RELEASED
    assert name.release("a", token) is Outcome.RELEASED
    assert name.holders() == "b"


def test_who_leaves_passes_on_a_grant_that_crossed() -> None:
    """A waiter that leaves just when it was granted hands the name on in the same step."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.ask("c")
    name.release("a")
    left = name.withdraw("b")
    assert left.holders == ("owner b",)
    assert (name.holders(), name.queue()) == ("c", "")


def test_who_leaves_is_told_whom_it_waited_for() -> None:
    """A waiter that gives up learns the holders, and how many were ahead of it."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.ask("c")
    left = name.withdraw("c")
    assert (left.holders, left.ahead) == (("owner a",), 1)
    assert name.queue() == "b"


# -- 5. tokens ----------------------------------------------------------------------------------------------------


def test_tokens_follow_the_wall_clock() -> None:
    """A token is no smaller than the store's wall clock, so that a store that forgot goes on above."""
    name = Name(wall=7_000)
    assert name.win("a") == 7_000


def test_tokens_increase_when_the_wall_clock_steps_back() -> None:
    """A token is one more than the last where no clock is ahead of it."""
    name = Name(wall=7_000)
    first = name.win("a")
    name.release("a")
    name.wall = 1
    assert name.win("b") == first + 1


def test_a_proposal_is_surpassed_within_bounds() -> None:
    """A client that saw a higher token is given a higher one, but can't burn the numbers of centuries."""
    name = Name(wall=7_000)
    assert name.ask("a", proposal=9_000) == Granted(9_000, TTL)
    name.release("a")
    assert name.ask("b", proposal=2**53) == Granted(7_000 + PROPOSAL_BOUND, TTL)


def test_no_token_is_taken_from_a_clock_that_is_centuries_ahead() -> None:
    """Tokens above 2**53 would repeat in Redis, whose numbers are floats; tokens from before go on increasing."""
    name = Name()
    name.wall = 7_000
    assert name.ask("a") == Granted(7_000, TTL)
    name.release("a")
    name.wall = 2**53 + 1
    assert name.ask("b") == Granted(7_001, TTL)
    name.release("b")
    assert name.ask("c", proposal=9_000) == Granted(9_000, TTL)
    name.release("c")
    assert name.ask("d", proposal=2**53) == Granted(LATEST + PROPOSAL_BOUND, TTL)
    name.release("d")
    name.wall = 7_000
    assert name.ask("e") == Granted(LATEST + PROPOSAL_BOUND + 1, TTL)


def test_a_revocation_burns_a_token() -> None:
    """A revoked token is smaller than the name's last even if nobody follows, and its holder is told."""
    name = Name()
    token = name.win("a")
    victims = name.revoke()
    assert [each.token for each in victims] == [token]
    assert name.state.counter > token
    assert name.heard(NotificationKind.REVOKED) == [("a", token)]
    assert name.renew("a", token) is Outcome.TAKEN_OVER
    assert name.release("a", token) is Outcome.TAKEN_OVER


def test_a_revocation_of_nothing_burns_nothing() -> None:
    """A free name is not changed by a revocation."""
    name = Name()
    assert name.revoke() == []
    assert name.state.counter == 0


def test_what_became_of_a_lease_is_told() -> None:
    """EXPIRED if nothing was given out since, TAKEN_OVER if a newer token was."""
    name = Name()
    token = name.win("a")
    name.now += TTL
    assert name.release("a", token) is Outcome.EXPIRED
    name.win("b")
    assert name.release("a", token) is Outcome.TAKEN_OVER
    assert name.holders() == "b"


def test_a_release_tells_whether_the_lease_was_revoked() -> None:
    """A store that does not know the lease any more remembers a revocation for as long as a tombstone is kept."""
    name = Name()
    tokens = {"a": name.win("a"), "b": 0}
    name.release("a", tokens["a"])
    tokens["b"] = name.win("b")
    name.release("b", tokens["b"])
    assert name.unrevoked("a", tokens["a"])  # another followed, and has released it too
    tokens["c"] = name.win("c")
    name.revoke()
    tokens["d"] = name.win("d")
    name.release("d", tokens["d"])
    assert not name.unrevoked("c", tokens["c"])
    name.now += TOMBSTONE - 1
    assert not name.unrevoked("c", tokens["c"])
    assert name.unrevoked("a", tokens["a"])


# -- 6. a grant is for the whole ttl ------------------------------------------------------------------------------


def test_a_grant_is_for_the_whole_ttl() -> None:
    """A lease lasts as long as its ttl from its first instant: in a reply, by a push, and from each later ask on."""
    name = Name()
    granted = name.ask("a")
    assert isinstance(granted, Granted)
    assert (granted.ttl, name.state.holders[0].expires_at) == (TTL, name.now + TTL)
    name.ask("b")
    name.release("a")
    assert name.state.holders[0].expires_at == name.now + TTL
    answers: list[Callable[[Name], object]] = [lambda name: name.renew("b"), lambda name: name.ask("b")]
    for prolong in answers:
        name.now += TTL // 2
        prolong(name)
        assert name.state.holders[0].expires_at == name.now + TTL


def test_a_push_that_nobody_heard_runs_out() -> None:
    """The next waiter follows a grantee that never spoke, with a larger token."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.ask("c")
    name.release("a")
    unheard = name.token("b")
    name.now += TTL
    reply = name.ask("c")
    assert isinstance(reply, Granted)
    assert reply.token > unheard


def test_who_cannot_be_pushed_to_is_told_when_it_asks() -> None:
    """A waiter without a channel is granted in its turn, and no notification is sent."""
    name = Name()
    name.win("a")
    name.ask("b", channel="")
    name.release("a")
    assert name.holders() == "b"
    assert name.notifications == []
    assert name.ask("b", channel="") == Granted(name.token("b"), TTL)


def test_a_push_carries_the_token_that_is_larger_than_the_waiter_knows() -> None:
    """A waiter is told the counter when it asks; the token that is pushed later exceeds it."""
    name = Name()
    name.win("a")
    reply = name.ask("b")
    name.release("a")
    assert isinstance(reply, Queued)
    [(who, token)] = name.heard(NotificationKind.GRANTED)
    assert who == "b"
    assert token > reply.counter


# -- 7. lock delay ------------------------------------------------------------------------------------------------


def test_a_lock_delay_follows_an_expiry() -> None:
    """After an expiry nobody is granted until the delay is over, to the microsecond."""
    name = Name()
    name.win("a", lock_delay=500)
    name.now += TTL + 200
    reply = name.ask("b")
    assert isinstance(reply, Queued)
    assert name.view().blocked_for == 300 / 1_000_000
    name.now += 299
    assert isinstance(name.ask("b"), Queued)
    name.now += 1
    assert isinstance(name.ask("b"), Granted)


def test_no_lock_delay_follows_a_release() -> None:
    """A holder that let go is known to be done."""
    name = Name()
    name.win("a", lock_delay=500)
    name.release("a")
    name.win("b")


def test_a_lock_delay_follows_a_revocation() -> None:
    """A victim may not know yet: its delay keeps the name from all."""
    name = Name()
    name.win("a", lock_delay=500)
    name.revoke()
    assert isinstance(name.ask("b", wait=False), Busy)
    name.now += 500
    name.win("b")


def test_the_longest_of_several_delays_counts() -> None:
    """Of two that expired together the longer delay is kept."""
    for first, second in ((500, 100), (100, 500)):
        name = Name()
        name.win("a", capacity=2, lock_delay=first)
        name.win("b", capacity=2, lock_delay=second)
        name.now += TTL
        assert isinstance(name.ask("c", capacity=2, wait=False), Busy)
        name.now += 499
        assert isinstance(name.ask("c", capacity=2, wait=False), Busy)
        name.now += 1
        name.win("c", capacity=2)


# -- 8. quarantine ------------------------------------------------------------------------------------------------

QUARANTINE = 5 * TTL


def test_nobody_is_granted_in_quarantine() -> None:
    """Whoever asks is told how long it lasts, keeps a place, and is granted when it is over, to the microsecond."""
    name = Name()
    name.forget(QUARANTINE)
    reply = name.ask("a", wait=False)
    assert reply == Busy(QUARANTINE, (), QUARANTINE)
    assert isinstance(name.ask("b"), Queued)
    name.now += QUARANTINE - 1
    assert name.ask("b") == Queued(name.wall, RETRY, 0, 1)
    name.now += 1
    assert isinstance(name.ask("b"), Granted)


def test_a_push_of_a_grant_that_was_forgotten_is_told_from_a_new_one() -> None:
    """A token from after the quarantine is larger than what a waiter is told, and one from before it is not."""
    name = Name()
    forgotten = name.win("b")
    name.forget(QUARANTINE)
    told = name.ask("b")
    assert isinstance(told, Queued)
    name.now += QUARANTINE
    name.wall += QUARANTINE
    granted = name.ask("b")
    assert isinstance(granted, Granted)
    assert forgotten <= told.counter < granted.token
    again = name.ask("c")
    assert isinstance(again, Queued)
    assert again.counter == granted.token


def test_nothing_is_handed_over_in_quarantine() -> None:
    """A release in quarantine grants nobody: who holds may be only one of those who were granted."""
    name = Name()
    name.win("a")
    name.ask("b")
    name.quarantined_until = name.now + QUARANTINE
    assert name.release("a") is Outcome.RELEASED
    assert (name.holders(), name.queue()) == ("", "b")
    assert name.withdraw("b").quarantine == QUARANTINE


def test_a_holder_takes_up_a_lease_that_was_forgotten() -> None:
    """A renewal in quarantine of a lease that the store does not know makes it known, with its token."""
    name = Name()
    token = name.win("a", lock_delay=500)
    name.forget(QUARANTINE)
    assert name.take_up("a", token) is None
    assert (name.holders(), name.token("a"), name.state.counter) == ("a", token, token)
    holder = name.state.holders[0]
    assert (holder.expires_at, holder.lock_delay) == (name.now + TTL, 500)
    assert name.release("a") is Outcome.RELEASED


def test_a_holder_takes_up_a_lease_whose_renewals_were_forgotten() -> None:
    """A replica that lags knows of a grant, and believes that it has run out: its holder knows better."""
    name = Name()
    token = name.win("a")
    name.now += TTL
    name.quarantined_until = name.now + QUARANTINE
    assert name.take_up("a", token) is None
    assert name.token("a") == token


def test_a_waiter_that_takes_up_a_lease_waits_no_more() -> None:
    """Who was granted by a push that the store forgot stands in its queue, as far as it knows; but holds."""
    name = Name()
    name.ask("a")
    name.release("a")
    name.win("b")
    name.ask("a")
    name.state.last_released = ""
    name.state.holders = []
    name.quarantined_until = name.now + QUARANTINE
    assert name.take_up("a", name.state.counter + 1) is None
    assert (name.holders(), name.queue()) == ("a", "")


def test_a_lease_that_was_taken_up_for_less_is_granted_for_as_long_as_it_is_said() -> None:
    """Who asks again is told for how long it holds, and does so, whatever its last renewal was for."""
    name = Name()
    token = name.win("a")
    name.forget(QUARANTINE)
    name.take_up("a", token, ttl=1)
    assert name.ask("a") == Granted(token, TTL)
    name.now += TTL - 1
    assert name.view().holders[0].token == token


def test_nothing_is_taken_up_outside_a_quarantine() -> None:
    """A lease that ran out while the store was there is over."""
    name = Name()
    token = name.win("a")
    name.forget(QUARANTINE)
    name.now += QUARANTINE
    assert name.take_up("a", token) is Outcome.EXPIRED
    assert name.holders() == ""


def test_nothing_is_taken_up_without_what_it_came_of() -> None:
    """A store can't know weight and capacity of what it forgot."""
    name = Name()
    token = name.win("a")
    name.forget(QUARANTINE)
    assert name.renew("a", token) is Outcome.EXPIRED


def test_what_was_followed_is_not_taken_up() -> None:
    """A lease that the store knows was followed by another grant, or was taken by force, is over."""
    followed: list[Callable[[Name], object]] = [
        lambda name: (name.release("a"), name.win("b")),
        lambda name: name.revoke(),
    ]
    for follow in followed:
        name = Name()
        token = name.win("a")
        follow(name)
        name.quarantined_until = name.now + QUARANTINE
        assert name.take_up("a", token) is Outcome.TAKEN_OVER


def test_what_was_released_is_not_taken_up() -> None:
    """A renewal that is late comes after the release of its lease, and revives nothing."""
    name = Name()
    token = name.win("a")
    name.release("a")
    name.quarantined_until = name.now + QUARANTINE
    assert name.take_up("a", token) is Outcome.EXPIRED
    assert name.holders() == ""


def test_all_holders_of_a_shared_name_take_their_leases_up_in_any_order() -> None:
    """A reader, or a holder of permits, is not refused because another one with a larger token came first."""
    name = Name()
    tokens = {who: name.win(who, capacity=3) for who in "abc"}
    name.forget(QUARANTINE)
    for who in "cab":
        assert name.take_up(who, tokens[who]) is None
    assert (sorted(name.holders()), name.state.counter) == (["a", "b", "c"], tokens["c"])


def test_what_was_followed_is_not_released_in_quarantine() -> None:
    """A store that has issued a newer token has not forgotten the lease: it was revoked, or had ended."""
    name = Name()
    token = name.win("a")
    name.revoke()
    name.quarantined_until = name.now + QUARANTINE
    assert name.release("a", token) is Outcome.TAKEN_OVER


def test_what_was_released_in_quarantine_is_not_taken_up() -> None:
    """The store does not know the lease; it remembers the release all the same, for renewals that are under way."""
    name = Name()
    token = name.win("a")
    name.forget(QUARANTINE)
    assert name.release("a", token) is Outcome.RELEASED, "nobody had the name since"
    assert name.take_up("a", token) is Outcome.EXPIRED
    assert name.holders() == ""


def test_an_exclusive_lease_ends_older_ones_when_it_is_taken_up() -> None:
    """Whatever the store thinks is held: it had ended when a later lease of everything was granted."""
    name = Name()
    name.win("a", capacity=3)
    name.ask("w", capacity=3, weight=3)
    name.withdraw("w")
    name.quarantined_until = name.now + QUARANTINE
    assert name.take_up("w", name.state.counter + 1) is None
    assert name.holders() == "w"


def test_a_lease_is_taken_up_beside_others_if_it_fits() -> None:
    """Of a semaphore no more is taken up than there is; and nothing by another count."""
    name = Name()
    tokens = {who: name.win(who, capacity=2) for who in "ab"}
    name.ask("c", capacity=2)
    name.ask("d", capacity=3)
    name.forget(QUARANTINE)
    assert name.take_up("a", tokens["a"]) is None
    assert name.take_up("b", tokens["b"]) is None
    assert name.take_up("c", tokens["b"] + 1) is Outcome.EXPIRED
    assert name.release("b") is Outcome.RELEASED
    assert name.take_up("d", tokens["b"] + 1) is Outcome.EXPIRED
    assert name.take_up("c", tokens["b"] + 1) is None
    assert name.holders() == "ac"


# -- 9. a clock that stepped back ---------------------------------------------------------------------------------


def test_a_clock_that_stepped_back_does_not_stretch_a_lease() -> None:
    """What is left of a lease never exceeds its ttl."""
    name = Name()
    name.win("a")
    name.now -= 100 * TTL
    assert isinstance(name.ask("b", wait=False), Busy)
    name.now += TTL
    name.win("b")


def test_a_clock_that_stepped_back_does_not_stretch_a_delay() -> None:
    """What is left of a lock delay never exceeds it."""
    name = Name()
    name.win("a", lock_delay=500)
    name.now += TTL
    name.ask("b", wait=False)
    name.now -= 100 * TTL
    assert isinstance(name.ask("b", wait=False), Busy)
    name.now += 500
    name.win("b")


def test_a_clock_that_stepped_back_does_not_stretch_a_waiter_or_a_tombstone() -> None:
    """What is left of a waiter's patience never exceeds it, nor a tombstone's time."""
    name = Name()
    name.win("a", ttl=10 * TEST_TIMEOUT)
    name.ask("b")
    name.withdraw("z", unsure=True)
    name.now -= 20 * TEST_TIMEOUT
    name.ask("c")
    assert name.state.queue[0].fresh_until == name.now + TEST_TIMEOUT
    assert name.state.tombstones["z"] == name.now + TOMBSTONE


LONG = 100 * TEST_TIMEOUT
"""A ttl that lets a waiter be silent for long."""


def with_waiters(count: int) -> Name:
    """Make a name that is held for long, in a store that lets waiters be silent; so many wait for it."""
    name = Name()
    name.long_silence = True
    name.win("a", ttl=LONG)
    for number in range(count):
        name.ask(str(number), ttl=LONG)
    return name


def test_the_last_of_a_long_queue_may_be_silent_for_longer() -> None:
    """The more waiters are ahead, the later it is told to ask, and the longer it lives; with a bound."""
    name = Name()
    name.long_silence = True
    name.win("a", ttl=LONG)
    replies = [name.ask(str(number), ttl=LONG) for number in range(5 * CROWD)]
    for number, reply in enumerate(replies):
        factor = min(1 + number // CROWD, LONGEST_SILENCE)
        assert name.state.queue[number].fresh_until == name.now + TEST_TIMEOUT * factor
        assert isinstance(reply, Queued)
        assert reply.retry_in == (INTERVAL + INTERVAL * min(number, 10) // 10) * factor
    for number in range(CROWD):
        name.withdraw(str(number))
    name.now += TEST_TIMEOUT
    name.ask(str(CROWD), ttl=LONG)
    assert name.state.queue[0].fresh_until == name.now + TEST_TIMEOUT


def test_nobody_is_silent_for_longer_than_its_ttl() -> None:
    """So a waiter that died keeps nobody for longer than a holder that died; and one that polls is not silent."""
    name = with_waiters(5 * CROWD)
    lives: list[tuple[int, int]] = []
    for who, ttl, channel in (("b", TEST_TIMEOUT - 1, None), ("c", 3 * TEST_TIMEOUT - 1, None), ("d", LONG, "")):
        reply = name.ask(who, ttl=ttl, channel=channel)
        assert isinstance(reply, Queued)
        lives.append((name.state.queue[reply.place].fresh_until - name.now, reply.retry_in))
    assert lives == [(TEST_TIMEOUT * factor, 2 * INTERVAL * factor) for factor in (1, 2, 1)]


def test_the_last_of_a_long_queue_is_told_in_time_that_it_is_the_head() -> None:
    """It may be silent when a lease ends that the head waits for: so it is notified when to ask."""
    name = Name()
    name.long_silence = True
    name.win("a", ttl=30 * INTERVAL)
    for number in range(2 * CROWD + 1):
        name.ask(str(number), ttl=LONG)
    for number in range(2 * CROWD):
        name.withdraw(str(number))
    assert name.heard(NotificationKind.HEAD) == [(str(2 * CROWD), 30 * INTERVAL)]


def test_a_silent_head_is_told_of_a_lock_delay() -> None:
    """It waits for the end of a lease; the name is free before that if the lease is revoked."""
    name = Name()
    name.long_silence = True
    name.win("a", ttl=LONG, lock_delay=INTERVAL)
    name.ask("b", ttl=LONG)
    name.revoke()
    assert name.heard(NotificationKind.HEAD) == [("b", INTERVAL)]


def test_a_clock_that_stepped_back_leaves_the_last_of_a_long_queue_alive() -> None:
    """It may still be silent for as long as it might at the last step, and no longer."""
    name = with_waiters(3 * CROWD)
    name.now += TEST_TIMEOUT // 2
    name.ask("b")
    name.now -= 100 * TEST_TIMEOUT
    name.ask("c")
    left = [each.fresh_until - name.now for each in name.state.queue]
    assert left[0] == TEST_TIMEOUT
    assert left[3 * CROWD - 1] == 3 * TEST_TIMEOUT - TEST_TIMEOUT // 2


def test_a_renewal_never_shortens() -> None:
    """A renewal for less than is left changes nothing; one for more lengthens what a clock may stretch."""
    name = Name()
    name.win("a")
    name.renew("a", ttl=1)
    assert name.state.holders[0].expires_at == name.now + TTL
    name.renew("a", ttl=5 * TTL)
    name.now += 1
    name.view()
    assert name.state.holders[0].expires_at == name.now - 1 + 5 * TTL


# -- what is left -------------------------------------------------------------------------------------------------


def test_a_name_is_idle_after_all_that_matters_has_ended() -> None:
    """Holders with their delays and waiters keep a name in use; after them, it was used last at the last step."""
    name = Name()
    assert name.state.idle_after() == 0
    name.win("a", lock_delay=500)
    assert name.state.idle_after() == name.now + TTL + 500
    name.ask("b")
    assert name.state.idle_after() == name.now + TEST_TIMEOUT
    name.withdraw("b", unsure=True)
    assert name.state.idle_after() == name.now + TTL + 500
    name.now += TOMBSTONE
    name.view()
    assert name.state.idle_after() == name.now


def test_what_is_remembered_of_the_unused_outlives_every_tombstone() -> None:
    """A name is never forgotten while a request that was given up must still be refused."""
    assert RETENTION > 2 * TOMBSTONE


def test_a_lock_delay_keeps_a_name_in_use() -> None:
    """A name that is blocked is not forgotten."""
    name = Name()
    name.win("a", lock_delay=5 * TTL)
    name.now += TTL
    name.view()
    assert name.state.holders == []
    assert name.state.idle_after() == name.now + 5 * TTL


def test_a_view_shows_what_is() -> None:
    """A view shows holders, waiters and who of them is alive, in seconds."""
    name = Name()
    token = name.win("a")
    name.ask("b")
    name.deaf.add("b")
    name.now += 250_000
    view = name.view()
    [holder], [waiter] = view.holders, view.waiters
    assert (holder.owner, holder.token, holder.held_for, holder.expires_in, holder.ttl) == (
        "owner a",
        token,
        0.25,
        0.75,
        1.0,
    )
    assert (waiter.owner, waiter.waited_for, waiter.alive) == ("owner b", 0.25, False)
    assert (view.capacity, view.last_token, view.blocked_for) == (1, token, 0.0)
