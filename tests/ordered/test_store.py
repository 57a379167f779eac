"""What a store over ordered entries owes, when what it stands on changes under its hands."""

from collections.abc import Sequence

import pytest

from tenure.contracts.deadlines import DRIFT, micros, valid_until
from tenure.contracts.messages import RenewRequest
from tenure.core.lease import why_refused
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores.ordered import Entry, Kind, Listing, Record
from tenure.stores.ordered.store import OrderedStore
from tests.ordered.model import ModelDirectory, SharedEnsemble
from tests.ordered.scene import Scene, ask_of
from tests.servers import wait_until


class SilentlyEnded(ModelDirectory):
    """One whose answer to a renewal is heard only after the place was ended, as in a process that was suspended."""

    scene: Scene

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Answer, and stand still."""
        there = await super().check(entries, until)
        self.scene.end_the_silent(self._runtime.now() + 1e6)
        return there


def test_a_place_that_was_ended_is_not_renewed() -> None:
    """A renewal whose answer comes after the store ended the place by itself renews nothing: another may hold."""
    scene = Scene(SilentlyEnded)
    scene.directory.scene = scene  # type: ignore[attr-defined]
    request = ask_of()
    granted = scene.hold(request)
    assert complete(scene.store.renew([scene.renewal(request, granted)], scene.until)) != [None]


def test_a_renewal_keeps_a_name_no_longer_than_its_ttl() -> None:
    """What may be put off while a renewal is under way is not put off when it was answered."""
    scene = Scene()
    request = ask_of()
    granted = scene.hold(request)
    contender = scene.store._contenders.live[request.request_id]
    contender.ends_at = contender.lease_ends_at = (
        0.0  # as it was granted long ago; the background has nothing to look at yet
    )
    renewal = RenewRequest(request.name, request.request_id, granted.token, micros(1.0), request)
    assert complete(scene.store.renew([renewal], scene.runtime.now() + 60.0)) == [None]
    assert contender.ends_at <= scene.runtime.now() + 1.0


def test_what_has_run_out_is_not_released() -> None:
    """A lease that ended is answered as that, though its entry is still there when it is released."""
    scene = Scene()
    request = ask_of()
    granted = scene.hold(request)
    contender = scene.store._contenders.live[request.request_id]
    contender.lease_ends_at = scene.runtime.now()
    with pytest.raises(StoreUnavailable, match="has expired"):
        scene.release(request, granted)
    contender.ends_at = contender.lease_ends_at
    scene.end_the_silent(scene.runtime.now())
    scene.store._contenders.ending.clear()
    assert scene.release(request, granted) is Outcome.EXPIRED


class OldProof(ModelDirectory):
    """One that needs no new proof, as the last one is not that old."""

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Join without a proof."""
        joined = await super().join(name, record, until)
        self.proved_at = self._runtime.now() - 10.0
        return joined


def test_the_time_since_the_proof_passes_at_the_speed_of_the_stores_clock() -> None:
    """A holder's lease ends before its session can, be the store's clock as much faster as is allowed for."""
    scene = Scene(OldProof)
    sent = scene.runtime.now()
    granted = scene.hold(ask_of())
    directory = scene.directory
    assert valid_until(sent, granted.ttl) <= directory.proved_at + directory.trust * (1.0 - DRIFT)


class NewSession(ModelDirectory):
    """One whose session ends, and is followed by another, while something is rewritten."""

    async def rewrite(self, texts: Sequence[tuple[str, Entry, str]], until: float) -> list[bool]:
        """Rewrite it just before the end."""
        done = await super().rewrite(texts, until)
        self._ensemble.end(self._session)
        self._begin()
        return done


def test_the_proof_of_another_session_renews_nothing() -> None:
    """What was in a session that ended while it was renewed is not trusted for what is known of the next one."""
    scene = Scene(NewSession)
    request = ask_of(ttl=micros(5.0))
    renewal = scene.renewal(request, scene.hold(request))
    reply = complete(scene.store.renew([renewal], scene.until))
    assert reply != [None] or renewal.ttl == 0


def test_a_refusal_says_that_the_session_has_ended() -> None:
    """Or that the entry is gone, where somebody has removed it: so a lease that is lost names its cause."""
    scene = Scene(NewSession)
    request = ask_of(ttl=micros(5.0))
    renewal = scene.renewal(request, scene.hold(request))
    directory = scene.directory
    directory._ensemble.end(directory._session)
    directory._begin()
    assert complete(scene.store.renew([renewal], scene.until)) != [None]
    assert "session has ended: the servers" in renewal.refused_because
    scene = Scene(ModelDirectory)
    renewal = scene.renewal(request, scene.hold(request))
    assert complete(scene.store.revoke(request.name, scene.until))
    (reply,) = complete(scene.store.renew([renewal], scene.until))
    assert reply is not None
    assert "its entry is gone" in renewal.refused_because
    assert "its entry is gone" in why_refused(reply, renewal)


