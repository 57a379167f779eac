"""A lease that is dropped without release is reported, and ends at its ttl or with its client. No lease is copied."""

import asyncio
import copy
import gc
import inspect
import logging
import pickle
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from functools import partial, partialmethod
from typing import Any
from unittest.mock import patch

import pytest

from tenure import AsyncClient, Client, EventKind, LockEvent
from tenure.contracts.store import StoreSource
from tenure.core.agenda import Agendas
from tenure.core.renewer import Renewer
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually, soon

pytestmark = pytest.mark.filterwarnings("ignore:.*dropped without release:ResourceWarning")

Take = Callable[[Client], object]
AsyncTake = Callable[[AsyncClient], Coroutine[Any, Any, object]]


def _enter(client: Client) -> None:
    ExitStack().enter_context(client.lock("name"))


SYNC: dict[str, Take] = {
    "a lock": lambda client: client.lock("name").acquire(),
    "a lock that is tried": lambda client: client.lock("name").try_acquire(),
    "a lock in an ExitStack": _enter,
    "a reentrant lock": lambda client: client.lock("name", reentrant=True).acquire(),
    "a semaphore": lambda client: client.semaphore("name", 3).acquire(),
    "a reader": lambda client: client.rwlock("name").read().acquire(),
    "a writer": lambda client: client.rwlock("name").write().acquire(),
    "a multilock": lambda client: client.multilock(["name"]).acquire(),
    "an election": lambda client: client.election("name").campaign(),
}


async def _enter_async(client: AsyncClient) -> None:
    await AsyncExitStack().enter_async_context(client.lock("name"))


async def _take(client: AsyncClient) -> None:
    await client.lock("name").acquire()


async def _try(client: AsyncClient) -> None:
    await client.lock("name").try_acquire()


async def _take_reentrant(client: AsyncClient) -> None:
    await client.lock("name", reentrant=True).acquire()


async def _take_permit(client: AsyncClient) -> None:
    await client.semaphore("name", 3).acquire()


async def _take_all(client: AsyncClient) -> None:
    await client.multilock(["name"]).acquire()


async def _lead(client: AsyncClient) -> None:
    await client.election("name").campaign()


ASYNC = {
    "a lock": _take,
    "a lock that is tried": _try,
    "a lock in an AsyncExitStack": _enter_async,
    "a reentrant lock": _take_reentrant,
    "a semaphore": _take_permit,
    "a multilock": _take_all,
    "an election": _lead,
}


def line_of(function: Callable[..., object]) -> str:
    """Return the line of the acquisition in a function as the log shows it: the last of its lines."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + len(lines) - 1}"


def dropped(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of dropped leases."""
    records = [record for record in caplog.records if "dropped without release" in record.getMessage()]
    assert all(record.levelno == logging.WARNING for record in records)
    return [record.getMessage() for record in records]


