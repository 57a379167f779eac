"""What belongs to an earlier session of a client is not taken for that of the present one.

Each test has a bug planted as well, of the kind that leaves out or turns round a comparison of sessions, and finds it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest.mock import patch

import pytest

from tenure.contracts.messages import AdjustRequest, Granted
from tenure.errors import StoreError
from tenure.outcome import Outcome
from tenure.runtimes.threads import complete
from tenure.stores.ordered import Entry, Listing, Record
from tenure.stores.ordered.acquiring import Acquirer
from tenure.stores.ordered.caretaker import Caretaker
from tenure.stores.ordered.contenders import ContenderRegistry
from tenure.stores.ordered.releasing import Releaser
from tenure.stores.ordered.renewing import GONE, SESSION_ENDED, Adjuster, LeaseRenewals
from tests.ordered.model import ModelDirectory
from tests.ordered.scene import Scene, ask_of
from tests.planting import planted


class Lingering(ModelDirectory):
    """One whose ensemble still has the entries of an earlier session, as one that is behind does; and trusts them."""

    def turn(self) -> None:
        """Go on in another session."""
        with self._mutex:
            self._begin()

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Remove what an earlier session had, as the contract says."""
        with self._mutex:
            self._ensemble.withdraw_join(name, record.request_id)
            self._ensemble.forgive(record.request_id)
        return await super().join(name, record, until)

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Find all that is there, in whatever session."""
        await super().check(entries, until)
        return [True] * len(entries)


def held_before() -> tuple[Scene, Granted]:
    """Return a scene in which something was granted in a session that is over."""
    scene = Scene(Lingering)
    granted = scene.hold(ask_of())
    scene.directory.turn()  # type: ignore[attr-defined]
    return scene, granted


def renew() -> None:
    """Refuse to renew a lease of an earlier session, and say why."""
    scene, granted = held_before()
    renewal = scene.renewal(ask_of(), granted)
    assert complete(scene.store.renew([renewal], scene.until)) != [None]
    assert renewal.refused_because == SESSION_ENDED


def renew_what_was_removed() -> None:
    """Put an entry that was removed in the present session down to that, and not to the end of a session."""
    scene = Scene()
    granted = scene.hold(ask_of())
    scene.ensemble.withdraw_join("name", "r1")
    renewal = scene.renewal(ask_of(), granted)
    assert complete(scene.store.renew([renewal], scene.until)) != [None]
    assert renewal.refused_because == GONE


def release() -> None:
    """Call a lease of an earlier session lost, and not released."""
    scene, granted = held_before()
    assert scene.release(ask_of(), granted) in {Outcome.EXPIRED, Outcome.TAKEN_OVER}


def acquire() -> None:
    """Join in the new session when it is asked again, and take no old entry for a holding."""
    scene, granted = held_before()
    assert scene.hold(ask_of(), within=1.0).token > granted.token


def adjust() -> None:
    """Change no lease of an earlier session."""
    scene, granted = held_before()
    assert (
        complete(scene.store.adjust(AdjustRequest("name", "r1", granted.token, 0, "another"), scene.until)) is not None
    )


class Unwilling(ModelDirectory):
    """One that removes nothing at first."""

    fails = 1

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Fail once."""
        if self.fails:
            self.fails -= 1
            raise StoreError("not now")
        return await super().withdraw_join(name, request_id, entry, until)


def give_up() -> None:
    """Try again to remove what could not be removed while its session lives: it stands in everybody's way."""
    scene = Scene(Unwilling)
    scene.hold(ask_of())
    complete(scene.store.close())  # so that nothing but this test works in the background
    tender = Caretaker(scene.runtime, scene.directory, scene.store._contenders, scene.store._remover.remove_expired)
    tender._ending = scene.store._contenders.silent(scene.runtime.now() + 1e6)
    scene.directory.fails = 1  # type: ignore[attr-defined]
    scene.directory._session = tender._ending[0].entry.session  # type: ignore[union-attr]
    complete(tender._clean_up())
    assert len(tender._ending) == 1


def revoked_before() -> None:
    """End no later place on news of the entry of an earlier session."""
    scene, granted = held_before()
    again = scene.hold(ask_of())
    scene.store.told(f"revoked r1 {granted.token}")
    assert again.token > granted.token
    assert "r1" in scene.store._contenders.live


Check = Callable[[], None]


class Bug(NamedTuple):
    """One comparison, and how a maintainer may get it wrong."""

    check: Check
    """What finds it."""
    owner: type
    method: str
    right: str
    wrong: str


BUGS: dict[str, Bug] = {
    "a renewal takes the entry of any session for ours": Bug(
        renew,
        LeaseRenewals,
        "_renewable",
        "contender if contender.entry.session == self._directory.session() else None",
        "contender",
    ),
    "news of an earlier entry end a later one": Bug(
        revoked_before,
        ContenderRegistry,
        "end_of",
        "contender.entry.token == token",
        "contender.entry.token >= token",
    ),
    "a refusal puts all down to the end of the session": Bug(
        renew_what_was_removed,
        LeaseRenewals,
        "_why_gone",
        "entry.session == self._directory.session()",
        "entry.session != self._directory.session()",
    ),
    "a release removes what an earlier session had, and calls it released": Bug(
        release,
        Releaser,
        "release",
        "contender.entry.session != self._directory.session()",
        "False",
    ),
    "who asks again looks for its old entry": Bug(
        acquire,
        Acquirer,
        "acquire",
        "contender.entry is None or contender.entry.session != self._directory.session()",
        "contender.entry is None",
    ),
    "an adjustment changes what an earlier session had": Bug(
        adjust,
        Adjuster,
        "adjust",
        "or entry.session != self._directory.session()",
        "",
    ),
    "what belongs to a living session is given up after one try": Bug(
        give_up,
        Caretaker,
        "_clean_up",
        "contender.entry.session == self._directory.session()",
        "contender.entry.session != self._directory.session()",
    ),
}


@pytest.mark.parametrize("check", [bug.check for bug in BUGS.values()], ids=BUGS)
def test_sessions_are_told_apart(check: Check) -> None:
    """Whatever an ensemble still has of an earlier one."""
    check()


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    """A comparison that is left out, or turned round, is noticed."""
    found = BUGS[bug]
    with (
        patch.object(found.owner, found.method, planted(found.owner, found.method, found.right, found.wrong)),
        pytest.raises((AssertionError, StoreError)),
    ):
        found.check()
