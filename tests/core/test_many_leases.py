"""Many leases of one client: the work of keeping and of releasing one does not grow with their number."""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from tenure import AsyncClient, Client, StoreUnavailable
from tenure.core import agenda
from tenure.core import release_all as closing_module
from tenure.core.access import StoreAccess
from tenure.core.agenda import BATCH, Agendas
from tenure.core.lease import CoreLease
from tenure.core.release_all import Closing, Release
from tenure.core.renewer import Renewer
from tenure.outcome import Outcome
from tests import virtual
from tests.hazards.helpers import disturbed
from tests.planting import planted

TTL = 30.0
FEW, MANY = 100, 1200
MORE = 1.2
"""What a lease may cost more among many."""


def calls_to_keep(leases: int) -> float:
    """Count the function calls in the core while one lease is kept for twice its ttl."""
    calls = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and "tenure/core" in frame.f_code.co_filename

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            held = [await client.lock(f"{number}", ttl=TTL).acquire() for number in range(leases)]
            sys.setprofile(count)
            await asyncio.sleep(2 * TTL)
            sys.setprofile(None)
            assert all(lease.remaining() > TTL / 3 for lease in held), "each was renewed in time"

    before = sys.getprofile()
    try:
        virtual.run(main)
    finally:
        sys.setprofile(before)
    return calls / leases


def test_keeping_a_lease_costs_the_same_among_many() -> None:
    """With twelve times as many leases, each takes no more calls."""
    assert calls_to_keep(MANY) <= MORE * calls_to_keep(FEW)


def sort_all(original: Callable[[Agendas, float], list[CoreLease]], self: Agendas, now: float) -> list[CoreLease]:
    """Look at all leases for each batch."""
    for lease in list(self.leases.values()):
        lease.trusted()
    return original(self, now)


def look_at_all(original: Callable[[Renewer, float], float], self: Renewer, now: float) -> float:
    """Look at all leases whenever one falls due."""
    for lease in self.kept():
        lease.trusted()
    return original(self, now)


