"""Neither a contender nor a watch stays that nobody knows of: what a store forgets has gone, or is ended once more."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from tenure.contracts.messages import AcquireRequest, Granted, NotificationKind, Queued, WithdrawRequest
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.threads import complete
from tenure.stores.ordered import Entry, Listing, Record
from tenure.stores.ordered.acquiring import Acquirer
from tenure.stores.ordered.releasing import EntryRemover, Releaser
from tests.ordered.model import ModelDirectory
from tests.ordered.scene import Scene, ask_of
from tests.planting import planted

LATER = 1e6
"""In so many seconds, everybody was silent for too long."""


def nothing_stays(scene: Scene) -> bool:
    """Tell whether all is gone once nobody was heard for long."""
    scene.end_the_silent(scene.runtime.now() + LATER)
    return not complete(scene.directory.names("", scene.until)).names


def take_away(scene: Scene, name: str) -> None:
    """Remove what is there, as whoever takes a name by force."""
    entries = complete(scene.directory.look(name, scene.until)).entries
    assert complete(scene.directory.change(name, entries, [], scene.until))


def test_late_news_of_a_revocation_ends_no_later_place() -> None:
    """Who was revoked, and has joined again by the time when it hears of it, is not forgotten."""
    scene, request = Scene(), ask_of()
    first = scene.hold(request)
    take_away(scene, request.name)
    second = scene.hold(request)
    scene.store.told(f"{NotificationKind.REVOKED} {request.request_id} {first.token}")
    assert second.token > first.token
    assert nothing_stays(scene)


class JoinedMeanwhile(ModelDirectory):
    """One where a request joins again while the answer to its renewal is on its way."""

    scene: Scene

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Answer, and stand still for long enough."""
        there = await super().check(entries, until)
        self.scene.hold(ask_of())
        return there


def test_a_refused_renewal_ends_no_later_place() -> None:
    """An entry that was gone when it was looked for says nothing of the next one of the same request."""
    scene, request = Scene(JoinedMeanwhile), ask_of()
    scene.directory.scene = scene  # type: ignore[attr-defined]
    granted = scene.hold(request)
    take_away(scene, request.name)
    assert complete(scene.store.renew([scene.renewal(request, granted)], scene.until)) != [None]
    assert nothing_stays(scene)


class Stopped(ModelDirectory):
    """One whose client stands still just before it joins, until its place was ended for its silence."""

    scene: Scene
    ends = True

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Join too late."""
        if self.ends:
            self.ends = False
            self.scene.end_the_silent(self._runtime.now() + LATER)
            self._ensemble.forgive(record.request_id)  # not every directory can tell that it comes too late
        return await super().join(name, record, until)


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
def test_a_join_that_was_sent_too_late_is_ended_too(answered: bool) -> None:
    """Its place is one again, which is not told that it holds while it is being ended, and ends if nobody asks."""
    scene, request = Scene(Stopped), ask_of()
    scene.directory.scene = scene  # type: ignore[attr-defined]
    scene.directory.lose["join"] = 0 if answered else 1
    with pytest.raises(StoreUnavailable if answered else OutcomeUnknown):
        complete(scene.store.acquire(request, scene.until))
    assert complete(scene.directory.names("", scene.until)).names == [request.name]
    assert nothing_stays(scene)


class ThirdInLine:
    """A client whose request stands behind two of others, and watches both."""

    def __init__(self, holds: int = 1, capacity: int = 1) -> None:
        """Have so many holders of one permit each, a waiter for two permits if there are two, and the third."""
        self.first = Scene()
        self.third = Scene(ensemble=self.first.ensemble)
        self.second = Scene(ensemble=self.first.ensemble)
        self.request = replace(ask_of("third"), capacity=capacity)
        for number in range(holds):
            self.first.hold(replace(ask_of(f"first{number}"), capacity=capacity))
        self.before = replace(ask_of("second"), capacity=capacity, weight=min(2, capacity))
        assert isinstance(self.ask(self.second, self.before), Queued)
        assert isinstance(self.ask(self.third, self.request), Queued)
        assert {each.removesuffix("+") for each in self.watches()} == {"third"}
        assert len(set(self.watches())) == 2

    def ask(self, scene: Scene, request: AcquireRequest) -> object:
        """Send a request once."""
        return complete(scene.store.acquire(request, scene.until))

    def withdraw(self, scene: Scene, request: AcquireRequest) -> None:
        """Give a request up."""
        complete(scene.store.withdraw(WithdrawRequest(request.name, request.request_id, unsure=False), scene.until))

    def watches(self) -> list[str]:
        """Return the ids under which the third client watches."""
        watches = self.first.ensemble.sessions[self.third.directory.session()].watches
        return [request_id for _, _, request_id in watches]


def withdrawn() -> None:
    """Give up: then the waiter watches nothing."""
    line = ThirdInLine()
    line.withdraw(line.third, line.request)
    assert not line.watches()


def silent() -> None:
    """Send nothing for long."""
    line = ThirdInLine()
    line.third.end_the_silent(line.third.runtime.now() + LATER)
    assert not line.watches()


def granted() -> None:
    """Be granted because the one before gave up, while the holders still hold."""
    line = ThirdInLine(holds=3, capacity=4)
    line.withdraw(line.second, line.before)
    assert isinstance(line.ask(line.third, line.request), Granted)
    assert not line.watches()


ENDS = (withdrawn, silent, granted)


@pytest.mark.parametrize("end", ENDS)
def test_a_waiter_that_ends_watches_nothing(end: Callable[[], None]) -> None:
    """A name that is held for days would collect the watches of all who have waited for it meanwhile."""
    end()


BUGS: dict[str, tuple[Callable[[], None], type, str, str, str]] = {
    "a waiter that gives up ends one watch": (
        withdrawn,
        EntryRemover,
        "end_watches",
        "if waiter.hears:",
        "if False:",
    ),
    "a waiter that gives up watches on": (
        withdrawn,
        Releaser,
        "withdraw",
        "await self._remover.end_watches(contender, until)",
        "pass",
    ),
    "a waiter that was not heard watches on": (
        silent,
        EntryRemover,
        "remove_expired",
        "await self.end_watches(contender, until)",
        "pass",
    ),
    "a waiter that is granted watches on": (
        granted,
        Acquirer,
        "_answer",
        "await self._hear_of_grants(contender, [], until)",
        "pass",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    """A watch that stays is noticed."""
    end, owner, method, right, wrong = BUGS[bug]
    with patch.object(owner, method, planted(owner, method, right, wrong)), pytest.raises(AssertionError):
        end()
