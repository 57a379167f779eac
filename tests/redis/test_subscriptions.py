"""What is wanted of channels is asked, answered in order, and asked again when a connection was lost."""

import pytest

from tenure.errors import StoreUnavailable
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import ReplyError
from tenure.stores.redis.links.subscriptions import Subscriptions, SubscriptionWaiter

SUBSCRIBE = wire.command("SUBSCRIBE", "a")
UNSUBSCRIBE = wire.command("UNSUBSCRIBE", "a")
CONFIRMED = [b"subscribe", b"a", 1]
ENDED = [b"unsubscribe", b"a", 0]


class Told(SubscriptionWaiter):
    """A waiter that counts how often it is told."""

    def __init__(self) -> None:
        self.count = 0
        super().__init__(self.tell_us)

    def tell_us(self) -> None:
        """Count."""
        self.count += 1


@pytest.fixture
def wanted() -> Subscriptions:
    """Want a channel, and have it confirmed."""
    subscriptions = Subscriptions(sharded=False)
    waiter = Told()
    assert subscriptions.demand(b"a", waiter)
    assert subscriptions.requests() == SUBSCRIBE
    assert subscriptions.requests() == b""
    assert not subscriptions.is_complete()
    assert subscriptions.take(CONFIRMED) is None
    assert (waiter.count, waiter.error) == (1, None)
    assert subscriptions.is_complete()
    assert not subscriptions.gap_is_over()
    return subscriptions


def test_a_message_is_told_from_an_answer(wanted: Subscriptions) -> None:
    """A payload that looks like an answer is a payload."""
    assert wanted.take([b"message", b"a", b"subscribe"]) == b"subscribe"
    assert not wanted.demand(b"a", Told())


def test_channels_of_slots_have_verbs_of_their_own() -> None:
    """In a cluster it is SSUBSCRIBE and smessage."""
    subscriptions = Subscriptions(sharded=True)
    subscriptions.demand(b"a", Told())
    assert subscriptions.requests() == wire.command("SSUBSCRIBE", "a")
    subscriptions.take([b"ssubscribe", b"a", 1])
    assert subscriptions.is_complete()
    assert subscriptions.take([b"smessage", b"a", b"hello"]) == b"hello"


def test_a_lost_connection_is_a_gap_once_all_is_confirmed(wanted: Subscriptions) -> None:
    """What was confirmed is asked for again; the gap is told once."""
    wanted.lost()
    assert not wanted.gap_is_over()
    assert wanted.requests() == SUBSCRIBE
    wanted.take(CONFIRMED)
    assert wanted.gap_is_over()
    assert not wanted.gap_is_over()


def test_what_was_never_confirmed_is_no_gap() -> None:
    """A connection that is lost before the first confirmation has lost no message."""
    subscriptions = Subscriptions(sharded=False)
    waiter = Told()
    subscriptions.demand(b"a", waiter)
    subscriptions.requests()
    subscriptions.lost()
    assert subscriptions.requests() == SUBSCRIBE
    subscriptions.take(CONFIRMED)
    assert waiter.count == 1
    assert not subscriptions.gap_is_over()


def test_a_channel_that_the_server_ended_is_asked_for_again(wanted: Subscriptions) -> None:
    """When a slot moves, its node ends subscriptions unasked; asked again, it says where the slot is."""
    wanted.take(ENDED)
    assert not wanted.is_complete()
    assert wanted.requests() == SUBSCRIBE
    wanted.take(ReplyError("MOVED 1 host:1"))
    assert wanted.requests() == b""
    assert not wanted
    assert wanted.gap_is_over()


def test_given_up_and_wanted_again(wanted: Subscriptions) -> None:
    """An answer to what was asked before is not taken for one to what was asked since."""
    wanted.drop(b"a")
    waiter = Told()
    assert wanted.demand(b"a", waiter)
    assert wanted.requests() == UNSUBSCRIBE + SUBSCRIBE
    wanted.take(ENDED)
    assert waiter.count == 0
    wanted.take(CONFIRMED)
    assert waiter.count == 1


def test_wanted_again_before_the_first_answer() -> None:
    """The confirmation of a subscription that was given up meanwhile is not one of its successor."""
    subscriptions = Subscriptions(sharded=False)
    first, second = Told(), Told()
    subscriptions.demand(b"a", first)
    subscriptions.requests()
    subscriptions.drop(b"a")
    assert isinstance(first.error, StoreUnavailable)
    subscriptions.demand(b"a", second)
    assert subscriptions.requests() == UNSUBSCRIBE + SUBSCRIBE
    subscriptions.take(CONFIRMED)
    subscriptions.take(ENDED)
    assert second.count == 0
    assert not subscriptions.is_complete()
    subscriptions.take(CONFIRMED)
    assert second.count == 1


def test_who_stops_waiting_leaves_nothing() -> None:
    """A channel that nobody waits for any more, and nobody ever heard, is given up."""
    subscriptions = Subscriptions(sharded=False)
    first, second = Told(), Told()
    subscriptions.demand(b"a", first)
    subscriptions.demand(b"a", second)
    subscriptions.requests()
    subscriptions.stop_waiting(b"a", first)
    assert subscriptions
    subscriptions.stop_waiting(b"a", second)
    assert not subscriptions
    assert subscriptions.requests() == UNSUBSCRIBE
    assert (first.count, second.count) == (0, 0)


def test_who_stops_waiting_does_not_end_what_others_hear(wanted: Subscriptions) -> None:
    """A channel that was heard once stays wanted, whoever waited for it in vain on another connection."""
    wanted.lost()
    waiter = Told()
    wanted.demand(b"a", waiter)
    wanted.stop_waiting(b"a", waiter)
    assert wanted.requests() == SUBSCRIBE


def test_an_error_is_about_what_was_asked_first(wanted: Subscriptions) -> None:
    """An error does not say what it is about; the order does. One that answers nothing is a refusal of all."""
    waiter = Told()
    wanted.demand(b"b", waiter)
    wanted.probe()
    wanted.requests()
    wanted.take(ReplyError("NOPERM no ping"))
    assert waiter.count == 0
    wanted.take(ReplyError("NOPERM no channel"))
    assert isinstance(waiter.error, ReplyError)
    assert wanted.is_complete()
    assert not wanted.gap_is_over()
    with pytest.raises(ConnectionRefusedError, match="max number"):
        wanted.take(ReplyError("ERR max number of clients reached"))


@pytest.mark.parametrize("pong", [b"PONG", [b"pong", b""]], ids=["without channels", "with channels"])
def test_a_ping_is_answered_in_two_ways(wanted: Subscriptions, pong: object) -> None:
    """Its answer looks different while there are subscriptions."""
    assert wanted.probe() == wire.command("PING")
    wanted.demand(b"b", Told())
    wanted.requests()
    wanted.take(pong)
    wanted.take([b"subscribe", b"b", 2])
    assert wanted.is_complete()


def test_without_a_connection_those_who_wait_are_told(wanted: Subscriptions) -> None:
    """What was heard before stays wanted; what never was does not."""
    wanted.lost()
    old, new = Told(), Told()
    wanted.demand(b"a", old)
    wanted.demand(b"b", new)
    wanted.refuse(StoreUnavailable("nobody there"))
    assert isinstance(old.error, StoreUnavailable)
    assert isinstance(new.error, StoreUnavailable)
    assert wanted.requests() == SUBSCRIBE