@pytest.mark.parametrize("kind", SYNC)
def test_a_dropped_lease_is_reported_with_the_line_that_acquired_it(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """There is one warning and one event, and the name is free after the ttl and not before."""
    told: list[LockEvent] = []
    source = virtual.source()
    with (
        virtual.stopped_clock() as clock,
        Client(store=source, on_event=told.append) as client,
        Client(store=source) as other,
    ):
        SYNC[kind](client)
        eventually(lambda: any(each.event is EventKind.DROPPED for each in told), "an event")
        (message,) = dropped(caplog)
        (event,) = [each for each in told if each.event is EventKind.DROPPED]
        assert line_of(SYNC[kind]) in message
        assert message.startswith("the lease of 'name'")
        assert (event.name, event.detail) == ("name", line_of(SYNC[kind]))
        assert event.token == client.inspect("name").holders[0].token
        clock.advance(29.0)
        assert other.inspect("name").holders
        clock.advance(1.1)
        assert not other.inspect("name").holders


@pytest.mark.parametrize("kind", ASYNC)
def test_a_dropped_lease_is_reported_in_asyncio(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same in asyncio."""
    told: list[LockEvent] = []

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source, on_event=told.append) as client, AsyncClient(store=source) as other:
            await ASYNC[kind](client)
            await soon(lambda: any(each.event is EventKind.DROPPED for each in told), "an event")
            assert [each.detail for each in told if each.event is EventKind.DROPPED] == [line_of(ASYNC[kind])]
            await asyncio.sleep(29.0)
            assert (await other.inspect("name")).holders
            await asyncio.sleep(1.1)
            assert not (await other.inspect("name")).holders

    virtual.run(main)
    (message,) = dropped(caplog)
    assert line_of(ASYNC[kind]) in message


def test_a_task_that_only_acquires_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """No line is better than one of asyncio."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            await asyncio.create_task(client.lock("name").acquire())

    virtual.run(main)
    (message,) = dropped(caplog)
    assert "acquired at" not in message


def test_each_lease_of_a_reservation_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A lease object of a reentrant lock that is dropped while others are held is reported, and ends nothing."""
    told: list[LockEvent] = []
    with Client(store=virtual.source(), on_event=told.append) as client:
        lock = client.lock("name", reentrant=True)
        with lock:
            lock.acquire()
            eventually(lambda: dropped(caplog), "a warning")
            assert "holds the name by another lease" in dropped(caplog)[0]
            assert not [each for each in told if each.event is EventKind.DROPPED]
            assert client.inspect("name").holders
    assert len(dropped(caplog)) == 1


def test_the_leases_of_a_multilock_are_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """There is one warning for all, and an event for each."""
    told: list[LockEvent] = []
    with Client(store=virtual.source(), on_event=told.append) as client:
        client.multilock(["a", "b", "c"]).acquire()
        eventually(lambda: sum(each.event is EventKind.DROPPED for each in told) == 3, "events")
    (message,) = dropped(caplog)
    assert message.startswith("the lease of 'a'")
    assert "and 2 more were dropped" in message


def test_a_dropped_lease_is_reported_by_another_thread_than_the_collectors(caplog: pytest.LogCaptureFixture) -> None:
    """A handler of a log or an event may hold a lock that the interrupted code holds as well."""
    told: list[str] = []

    def tell(event: LockEvent) -> None:
        if event.event is EventKind.DROPPED:
            told.append(threading.current_thread().name)

    with Client(store=virtual.source(), on_event=tell) as client:
        client.lock("name").acquire()
        eventually(lambda: told, "an event")
    assert told == ["tenure-renewer"]
    (record,) = [each for each in caplog.records if "dropped" in each.getMessage()]
    assert record.threadName == "tenure-renewer"


# -- the end of the client -------------------------------------------------------------------------------------


def drop_and_close(take: Take, source: StoreSource) -> None:
    """Drop a lease and close its client, while the clock of the store stands still."""
    with virtual.stopped_clock(), Client(store=source) as other:
        with Client(store=source) as client:
            take(client)
            assert other.inspect("name").holders, "the collector does not release it"
        assert not other.inspect("name").holders, "the end of the client releases it"


@pytest.mark.parametrize("kind", SYNC)
def test_closing_releases_a_dropped_lease(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The name is free at once, not at the ttl; the drop is reported before that."""
    drop_and_close(SYNC[kind], virtual.source())
    assert len(dropped(caplog)) == 1


def test_closing_releases_a_lease_whose_drop_was_reported() -> None:
    """The same if the renewer has seen it."""
    told: list[LockEvent] = []
    source = virtual.source()
    with virtual.stopped_clock(), Client(store=source) as other:
        with Client(store=source, on_event=told.append) as client:
            client.lock("name").acquire()
            eventually(lambda: any(each.event is EventKind.DROPPED for each in told), "an event")
        assert not other.inspect("name").holders


@pytest.mark.parametrize("kind", ASYNC)
def test_closing_releases_a_dropped_lease_in_asyncio(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same in asyncio."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as other:
            async with AsyncClient(store=source) as client:
                await ASYNC[kind](client)
                assert (await other.inspect("name")).holders
            assert not (await other.inspect("name")).holders

    virtual.run(main)
    assert len(dropped(caplog)) == 1


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_a_lease_that_is_dropped_at_the_end_of_the_loop_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The client was not closed, and its renewer is cancelled with the loop."""

    async def main() -> None:
        client = AsyncClient(store=virtual.source())
        await client.lock("name").acquire()

    virtual.run(main)
    gc.collect()
    assert len(dropped(caplog)) == 1


def nothing_is_kept_of_a_dropped_lease(take: AsyncTake) -> None:
    """Check that the client forgets a dropped lease at its end, and tells nobody that it is lost."""
    told: list[LockEvent] = []

    async def main() -> None:
        async with AsyncClient(store=virtual.source(), on_event=told.append) as client:
            await take(client)
            async with client.lock("another"):
                await asyncio.sleep(5.0)
                assert len(client.session().renewer.unreleased()) == 2
                await asyncio.sleep(26.0)
                assert len(client.session().renewer.unreleased()) == 1

    virtual.run(main)
    assert EventKind.DROPPED in {each.event for each in told}
    assert EventKind.LOST not in {each.event for each in told}


@pytest.mark.parametrize("kind", ["a lock", "a reentrant lock", "a multilock"])
def test_nothing_is_kept_of_a_dropped_lease(kind: str) -> None:
    """A program that drops a lease again and again does not grow; and a loss is told to holders alone."""
    nothing_is_kept_of_a_dropped_lease(ASYNC[kind])


def _without_dropped(self: Renewer) -> list[Any]:
    return [lease for lease in self._leases.values() if not lease.dropped]


def _kept_for_ever(self: Agendas, request_id: str, now: float, place: Callable[..., None]) -> None:
    lease = self.leases.get(request_id)
    if lease is not None and not lease.dropped:
        place(self, request_id, now)


def _nothing_is_kept(_source: object) -> None:
    nothing_is_kept_of_a_dropped_lease(ASYNC["a lock"])


def _do_nothing(_renewer: Renewer) -> None:
    """Take the place of a method."""


@pytest.mark.parametrize(
    ("owner", "method", "wrong", "check"),
    [
        (Renewer, "unreleased", _without_dropped, partial(drop_and_close, SYNC["a lock"])),
        (Renewer, "unreleased", _without_dropped, partial(drop_and_close, SYNC["a multilock"])),
        (Agendas, "_place", partialmethod(_kept_for_ever, place=Agendas._place), _nothing_is_kept),
    ],
)
def test_a_dropped_lease_that_is_kept_wrong_is_found(
    owner: type, method: str, wrong: object, check: Callable[[StoreSource], None]
) -> None:
    """The checks above find each of these planted bugs."""
    with patch.object(owner, method, wrong), pytest.raises(AssertionError):
        check(virtual.source())


@pytest.mark.parametrize("place", ["the collector", "nobody"])
def test_a_drop_that_is_reported_wrong_is_found(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The test above finds reports of the collector itself, and reports that a client leaves out at its end."""

    def report_at_once(self: Renewer, chore: Callable[[], None]) -> None:
        chore()

    if place == "the collector":
        with patch.object(Renewer, "soon", report_at_once), pytest.raises(AssertionError):
            test_a_dropped_lease_is_reported_by_another_thread_than_the_collectors(caplog)
    else:
        with patch.object(Renewer, "do_chores", _do_nothing), pytest.raises(AssertionError):
            test_closing_releases_a_dropped_lease("a lock", caplog)


# -- copies ----------------------------------------------------------------------------------------------------


def refuses_copies(thing: object, advice: str) -> None:
    """Check that neither `copy` nor `pickle` takes a thing, and that both say what to do."""
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=advice):
            make(thing)


@pytest.mark.parametrize(
    "kind", ["a lock", "a reentrant lock", "a semaphore", "a reader", "a multilock", "an election"]
)
def test_a_lease_is_neither_copied_nor_pickled(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A copy that is collected would end the renewal of the original."""
    with Client(store=virtual.source()) as client:
        lease: Any = SYNC[kind](client)
        refuses_copies(lease, "neither copied nor pickled: .* Pass the object itself")
        refuses_copies(lease.lost, "neither copied nor pickled")
        lease.check()
        assert not any(each.dropped for each in client.session().renewer.unreleased())
        lease.release()
    assert not dropped(caplog)


def test_a_lease_is_neither_copied_nor_pickled_in_asyncio() -> None:
    """The same in asyncio."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            async with client.lock("name") as lease, client.multilock(["other"]) as leases:
                refuses_copies(lease, "an? AsyncLease can be neither")
                refuses_copies(leases, "neither copied nor pickled")
                lease.check()
            refuses_copies(client, "make a client in each process")

    virtual.run(main)


def test_a_client_is_neither_copied_nor_pickled() -> None:
    """Two clients with one session would end each other; a lock that is pickled says the same of its client."""
    with Client(store=virtual.source()) as client:
        refuses_copies(client, "make a client in each process")
        for lock in (client.lock("name"), client.multilock(["name"]), client.rwlock("name"), client.counter("name")):
            with pytest.raises(TypeError, match="make a client in each process"):
                pickle.dumps(lock)
        thread = threading.Thread(target=lambda: client.lock("name").acquire().release())
        thread.start()
        thread.join(TEST_TIMEOUT)
        assert not thread.is_alive()
