"""Lock objects of one name share the plan that the first acquisition has computed, whichever object that was."""

from collections.abc import Callable, Iterator, Mapping
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

OBJECTS: list[Mapping[str, Any]] = [
    {"ttl": 30.0},
    {"ttl": 31.0},
    {"ttl": 30.0, "lock_delay": 1.0},
    {"ttl": 30.0, "max_hold": 5.0},
    {"ttl": 30.0, "min_hold": 0.001},
    {"ttl": 30.0, "linger": 0.001},
    {"ttl": 30.0, "fair": False},
    {"ttl": 30.0, "fair": False, "fair_after": 2.0},
    {"ttl": 30.0, "renew": False},
]
"""The options of lock objects of one name."""


def client() -> Client:
    """Return a client of a table of its own."""
    return Client(store=memory_source(MemoryTable()), owner="test")


def requested(client: Client, options: Mapping[str, Any]) -> AcquireRequest:
    """Acquire a new lock object and release it; return its request."""
    with client.lock("n", **options) as lease:
        return lease._core.grant.request


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
    alone = [rest(requested(others(), options)) for options in OBJECTS]
    for order in (OBJECTS, OBJECTS[::-1]):
        shared = others()
        found = {id(options): requested(shared, options) for options in order}
        assert [rest(found[id(options)]) for options in OBJECTS] == alone
        for one, other in combinations(found.values(), 2):
            assert one.shared is not other.shared or rest(one) == rest(other)


def test_an_object_for_each_use_computes_no_plan_of_its_own(others: Callable[[], Client]) -> None:
    """Else a program with a `client.lock(...)` where it needs one would find no plan again, and keep a thousand."""
    ours = others()
    parts = set[int]()
    for _ in range(5):
        with ours.lock("n", ttl=30.0) as lease:
            parts.add(id(lease._core.grant.request.shared))
    assert len(parts) == 1
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
    "another ttl": ("self.name, self.ttl,", "self.name, 0,"),
    "another lock delay": ("self.lock_delay, ", "0, "),
    "another bound": ("self.fair_after)", "0)"),
    "max_hold": ("or self.max_hold != NEVER", ""),
    "an object of its own": ("if key is None or", "if True or"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, others: Callable[[], Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one that a change could bring in."""
    monkeypatch.setattr(LockSpec, "__post_init__", planted(LockSpec, "__post_init__", *BUGS[bug]))
    with pytest.raises(AssertionError):  # noqa: PT012 - either test may find it
        test_an_object_requests_the_same_whatever_was_acquired_before(others)
        test_an_object_for_each_use_computes_no_plan_of_its_own(others)


def test_plans_that_outlive_their_channel_are_found(
    others: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for the plans of a client that had no channel."""
    monkeypatch.setattr(StoreAccess, "hear_at", planted(StoreAccess, "hear_at", "self.plans = {}", "pass"))
    with pytest.raises(AssertionError):
        test_a_channel_that_is_found_late_is_in_every_plan(others)
