"""What events say of leases at risk, stores, jobs and units, and of the one that asked; and their form in logs."""

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure import AsyncClient, Client, EventKind, LockEvent, LockTimeout, StoreError, StoreUnavailable, UsageError
from tenure.contracts.messages import Busy, Granted, Queued
from tenure.core.events import Events
from tenure.events import json_lines
from tenure.runtimes.threads import ThreadsRuntime, drive
from tests import virtual
from tests.core.test_losses import FORGED, Broken
from tests.hazards.helpers import disturbed

Play = Callable[[AsyncClient], Coroutine[Any, Any, object]]


def played(play: Play, broken: Broken | None = None, **options: Any) -> list[LockEvent]:  # noqa: ANN401 - of a client
    """Return the events of a scene in virtual time."""
    told: list[LockEvent] = []

    async def main() -> None:
        source = virtual.source()
        if broken is not None:
            source = disturbed(source, broken)
        async with AsyncClient(store=source, on_event=told.append, **options) as client:
            await play(client)

    virtual.run(main)
    return told


def brief(told: list[LockEvent]) -> list[str]:
    """Return the kinds of events with their causes, without renewals."""
    return [f"{each.event}: {each.cause}".removesuffix(": ") for each in told if each.event is not EventKind.RENEWED]


# -- leases ------------------------------------------------------------------------------------------------


def test_a_lease_at_risk_recovers() -> None:
    """AT_RISK comes once, with the error and the time that is left; RECOVERED when a renewal succeeds."""
    broken, error = Broken(), StoreUnavailable("no answer")

    async def play(client: AsyncClient) -> None:
        async with client.lock("name", ttl=10):
            broken.failing["renew"] = error
            await asyncio.sleep(6)
            broken.failing.clear()
            await asyncio.sleep(4)

    told = played(play, broken)
    of_lease = [each for each in told if each.kind == "lock"]
    assert brief(of_lease) == ["acquired", "at risk", "recovered", "released: released"]
    assert of_lease[1].error is error
    assert of_lease[1].seconds is not None
    assert 5.0 < of_lease[1].seconds < 8.0


def test_a_renewal_that_is_late_is_told() -> None:
    """A process that stood still is told by how many seconds, while the lease is still held."""

    async def play(client: AsyncClient) -> None:
        async with client.lock("name", ttl=10):
            await asyncio.sleep(1)
            virtual.stand_still(7)
            await asyncio.sleep(1)

    told = played(play)
    assert brief(told) == ["acquired", "renewal late", "released: released"]
    assert told[1].seconds is not None
    assert 4.0 < told[1].seconds < 6.0


@pytest.mark.parametrize(("how", "cause"), [("expire", "expired"), ("revoke", "revoked"), ("hold on", "max_hold")])
def test_a_loss_has_its_cause_in_a_word(how: str, cause: str) -> None:
    """So that metrics can count by it."""

    async def play(client: AsyncClient) -> None:
        lease = await client.lock("name", ttl=10, max_hold=5 if how == "hold on" else None).acquire()
        if how == "expire":
            virtual.stand_still(20)
        if how == "revoke":
            await client.revoke("name", force=True)
        await asyncio.sleep(8)
        await lease.release()

    told = played(play)
    assert brief([each for each in told if each.event is not EventKind.RENEWAL_LATE]) == ["acquired", f"lost: {cause}"]
    assert told[-1].detail


@pytest.mark.parametrize("how", ["drained", "adopted"])
def test_a_lease_that_goes_on_elsewhere_has_a_cause_of_its_own(how: str) -> None:
    """No store has refused it: its client hands its term on, or it was adopted once more."""

    async def play(client: AsyncClient) -> None:
        if how == "drained":
            term = await client.election("name", ttl=10).campaign()
            await client.drain(5)
            await term.release()
            return
        handle = await (await client.lock("name", ttl=10).acquire()).detach()
        first = await client.adopt(handle)
        async with await client.adopt(handle):
            await first.release()

    assert [each.cause for each in played(play) if each.event is EventKind.LOST] == [how]


# -- stores ------------------------------------------------------------------------------------------------


def test_a_store_is_unreachable_and_back_once() -> None:
    """Each failed request is told, the outage once, with its length."""
    broken = Broken()

    async def play(client: AsyncClient) -> None:
        broken.failing["acquire"] = StoreUnavailable("no answer")
        acquiring = asyncio.create_task(client.lock("name").acquire())
        await asyncio.sleep(5)
        broken.failing.clear()
        await (await acquiring).release()

    told = played(play, broken)
    kinds = [each.event for each in told]
    assert kinds.count(EventKind.STORE_ERROR) > 3
    assert kinds.count(EventKind.STORE_UNREACHABLE) == kinds.count(EventKind.STORE_BACK) == 1
    (back,) = [each for each in told if each.event is EventKind.STORE_BACK]
    assert back.seconds is not None
    assert 5.0 <= back.seconds < 6.0
    assert (back.kind, back.template, back.name, back.id) == ("store", "store", "", 0)
    assert kinds[-2:] == [EventKind.ACQUIRED, EventKind.RELEASED]


