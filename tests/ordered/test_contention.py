"""A holder that hands its lease off locally hears of waiters of other clients."""

# ruff: noqa: D102 - the contract of a directory says what each method does

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tenure.contracts.messages import AcquireRequest, Busy, Granted, NotificationKind, Queued, WithdrawRequest
from tenure.errors import StoreError, StoreUnavailable
from tenure.outcome import Outcome
from tenure.runtimes.threads import complete
from tenure.stores.ordered.contenders import WOKEN_TTL
from tenure.stores.ordered.entries import Listing
from tenure.stores.ordered.inspector import Inspector
from tenure.stores.ordered.renewing import LeaseRenewals
from tests.ordered.model import ModelDirectory
from tests.ordered.scene import Scene, ask_of
from tests.simulated.mutants import replaced


def ranged(request_id: str) -> AcquireRequest:
    """Return a request that reserves tokens for local hand-offs."""
    return replace(ask_of(request_id), span=1024)


def contended(scene: Scene) -> list[str]:
    """Return the requests of which the client was notified that another client waits, and forget them."""
    found = [each.request_id for each in scene.notifications if each.kind is NotificationKind.CONTENDED]
    scene.notifications.clear()
    return found


class Two:
    """A holder, and another client of the same ensemble."""

    def __init__(self, request: AcquireRequest, make: type[ModelDirectory] = ModelDirectory) -> None:
        self.here = Scene(make)
        self.there = Scene(make, self.here.ensemble)
        self.request = request
        self.granted = self.here.hold(request)

    def wait(self, request_id: str) -> Queued:
        """Have the other client wait."""
        reply = complete(self.there.store.acquire(ranged(request_id), self.there.until))
        assert isinstance(reply, Queued)
        return reply

    def renew(self) -> bool:
        """Renew the lease; return whether the reply says that somebody waits."""
        renewal = self.here.renewal(self.request, self.granted)
        assert complete(self.here.store.renew([renewal], self.here.until)) == [None]
        return renewal.contended


def the_first_waiter_is_told() -> None:
    """Check that each waiter notifies the holder once, and the first waiter whenever it repeats its request."""
    two = Two(ranged("r1"))
    assert not two.granted.contended
    assert contended(two.here) == []
    two.wait("w1")
    assert contended(two.here) == ["r1"]
    two.wait("w2")
    assert contended(two.here) == ["r1"], "the first waiter may have died before it told"
    two.wait("w2")
    assert contended(two.here) == []
    two.wait("w1")
    assert contended(two.here) == ["r1"]


def test_the_first_waiter_is_told() -> None:
    """The holder hears of the first waiter."""
    the_first_waiter_is_told()


def the_first_waiter_dies_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the holder hears of a waiter behind one that died before it could tell, once that is possible."""
    two = Two(ranged("r1"), Unreadable)
    monkeypatch.setattr(Unreadable, "broken", StoreUnavailable)
    two.wait("w1")  # and it never sends anything again
    two.wait("w2")
    monkeypatch.setattr(Unreadable, "broken", None)
    two.wait("w3")
    assert contended(two.here) == ["r1"]
    two.wait("w2")
    assert contended(two.here) == ["r1"], "its first message failed"


def test_a_first_waiter_that_dies_silently_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of a dead waiter stays as long as its session; the waiters behind it are heard of nevertheless."""
    the_first_waiter_dies_silently(monkeypatch)


def test_a_waiter_that_becomes_the_first_is_told() -> None:
    """If the first waiter gives up, the next one is woken, repeats its request, and notifies the holder."""
    two = Two(ranged("r1"))
    two.wait("w1")
    two.wait("w2")
    contended(two.here)
    complete(two.there.store.withdraw(WithdrawRequest("name", "w1", unsure=False), two.there.until))
    assert [each.request_id for each in two.there.notifications] == ["w2"]
    two.wait("w2")
    assert contended(two.here) == ["r1"]


def a_refused_request_is_told() -> None:
    """Check that the holder hears of a request that may not wait and is refused."""
    two = Two(ranged("r1"))
    refused = complete(two.there.store.acquire(replace(ask_of("t1"), wait=False), two.there.until))
    assert isinstance(refused, Busy)
    assert refused.holders == ("somebody",)
    assert contended(two.here) == ["r1"]


def test_a_refused_request_is_told() -> None:
    """A try that fails ends a linger."""
    a_refused_request_is_told()


def test_a_holder_without_a_range_is_not_told() -> None:
    """It has nothing to hand off, so no waiter spends a request on it."""
    two = Two(ask_of("r1"))
    two.wait("w1")
    complete(two.there.store.acquire(replace(ask_of("t1"), wait=False), two.there.until))
    assert contended(two.here) == []
    assert not two.renew(), "and its renewal looks for nobody"