class Slow(ModelDirectory):
    """One whose joins take long."""

    scene: Scene

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Join, but first let all be ended that would be by the time when the answer is due at the latest."""
        self.scene.end_the_silent(until)
        return await super().join(name, record, until)


def test_a_place_is_not_ended_while_it_is_asked_for() -> None:
    """However long a request may take, its place is not ended before: a join that arrives then would stay for ever."""
    scene = Scene(Slow)
    scene.directory.scene = scene  # type: ignore[attr-defined]
    scene.hold(ask_of(), within=60.0)


class Meddled(ModelDirectory):
    """One where what belongs to a holder is changed just before it is removed."""

    meddles = False

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Put another block in the place of the one that is there, once, before the change."""
        if self.meddles:
            self.meddles = False
            blocks = [entry for entry in remove if entry.kind is Kind.BLOCK]
            record = Record(Kind.BLOCK, "r1", before=remove[-1].order, counts_for=1.0)
            await super().change(name, blocks, [record], until)
        return await super().change(name, remove, add, until, beside)


def test_a_release_leaves_nothing_though_something_beside_it_changes() -> None:
    """A change of what belongs to a holder that is carried out late does not keep its release from being one."""
    scene = Scene(Meddled)
    request = ask_of(lock_delay=1.0)
    granted = scene.hold(request)
    scene.directory.meddles = True  # type: ignore[attr-defined]
    assert scene.release(request, granted) is Outcome.RELEASED
    assert complete(scene.directory.names("", scene.until)).names == []


class SessionEndsAtTheBlock(ModelDirectory):
    """One whose session ends just when a block was added, the first time."""

    ends = True

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Change it, and begin another session."""
        done = await super().change(name, remove, add, until, beside)
        if self.ends:
            self.ends = False
            self._ensemble.end(self._session)
        return done


def test_a_release_removes_the_block_of_an_earlier_session() -> None:
    """Who joins again after its session ended just before it was told that it holds leaves no lock delay behind."""
    scene = Scene(SessionEndsAtTheBlock)
    request = ask_of(lock_delay=1.0)
    granted = scene.hold(request)
    assert scene.release(request, granted) is Outcome.RELEASED
    assert complete(scene.directory.names("", scene.until)).names == []


def test_who_joins_again_has_a_block_for_its_present_entry() -> None:
    """The time of an earlier entry's BLOCK may be over already: the lock delay of the present one would not be kept."""
    scene = Scene(SessionEndsAtTheBlock)
    request = ask_of(lock_delay=1.0)
    scene.hold(request)
    listing = complete(scene.directory.look(request.name, scene.until))
    (contender,) = (each for each in listing.entries if each.kind is Kind.CONTENDER)
    (block,) = (each for each in listing.entries if each.kind is Kind.BLOCK)
    assert block.before == contender.order


class Ailing(ModelDirectory):
    """One that fails in a way that nobody foresaw, at first."""

    trust = 0.03
    kept_alive = 0

    async def keep_alive(self, until: float) -> None:
        """Fail, then work."""
        self.kept_alive += 1
        if self.kept_alive == 1:
            raise KeyError("responses")


def test_an_error_that_nobody_foresaw_does_not_end_the_session() -> None:
    """What goes on in the background goes on, or a client that is idle would lose its session."""
    runtime = ThreadsRuntime()
    directory = Ailing(runtime, SharedEnsemble())
    store = OrderedStore(runtime, directory)
    complete(store.open(lambda _: None, runtime.now() + 5.0))
    wait_until(lambda: directory.kept_alive > 1, "another renewal of the session")
    complete(store.close())


class Hasty(ModelDirectory):
    """One whose session ends soon, unless it is renewed."""

    trust = 0.75
    untils: Sequence[float] = ()

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Note how long this may take."""
        self.untils = [*self.untils, until]
        return await super().withdraw_join(name, request_id, entry, until)


def test_what_is_cleaned_up_does_not_hold_up_the_renewal_of_the_session() -> None:
    """However slow the store is to remove what its owner forgot: or all that the client has would be lost."""
    scene = Scene(Hasty)
    assert isinstance(scene.directory, Hasty)
    scene.hold(ask_of())
    caretaker = scene.store._caretaker
    caretaker._ending = scene.store._contenders.silent(scene.runtime.now() + 1e6)
    complete(caretaker._clean_up())
    [until] = scene.directory.untils
    assert until - scene.runtime.now() <= scene.directory.trust / 3