def test_an_outage_ends_with_its_client() -> None:
    """A client that is closed asks no more: nothing stays unreachable for ever."""
    broken = Broken()

    async def play(client: AsyncClient) -> None:
        async with client.lock("name"):
            pass
        broken.failing.update(dict.fromkeys(("acquire", "withdraw"), StoreUnavailable("no answer")))
        with pytest.raises(StoreUnavailable):
            await client.lock("name").acquire(timeout=0)

    told = [each for each in played(play, broken) if each.event is not EventKind.STORE_ERROR]
    assert brief(told)[-3:] == ["store unreachable", "gave up: error", "store back: closed"]
    assert isinstance(told[-2].error, StoreUnavailable)


def test_an_error_of_the_store_is_no_outage() -> None:
    """The store has answered."""
    broken = Broken(acquire=StoreError("no memory"))

    async def play(client: AsyncClient) -> None:
        with pytest.raises(StoreError):
            await client.lock("name").acquire()

    assert brief(played(play, broken)) == ["store error", "gave up: error"]


def test_a_quarantine_begins_and_ends_once() -> None:
    """As the replies to acquisitions tell."""
    told: list[LockEvent] = []
    events = Events([told.append], ThreadsRuntime(), "me", "store", lines=False)
    quarantined = [Queued(1, 1, 0, quarantine=5_000_000), Busy(1, quarantine=4_000_000)]
    for reply in (Granted(1, 1), *quarantined, Queued(1, 1, 0), Granted(2, 1), [quarantined[0], quarantined[0]]):

        async def acquire(_request: object, reply: object = reply) -> object:
            return reply

        assert drive(events._request(acquire, None)) is reply
    events.closed()
    assert brief(told) == ["quarantine begun", "quarantine over", "quarantine begun", "quarantine over: closed"]
    assert told[0].seconds == 5.0


# -- jobs and units ----------------------------------------------------------------------------------------


def test_runs_begin_end_and_are_refused() -> None:
    """With what became of them; a decorator gives the template."""

    async def fail() -> None:
        raise ZeroDivisionError

    async def play(client: AsyncClient) -> None:
        @client.once("nightly", window="daily")
        async def nightly() -> None:
            await asyncio.sleep(2)

        await nightly()
        await nightly()
        with pytest.raises(ZeroDivisionError):
            await client.once("hourly", window="hourly", template="of {n}").run(fail)
        await client.once("hourly", window="hourly").run(fail)
        async with client.lock("job:slow"):
            with pytest.raises(LockTimeout):
                await client.once("slow", window="daily", busy="raise").run(fail)

    told = [each for each in played(play) if each.event.value.startswith("run ")]
    assert brief(told) == [
        *("run begun", "run ended: done", "run refused: done"),
        *("run begun", "run ended: failed", "run refused: failed", "run refused: busy"),
    ]
    assert [each.template for each in told] == ["nightly"] * 3 + ["of {n}"] * 2 + ["job"] * 2
    assert told[1].held == pytest.approx(2, abs=0.1)
    assert "ZeroDivisionError" in told[4].detail


def test_a_run_that_is_left_has_ended() -> None:
    """Also if its end was not noted in the store."""

    async def fail(*_: object) -> None:
        raise StoreError("no memory")

    async def play(client: AsyncClient) -> None:
        store: Any = client.session().store

        async def run() -> None:
            store.write_cell = fail

        with pytest.raises(StoreError):
            await client.once("nightly", window="daily").run(run)

    told = played(play)
    assert [each.cause for each in told if each.event is EventKind.RUN_ENDED] == ["unknown"]