@pytest.mark.parametrize(
    "bug", [(Agendas, "take_due", sort_all), (Renewer, "_look", look_at_all)], ids=lambda bug: bug[1]
)
def test_a_renewer_that_looks_at_all_leases_is_found(
    bug: tuple[type, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bugs: the work for each batch grows with the number of leases."""
    owner, method, wrong = bug
    original = getattr(owner, method)

    def planted(self: object, *args: float) -> object:
        return wrong(original, self, *args)

    monkeypatch.setattr(owner, method, planted)
    assert calls_to_keep(MANY) > MORE * calls_to_keep(FEW)


class Slow:
    """A store that takes a tenth of a second for each release, in virtual time, and stops answering after some."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.clock = virtual.Clock()
        """Of this test alone: a thread that releases may outlive `close`, and must not move the clock of the next."""

    async def __call__(self, operation: str, done: bool) -> None:
        """Let time pass."""
        if operation == "release" and not done:
            self.clock.advance(0.1)
            self.answers -= 1
            if self.answers < 0:
                self.clock.advance(1.0)
                raise StoreUnavailable("nothing is heard")


def close(leases: int, slow: Slow) -> tuple[list[str], float]:
    """Close a client that holds leases; return the names that are still in use, and how long it took."""
    with virtual.stopped_clock() as clock:
        slow.clock = clock
        table = virtual.source()
        client = Client(store=disturbed(table, slow))
        held = [client.lock(f"{number}", ttl=3600).acquire() for number in range(leases)]
        began = clock.time
        client.close()
        took = clock.time - began
        with Client(store=table) as other:
            left = other.names()
        assert sum(lease.remaining() > 0 for lease in held) <= len(left)
        clock.advance(3600)
        assert not any(lease.remaining() for lease in held)
    return left, took


def test_closing_releases_as_many_as_there_are(caplog: pytest.LogCaptureFixture) -> None:
    """A client with more leases than a moment allows releases all of them, as long as the store answers."""
    left, _ = close(1000, Slow(1000))
    assert left == []
    assert caplog.text == ""


class Stopped(Slow):
    """A slow store whose client is stopped for some seconds after each release, as soon as it has read the time."""

    stop = False

    async def __call__(self, operation: str, done: bool) -> None:
        """See a release end."""
        await super().__call__(operation, done)
        self.stop = self.stop or (operation == "release" and done)

    def now(self) -> float:
        """Return the time, which may be past already when the caller gets it."""
        time = self.clock.time
        if self.stop:
            self.stop = False
            self.clock.advance(5.0)
        return time


def test_closing_sends_one_more_request_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elapsed time does not show that the store is silent: only a release without an answer does."""
    stopped = Stopped(FEW)

    def now(_: virtual.Clock) -> float:
        return stopped.now()

    monkeypatch.setattr(virtual.Clock, "__call__", now)
    left, took = close(FEW - 1, stopped)
    assert left == []
    assert took > FEW, "the client was stopped"


def test_closing_ends_when_the_store_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The close ends although the store is silent: the log has one line for the leases that are left."""
    with caplog.at_level(logging.INFO):
        left, took = close(300, Slow(200))
    assert len(left) == 100
    assert took < 200 * 0.1 + 8 * 20, "each releasing thread waited for a few requests, not for one a lease"
    assert len(caplog.records) == 1
    assert "and 99 more" in caplog.text


def test_closing_in_asyncio_releases_all() -> None:
    """An AsyncClient releases several leases at once, for as long as the store answers."""
    under_way, most = 0, 0

    async def slow(operation: str, done: bool) -> None:
        nonlocal under_way, most
        if operation == "release" and not done:
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.1)
            under_way -= 1

    async def main() -> list[str]:
        source = virtual.source()
        client = AsyncClient(store=disturbed(source, slow))
        held = [await client.lock(f"{number}", ttl=3600).acquire() for number in range(1000)]
        await client.close()
        assert not any(lease.remaining() for lease in held)
        async with AsyncClient(store=source) as other:
            return await other.names()

    assert virtual.run(main) == []
    assert most > 1


async def end_in_time(access: StoreAccess, release: Release, closing: Closing) -> None:
    """Allow a fixed time for all leases, although the store answers."""
    until = closing.until
    while closing.leases and access.runtime.now() < until:
        await release(closing.leases.popleft())


async def go_on_for_ever(access: StoreAccess, release: Release, closing: Closing) -> None:
    """Count a release without an answer as one with an answer."""
    while closing.leases:
        await release(closing.leases.popleft())


async def skip_some(access: StoreAccess, release: Release, closing: Closing) -> None:
    """Skip every other lease."""
    while closing.leases:
        held = closing.leases.popleft()
        if len(closing.leases) % 2:
            await release(held)


async def give_up_at_once(access: StoreAccess, release: Release, closing: Closing) -> None:
    """End with the first lease that is not released, and report success."""
    while closing.leases:
        held = closing.leases.popleft()
        if await release(held) is Outcome.UNKNOWN:
            for each in closing.leases:
                each.outcome = Outcome.RELEASED
            return


@pytest.mark.parametrize("bug", [end_in_time, go_on_for_ever, skip_some, give_up_at_once], ids=lambda bug: bug.__name__)
def test_a_wrong_close_is_found(
    bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Planted bugs: leases are left behind though the store answers, or the close waits for a silent store."""
    monkeypatch.setattr(closing_module, "release_some", bug)

    def close_twice() -> None:
        test_closing_releases_as_many_as_there_are(caplog)
        test_closing_ends_when_the_store_does_not_answer(caplog)

    with pytest.raises(AssertionError):
        close_twice()


def test_a_close_that_releases_one_after_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: no other thread helps."""
    monkeypatch.setattr("tenure.core.release_all.HELPERS", 0)
    with pytest.raises(AssertionError):
        test_closing_in_asyncio_releases_all()


def test_a_lost_connection_has_the_nearest_deadline_renewed_first() -> None:
    """After a gap all leases are renewed in batches, and those that end first are in the first batch."""
    batches: list[list[str]] = []

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            renewer = client.session().renewer
            renewals, renew = renewer._renewals, renewer._renewals._renew

            async def noted(batch: Sequence[CoreLease]) -> None:
                batches.append([lease.grant.name for lease in batch])
                await renew(batch)

            names = [(f"long {number}", 900) for number in range(3 * BATCH)]
            names += [(f"short {number}", 600) for number in range(BATCH)]
            held = [await client.lock(name, ttl=ttl).acquire() for name, ttl in names]
            renewals._renew = noted  # type: ignore[method-assign]
            renewer.hurry(0.0)
            await asyncio.sleep(1)
            assert all(lease.remaining() for lease in held)

    virtual.run(main)
    assert [len(batch) for batch in batches] == [BATCH] * 4, "each is renewed once"
    assert all(name.startswith("short") for name in batches[0])


def lost_beside_a_release(monkeypatch: pytest.MonkeyPatch, *bugs: tuple[str, str]) -> list[str]:
    """Release a lease just as the renewer takes a batch, as another thread may; return which others are lost."""
    judge = agenda._is_due_soon
    released: list[CoreLease] = []

    async def main() -> list[str]:
        async with AsyncClient(store=virtual.source()) as client:
            held = [await client.lock(f"{number}", ttl=TTL).acquire() for number in range(5)]

            def release_meanwhile(lease: CoreLease, now: float) -> bool:
                soon = judge(lease, now)
                if soon and not released:
                    client.session().renewer.discard(lease)
                    released.append(lease)
                return soon

            monkeypatch.setattr(agenda, "_is_due_soon", release_meanwhile)
            for right, wrong in bugs:
                monkeypatch.setattr(Agendas, "take_due", planted(Agendas, "take_due", right, wrong))
            await asyncio.sleep(2 * TTL)
            return [each.name for each in held if not each.remaining()]

    lost = virtual.run(main)
    (other,) = released
    return [name for name in lost if name != other.grant.name]


def test_a_release_disturbs_the_renewal_of_no_other_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other lease stays in its agenda, and is renewed."""
    assert lost_beside_a_release(monkeypatch) == []


def test_a_renewer_that_takes_another_lease_than_it_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: it takes what is first by then, and never renews it."""
    bug = (
        "self._later.take(first[0])) is not None:\n                self._pick(request_id, batch)",
        "self._later.take(NEVER)) is not None:\n                self._pick(first[1], batch)",
    )
    assert lost_beside_a_release(monkeypatch, bug)