def test_a_grant_tells_of_the_waiters_behind_it() -> None:
    """The next holder learns from its grant whether others wait, and from the first that comes after it."""
    two = Two(ranged("r1"))
    two.wait("w1")
    two.wait("w2")
    assert two.here.release(two.request, two.granted) is Outcome.RELEASED
    granted = two.there.hold(ranged("w1"))
    assert granted.contended
    assert two.there.release(ranged("w1"), granted) is Outcome.RELEASED
    last = two.there.hold(ranged("w2"))
    assert not last.contended
    contended(two.there)
    assert isinstance(complete(two.here.store.acquire(ranged("w3"), two.here.until)), Queued)
    assert contended(two.there) == ["w2"]


def a_renewal_tells_of_waiters() -> None:
    """Check that the reply to a renewal says whether others wait."""
    two = Two(ranged("r1"))
    assert not two.renew()
    two.wait("w1")
    assert two.renew()
    complete(two.there.store.withdraw(WithdrawRequest("name", "w1", unsure=False), two.there.until))
    assert not two.renew()


def test_a_renewal_tells_of_waiters() -> None:
    """A holder that missed a notification finds out with its next renewal."""
    a_renewal_tells_of_waiters()


class Unheard(ModelDirectory):
    """It notes how long each message may take, in seconds."""

    allowed: ClassVar[list[float]] = []

    async def tell(self, session: str, message: str, until: float) -> None:
        self.allowed.append(until - self._runtime.now())
        await super().tell(session, message, until)


def test_a_message_that_is_lost_does_not_hold_the_waiter_up() -> None:
    """A waiter that is woken meanwhile sends its request again before its time to do so is over."""
    Unheard.allowed.clear()
    two = Two(ranged("r1"), Unheard)
    two.wait("w1")
    complete(two.there.store.acquire(replace(ask_of("t1"), wait=False), two.there.until))
    assert len(Unheard.allowed) == 2
    assert max(Unheard.allowed) < WOKEN_TTL


class Unreadable(ModelDirectory):
    """It does not answer who waits, and passes no message on."""

    broken: type[StoreError] | None = None

    async def look_at_all(self, names: Sequence[str], until: float) -> list[Listing]:
        self._fail()
        return await super().look_at_all(names, until)

    async def tell(self, session: str, message: str, until: float) -> None:
        self._fail()
        await super().tell(session, message, until)

    def _fail(self) -> None:
        if self.broken is not None:
            raise self.broken("not now")


@pytest.mark.parametrize("broken", [StoreError, StoreUnavailable])
def test_a_holder_that_cannot_be_told_harms_nobody(broken: type[StoreError], monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiter keeps its place, the lease is renewed, and the holder hears of the waiter once that is possible."""
    two = Two(ranged("r1"), Unreadable)
    monkeypatch.setattr(Unreadable, "broken", broken)
    two.wait("w1")
    assert not two.renew()
    assert contended(two.here) == []
    monkeypatch.setattr(Unreadable, "broken", None)
    two.wait("w1")
    assert contended(two.here) == ["r1"]
    assert two.renew()


def test_a_message_that_comes_late_changes_nothing() -> None:
    """The lease is over, and the client has another."""
    two = Two(ranged("r1"))
    assert two.here.release(two.request, two.granted) is Outcome.RELEASED
    two.here.store.told(f"contended r1 {two.granted.token}")
    assert contended(two.here) == ["r1"], "the client knows no lease of this request, and ignores it"
    assert isinstance(two.here.hold(ranged("r2")), Granted)


async def tell_nobody(self: Inspector, name: str, decision: Any, until: float) -> bool:  # noqa: ANN401
    """Tell no holder."""
    return True


async def note_nothing(self: LeaseRenewals, renewed: Any, until: float) -> None:  # noqa: ANN401
    """Tell no renewal."""


def no_range(self: LeaseRenewals, request_id: str) -> bool:
    """Know no lease that may be handed off."""
    return False


@pytest.mark.parametrize(
    ("plant", "scene"),
    [
        (replaced(Inspector, "tell_contended", tell_nobody), the_first_waiter_is_told),
        (replaced(Inspector, "tell_contended", tell_nobody), a_refused_request_is_told),
        (replaced(LeaseRenewals, "_note_contention", note_nothing), a_renewal_tells_of_waiters),
        (replaced(LeaseRenewals, "_has_range", no_range), a_renewal_tells_of_waiters),
    ],
)
def test_a_holder_that_is_not_told_is_found(
    plant: Callable[[], AbstractContextManager[Any]], scene: Callable[[], None]
) -> None:
    """The tests above find each of these planted bugs."""
    with plant(), pytest.raises(AssertionError):
        scene()


async def leave_it_to_the_first(self: Inspector, name: str, decision: Any, until: float) -> bool:  # noqa: ANN401
    """Tell no holder while there is a waiter before the last one."""
    return await TELL(self, name, decision, until) if len(decision.waiters) == 1 else True


TELL = Inspector.tell_contended


def test_a_waiter_that_leaves_it_to_the_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of a first waiter that dies silently finds it."""
    with replaced(Inspector, "tell_contended", leave_it_to_the_first)(), pytest.raises(AssertionError):
        the_first_waiter_dies_silently(monkeypatch)