def test_units_are_taken_refused_reserved_and_returned() -> None:
    """Of a limit after the wait for them; of a stock at once. A semaphore's leases have theirs."""

    async def play(client: AsyncClient) -> None:
        limit = client.limit("calls", 5, 1.0, template="calls of {user}")
        await limit.acquire(5)
        await limit.acquire(5)
        with pytest.raises(LockTimeout):
            await limit.acquire(5, timeout=0.1)
        stock = client.stock("seats", 1)
        await stock.restock(5)
        await stock.take(2)
        await stock.take(9)
        for end in ("confirm", "cancel"):
            reservation = await stock.reserve(1, 10)
            assert reservation is not None
            await getattr(reservation, end)()
        await (await client.semaphore("permits", 5).acquire(weight=3)).release()

    told = played(play)
    assert [(each.event.value, each.units) for each in told if each.kind == "limit"] == [
        *(("units taken", 5), ("contended", 5), ("units taken", 5), ("units refused", 5)),
    ]
    assert told[2].waited == pytest.approx(1.0, abs=0.1)
    assert [(each.event.value, each.units) for each in told if each.kind == "stock"] == [
        *(("units taken", 2), ("units refused", 9), ("units reserved", 1), ("units taken", 1)),
        *(("units reserved", 1), ("units returned", 1)),
    ]
    assert [each.units for each in told if each.kind == "semaphore"] == [3, 3]


# -- who asked ---------------------------------------------------------------------------------------------


def test_an_event_says_who_asked() -> None:
    """The kind of primitive, the template, the store, the thread; and the line only if that is wanted."""
    told: list[LockEvent] = []
    with Client("memory://", namespace="app", owner="me", on_event=told.append, event_lines=True) as client:
        with client.rwlock("shared").write():  # this line
            pass
        with client.multilock(["a", "b"], template="pair"), client.rwlock("shared").read():
            pass
        client.election("leader").campaign().release()
    line = next(
        number
        for number, text in enumerate(inspect.getsource(inspect.getmodule(played)).splitlines(), 1)  # type: ignore[arg-type]
        if text.endswith("# this line")
    )
    first = told[0]
    assert (first.name, first.template, first.kind, first.owner) == ("shared", "rw write", "rw write", "me")
    assert (first.store, first.thread, first.line) == ("memory://", "MainThread", f"{__file__}:{line}")
    assert [each.kind for each in told if each.event is EventKind.ACQUIRED] == [
        *("rw write", "multilock", "multilock", "rw read", "election"),
    ]
    assert {each.template for each in told if each.kind == "multilock"} == {"pair"}


def test_a_task_is_named_and_no_line_is_looked_for() -> None:
    """Without `event_lines`."""

    async def enter(client: AsyncClient) -> None:
        async with client.lock("name"):
            pass

    async def play(client: AsyncClient) -> None:
        await asyncio.create_task(enter(client), name="worker-7")

    told = played(play)
    assert {(each.thread, each.line) for each in told} == {("worker-7", "")}


def test_a_template_is_checked() -> None:
    """As a name is."""
    with Client("memory://") as client:
        for make in (client.lock, client.rwlock, client.election, client.stock):
            with pytest.raises(UsageError, match="a template"):
                make("name", template="x" * 600)


def test_every_listener_hears_every_event_though_one_fails() -> None:
    """Listeners are any number of callables."""
    one, other = list[LockEvent](), list[LockEvent]()

    def fail(event: LockEvent) -> None:
        raise RuntimeError(event.name)

    client = Client("memory://", on_event=one.append)
    client.listen(fail)
    client.listen(other.append)
    with client, client.lock("name"):
        pass
    assert brief(one) == ["acquired", "released: released"]
    assert one == other


# -- logs --------------------------------------------------------------------------------------------------


def test_each_event_is_a_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the names, the owners and the errors contain; and its fields are attributes of the record."""
    caplog.set_level(logging.DEBUG, "tenure.events")
    broken = Broken()

    async def main() -> None:
        source = disturbed(virtual.source(), broken)
        name = f"{FORGED[:60]}\u2028\x00"
        client = AsyncClient(store=source, owner=name, on_event=json_lines(), event_lines=True)
        async with client, client.lock(name, ttl=10):
            broken.failing["renew"] = StoreUnavailable(FORGED)
            await asyncio.sleep(5)
            broken.failing.clear()
            await asyncio.sleep(5)

    virtual.run(main)
    records = [each for each in caplog.records if each.name == "tenure.events"]
    lines = [each.getMessage() for each in records]
    assert all(line.isascii() and line.isprintable() for line in lines)
    found = [json.loads(line) for line in lines]
    assert [each["event"] for each in found if "cause" in each or "waited" in each] == ["acquired", "released"]
    assert {"at risk", "recovered", "released", "store unreachable", "store back"} <= {each["event"] for each in found}
    assert found[0]["name"].endswith("\u2028\x00")
    assert records[0].__dict__["tenure_name"] == found[0]["name"]
    levels = {each["event"]: record.levelname for each, record in zip(found, records, strict=True)}
    assert (levels["acquired"], levels["renewed"], levels["at risk"]) == ("INFO", "DEBUG", "WARNING")
