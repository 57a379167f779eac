"""The tokens of an ordered store: each position has a range of them, and each grant gets the last that it reserves."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from tenure.contracts.limits import MOST_TOKENS
from tenure.contracts.messages import AcquireRequest, AdjustRequest, Granted, Queued
from tenure.errors import StoreError, StoreUnavailable
from tenure.outcome import Outcome
from tenure.runtimes.threads import complete
from tenure.stores.ordered import acquiring, entries
from tenure.stores.ordered.entries import Entry, Kind
from tests.ordered.scene import Scene, ask_of
from tests.simulated.mutants import replaced

RESERVED = 1024


def ranged(request_id: str, span: int = RESERVED) -> AcquireRequest:
    """Return a request that reserves tokens for local hand-offs."""
    return replace(ask_of(request_id), span=span)


def ranges_lie_apart(scene: Scene) -> None:
    """No token that a grant reserves belongs to the next grant, whatever each of them reserves."""
    last = 0
    for number, span in enumerate((1, RESERVED, 7, RESERVED, RESERVED, 1, RESERVED)):
        request = ranged(f"r{number}", span)
        granted = scene.hold(request)
        first = granted.token - span + 1
        assert first > last, f"the tokens {first} to {granted.token} follow {last}"
        last = granted.token
        assert scene.release(request, granted) is Outcome.RELEASED


def test_ranges_lie_apart() -> None:
    """The tokens of one grant are below those of the next."""
    ranges_lie_apart(Scene())


def one_each(position: int) -> int:
    """Give each position one token."""
    return position


def a_hundred_each(position: int) -> int:
    """Give each position too few tokens."""
    return position * 100


def the_position_itself(self: Entry, position: int) -> int:
    """Take the position for the token."""
    return position


@pytest.mark.parametrize(
    "plant",
    [
        replaced(entries, "first_token", one_each),
        replaced(entries, "first_token", a_hundred_each),
        replaced(Entry, "token_at", the_position_itself),
    ],
)
def test_ranges_that_overlap_are_found(plant: Callable[[], AbstractContextManager[Any]]) -> None:
    """The test above finds each of these planted bugs."""
    scene = Scene()
    with plant(), pytest.raises(AssertionError, match="follow"):
        ranges_lie_apart(scene)


def test_a_grant_has_the_last_token_of_its_range() -> None:
    """A client counts up from the first of the reserved tokens; the store knows the lease by the last."""
    scene = Scene()
    request = ranged("r1")
    granted = scene.hold(request)
    [entry] = scene.ensemble.listing("name").entries
    assert granted.token == entry.position * 1024 + 1023
    assert scene.hold(request) == granted, "a repeated request gets the same token"
    assert complete(scene.store.renew([scene.renewal(request, granted)], scene.until)) == [None]
    assert complete(scene.store.adjust(AdjustRequest("name", "r1", granted.token, 0, "another"), scene.until)) is None
    assert scene.release(request, granted) is Outcome.RELEASED
    assert scene.hold(ranged("r2", 1)).token % 1024 == 0


def test_a_lease_is_known_by_its_last_token_alone() -> None:
    """What carries another token of the range is of another lease."""
    scene = Scene()
    request = ranged("r1")
    granted = scene.hold(request)
    other = Granted(granted.token - 1, granted.ttl)
    assert complete(scene.store.renew([scene.renewal(request, other)], scene.until)) != [None]
    assert scene.release(request, other) is not Outcome.RELEASED
    assert scene.release(request, granted) is Outcome.RELEASED


def test_a_waiter_is_told_a_counter_below_all_its_tokens() -> None:
    """No token of the holder before it is above the counter, and no token of its own is at or below it."""
    scene = Scene()
    request = ranged("r1")
    granted = scene.hold(request)
    queued = complete(scene.store.acquire(ranged("r2"), scene.until))
    assert isinstance(queued, Queued)
    assert granted.token <= queued.counter
    assert scene.release(request, granted) is Outcome.RELEASED
    assert scene.hold(ranged("r2")).token - RESERVED + 1 > queued.counter


def test_others_see_and_revoke_the_token_that_the_holder_has() -> None:
    """An inspector of another client shows the last token of the range, and takes the lease by it."""
    scene = Scene()
    granted = scene.hold(ranged("r1"))
    view = complete(scene.store.inspect("name", scene.until))
    assert [holder.token for holder in view.holders] == [granted.token] == [view.last_token]
    assert complete(scene.store.revoke("name", scene.until, granted.token - 1)) == []
    [victim] = complete(scene.store.revoke("name", scene.until, granted.token))
    assert victim.token == granted.token
    view = complete(scene.store.inspect("name", scene.until))
    following = scene.hold(ranged("r2"))
    assert granted.token <= view.last_token < following.token - RESERVED + 1


def hold_at(scene: Scene, position: int) -> Granted:
    """Return the grant of a contender with this position."""
    scene.ensemble._count = position - 1
    return scene.hold(ranged("far"))


def test_the_last_position_with_exact_tokens_is_granted() -> None:
    """The largest token is 2**53 - 1: every language has it exactly."""
    assert hold_at(Scene(), 2**43 - 1).token == MOST_TOKENS == 2**53 - 1


@pytest.mark.parametrize("position", [2**43, 2**53, -(2**62)])
def test_a_position_beyond_the_tokens_is_refused(position: int) -> None:
    """No wrong token is granted, the error says what to do, and nothing is left behind."""
    scene = Scene()
    with pytest.raises(StoreError, match=r"Move the locks to a new ensemble") as caught:
        hold_at(scene, position)
    assert not isinstance(caught.value, StoreUnavailable), "no repetition would help"
    there = scene.ensemble.listing("name").entries
    assert not [entry for entry in there if entry.kind is Kind.CONTENDER]
    assert not scene.store._contenders.live


def check_nothing(request: AcquireRequest, position: int) -> None:
    """Let every position pass."""


def test_a_position_that_is_granted_unchecked_is_found() -> None:
    """The test above finds a store that does not look at positions."""
    with replaced(acquiring, "check_tokens", check_nothing)(), pytest.raises(pytest.fail.Exception):
        test_a_position_beyond_the_tokens_is_refused(2**43)


def test_more_tokens_than_a_position_has_are_refused() -> None:
    """A request cannot reserve what belongs to the next position."""
    scene = Scene()
    with pytest.raises(StoreError, match="reserve"):
        scene.hold(ranged("r1", 1025))
    assert not scene.store._contenders.live
