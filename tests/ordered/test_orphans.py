"""No contender stays that nobody knows of: whatever a store forgets has certainly gone, or is ended once more."""

from collections.abc import Sequence

import pytest

from tenure.contracts.messages import NotificationKind
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.threads import complete
from tenure.stores.ordered import Entry, Listing, Record
from tests.ordered.model import ModelDirectory
from tests.ordered.scene import Scene, ask_of

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
