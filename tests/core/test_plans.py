"""Lock objects of one name share the plan that the first acquisition has computed, whichever object that was."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from tenure import Client
from tenure.contracts.messages import AcquireRequest, Notification, NotificationKind
from tenure.core.access import StoreAccess
from tenure.core.spec import LockSpec
from tenure.stores.memory import MemoryTable, memory_source
from tests.planting import planted

Make = Callable[[Client], Any]
"""Makes a lock object, or acquires it."""

OBJECTS: list[Make] = [
    lambda client: client.lock("n", ttl=30.0),
    lambda client: client.lock("n", ttl=31.0),
    lambda client: client.lock("n", ttl=30.0, lock_delay=1.0),
    lambda client: client.lock("n", ttl=30.0, max_hold=5.0),
    lambda client: client.lock("n", ttl=30.0, max_hold=6.0),
    lambda client: client.lock("n", ttl=30.0, min_hold=0.001),
    lambda client: client.lock("n", ttl=30.0, linger=0.001),
    lambda client: client.lock("n", ttl=30.0, fair=False),
    lambda client: client.lock("n", ttl=30.0, fair=False, fair_after=2.0),
    lambda client: client.lock("n", ttl=30.0, renew=False),
    lambda client: client.semaphore("n", 5, ttl=30.0),
    lambda client: client.semaphore("n", 6, ttl=30.0),
    lambda client: client.semaphore("n", 5, ttl=30.0).acquire(weight=2),
    lambda client: client.semaphore("n", 5, ttl=30.0, lock_delay=1.0),
    lambda client: client.rwlock("n", ttl=30.0).read(),
    lambda client: client.rwlock("n", ttl=30.0).write(),
]
"""Lock objects of one name, with whatever a request or a plan depends on."""


def client() -> Client:
    """Return a client of a table of its own."""
    return Client(store=memory_source(MemoryTable()), owner="test")


def requested(client: Client, make: Make) -> AcquireRequest:
    """Acquire a new lock object and release it; return its request."""
    with make(client) as lease:
        request: AcquireRequest = lease._core.grant.request
        return request


def rest(request: AcquireRequest) -> AcquireRequest:
    """Return what a request has in common with others of the same lock, in any client."""
    return replace(request, request_id="", channel="", proposal=0, shared=None)


@pytest.fixture
def others() -> Iterator[Callable[[], Client]]:
    """Return what makes clients, which are closed at the end."""
    made: list[Client] = []

    def make() -> Client:
        made.append(client())
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_an_object_requests_the_same_whatever_was_acquired_before(others: Callable[[], Client]) -> None:
    """A plan is shared by those alone for whom it would be computed alike, and so is what a store keeps with it."""
    alone = [rest(requested(others(), make)) for make in OBJECTS]
    for order in (OBJECTS, OBJECTS[::-1]):
        shared = others()
        found = {make: requested(shared, make) for make in order}
        assert [rest(found[make]) for make in OBJECTS] == alone
        for one, other in combinations(found.values(), 2):
            assert one.shared is not other.shared or rest(one) == rest(other)


@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_an_object_for_each_use_computes_no_plan_of_its_own(others: Callable[[], Client], number: int) -> None:
    """Else a program with a `client.lock(...)` where it needs one would find no plan again, and keep a thousand."""
    ours = others()
    requests = [requested(ours, OBJECTS[number]) for _ in range(5)]
    assert len({id(request.shared) for request in requests}) == 1
    assert len(ours.session().plans) == 1


def test_a_channel_that_is_found_late_is_in_every_plan(others: Callable[[], Client]) -> None:
    """Else a waiter would go on to poll, as one that nobody can notify."""
    ours = others()
    session = ours.session()
    ours.inspect("n")  # opens the store
    found, session.channel = session.channel, ""
    session.plans.clear()
    before = requested(ours, OBJECTS[0])
    session.deliver(Notification(found, NotificationKind.GAP, ""))
    after = requested(ours, OBJECTS[0])
    assert (before.channel, after.channel) == ("", found)
    assert before.interval < after.interval
    assert before.shared is not after.shared


BUGS = {
    "another ttl": ("else (self.name, self.ttl,", "else (self.name, 0,"),
    "another lock delay": ("self.lock_delay, self.fair_after)", "0, self.fair_after)"),
    "another bound": ("self.lock_delay, self.fair_after)", "self.lock_delay, 0)"),
    "max_hold": ("and self.max_hold == NEVER", ""),
    "another max_hold": ("self.max_hold, self.linger", "0, self.linger"),
    "another lock delay of a semaphore": ("self.lock_delay, self.fair_after, *more", "0, self.fair_after, *more"),
    "another weight": ("more = self.weight, ", "more = 0, "),
    "another capacity": ("self.capacity, self.metadata", "0, self.metadata"),
    "an object of its own": ("self.plan_key = key", "self.plan_key = (object(),)"),
    "a semaphore of its own": ("more = self.weight, ", "more = object(), "),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, others: Callable[[], Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one that a change could bring in."""
    monkeypatch.setattr(LockSpec, "__post_init__", planted(LockSpec, "__post_init__", *BUGS[bug]))
    with pytest.raises(AssertionError):  # noqa: PT012 - either test may find it
        test_an_object_requests_the_same_whatever_was_acquired_before(others)
        test_an_object_for_each_use_computes_no_plan_of_its_own(others, 0)
        test_an_object_for_each_use_computes_no_plan_of_its_own(others, 10)


def test_plans_that_outlive_their_channel_are_found(
    others: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for the plans of a client that had no channel."""
    monkeypatch.setattr(StoreAccess, "set_channel", planted(StoreAccess, "set_channel", "self.plans = {}", "pass"))
    with pytest.raises(AssertionError):
        test_a_channel_that_is_found_late_is_in_every_plan(others)
