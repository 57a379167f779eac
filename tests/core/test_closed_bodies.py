"""A client that is closed while the body of another thread or task uses a lease tells the body before the release."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tenure import (
    AsyncClient,
    AsyncLease,
    AsyncLock,
    AsyncMultiLock,
    Client,
    EventKind,
    Lease,
    LeaseLost,
    LeaseState,
    LockEvent,
    Outcome,
    StoreUnavailable,
    UsageError,
)
from tenure.contracts.messages import ReleaseRequest
from tenure.contracts.store import StoreSource
from tenure.core.events import Events
from tenure.core.multi_acquire import LeaseGroup
from tenure.core.release import Releases
from tenure.core.release_all import Closing
from tenure.primitives.multilock import MultiLease
from tenure.primitives.reentrant import _Hold
from tenure.reentry import inside
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, Script, disturbed
from tests.planting import assert_fails, planted

CLOSED = "its client was closed while its body ran"


def run(work: Callable[[AsyncClient, StoreSource], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in virtual time with a client, and the source of its store for another."""

    async def main() -> None:
        source = virtual.source()
        client = AsyncClient(store=source)
        await work(client, source)
        await client.close()

    virtual.run(main)


async def in_body(
    acquire: Callable[[], Awaitable[AsyncLease]], seconds: float = 1000
) -> tuple[AsyncLease, asyncio.Task[None]]:
    """Return a lease, and a task whose body runs under it for so many seconds."""
    entered: asyncio.Future[AsyncLease] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with await acquire() as lease:
            entered.set_result(lease)
            await asyncio.sleep(seconds)

    body = asyncio.create_task(work())
    return await entered, body


def test_a_body_is_cancelled() -> None:
    """Its `async with` raises LeaseLost, which says why, and the name is free for others."""

    async def work(client: AsyncClient, source: StoreSource) -> None:
        lease, body = await in_body(client.lock("name", ttl=30).acquire)
        began = asyncio.get_running_loop().time()
        await client.close()
        with pytest.raises(LeaseLost, match=CLOSED):
            await body
        assert asyncio.get_running_loop().time() - began < 1
        assert lease.state is LeaseState.LOST
        assert await lease.release() is Outcome.EXPIRED
        async with AsyncClient(store=source) as other:
            assert await (await other.lock("name").acquire(timeout=0)).release() is Outcome.RELEASED

    run(work)


def test_a_body_is_told_before_the_name_is_free() -> None:
    """When the store is asked to release a lease, that lease is lost at its holder."""
    lost: list[int] = []
    held: list[AsyncLease] = []

    async def look(operation: str, done: bool) -> None:
        if operation == "release" and not done:
            lost.append([lease.remaining() for lease in held].count(0.0))

    async def main() -> None:
        client = AsyncClient(store=disturbed(virtual.source(), look))
        bodies = [await in_body(client.lock(name, ttl=30).acquire) for name in "abc"]
        held.extend(lease for lease, _ in bodies)
        await client.close()
        for _, body in bodies:
            with pytest.raises(LeaseLost, match=CLOSED):
                await body

    virtual.run(main)
    assert lost == [1, 2, 3]


def test_a_thread_learns_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """By `lost`, by `on_lost`, by `check`, at the end of its `with`, by an event, and in the log: once each."""
    told: list[LeaseLost] = []
    ends: list[LockEvent] = []
    entered, found = threading.Event(), list[object]()
    client = Client(store=memory_source(MemoryTable()), on_event=ends.append)

    def work() -> None:
        with client.lock("name", ttl=30, on_lost=told.append) as lease:
            entered.set()
            found.append(lease.lost.wait(TEST_TIMEOUT))
            with pytest.raises(LeaseLost, match=CLOSED):
                lease.check()
            found.append(lease.release())

    def left() -> None:
        with pytest.raises(LeaseLost, match=CLOSED):
            work()
        found.append("left")

    thread = threading.Thread(target=left)
    thread.start()
    assert entered.wait(TEST_TIMEOUT)
    client.close()
    thread.join(TEST_TIMEOUT)
    assert found == [True, Outcome.EXPIRED, "left"]
    assert [CLOSED in str(each) for each in told] == [True]
    assert [(each.event, each.cause) for each in ends][1:] == [(EventKind.LOST, "closed")]
    assert [CLOSED in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [True]


@pytest.mark.parametrize("kind", ["multilock", "semaphore", "reader", "reentrant", "election", "adopted"])
def test_bodies_of_every_kind_are_told(kind: str) -> None:
    """A body that was entered by a lease of any primitive is cancelled."""

    async def work(client: AsyncClient, source: StoreSource) -> None:
        acquire: dict[str, Callable[[], Any]] = {
            "multilock": lambda: client.multilock(["a", "b"], ttl=30).acquire(),
            "semaphore": lambda: client.semaphore("a", 2, ttl=30).acquire(),
            "reader": lambda: client.rwlock("a", ttl=30).read().acquire(),
            "reentrant": lambda: client.lock("a", ttl=30, reentrant=True).acquire(),
            "election": lambda: client.election("a", ttl=30).campaign(),
        }
        if kind == "adopted":
            handle = await (await client.lock("a", ttl=30).acquire()).detach()
            acquire[kind] = lambda: client.adopt(handle)
        _, body = await in_body(acquire[kind])
        await client.close()
        with pytest.raises(LeaseLost, match=CLOSED):
            await body
        async with AsyncClient(store=source) as other:
            assert await other.names() == []

    run(work)


def test_a_lease_without_a_body_is_released() -> None:
    """Nobody is told of a loss for a lease that no `with` has entered, nor for one whose body is over."""
    told: list[LeaseLost] = []

    async def work(client: AsyncClient, source: StoreSource) -> None:
        lease = await asyncio.create_task(_acquire(client.lock("held", ttl=30, on_lost=told.append)))
        _, body = await in_body(client.lock("over", ttl=30, linger=20, on_lost=told.append).acquire, 1)
        await body
        await (await client.lock("lingers", ttl=30, linger=20, on_lost=told.append).acquire()).release()
        await client.close()
        assert lease.state is LeaseState.RELEASED
        async with AsyncClient(store=source) as other:
            assert await other.names() == []

    run(work)
    assert not told


def test_a_lease_that_is_not_renewed_goes_on() -> None:
    """One with `renew=False` outlives its client, so its body goes on, too, for as long as the lease lasts."""

    async def work(client: AsyncClient, source: StoreSource) -> None:
        lease, body = await in_body(client.lock("name", ttl=30, renew=False).acquire, 10)
        await client.close()
        await asyncio.sleep(5)
        lease.check()
        assert not body.done()
        async with AsyncClient(store=source) as other:
            assert await other.lock("name").try_acquire() is None
        with suppress(LeaseLost):
            await body

    run(work)


def test_a_body_may_close_its_own_client() -> None:
    """The thread or task that closes a client releases its own leases by closing, and gets no LeaseLost."""

    async def work(client: AsyncClient, source: StoreSource) -> None:
        async with await asyncio.create_task(_acquire(client.lock("name", ttl=30))) as lease:
            await client.close()
            assert lease.state is LeaseState.RELEASED
        async with AsyncClient(store=source) as other:
            assert await other.names() == []

    run(work)
    for reentrant in (False, True):
        with Client(store=memory_source(MemoryTable())) as client:
            lock = client.lock("name", reentrant=reentrant)
            with lock as outer, lock if reentrant else nullcontext(outer):
                client.close()
                assert outer.state is LeaseState.RELEASED
    with Client(store=memory_source(MemoryTable())) as client, client.multilock(["a", "b"]) as held:
        client.close()
        assert held.state is LeaseState.RELEASED


def test_a_body_is_of_who_entered_it() -> None:
    """One thread or task acquires a lease and closes the client; another one entered the lease, and gets LeaseLost."""

    async def work(client: AsyncClient, _source: StoreSource) -> None:
        lease = await client.lock("name", ttl=30).acquire()
        entered = asyncio.Event()

        async def enter() -> None:
            async with lease:
                entered.set()
                await asyncio.sleep(1000)

        body = asyncio.create_task(enter())
        await entered.wait()
        await client.close()
        with pytest.raises(LeaseLost, match=CLOSED):
            await body

    run(work)
    for kind in ("lock", "multilock"):
        _entered_by_a_thread(kind)


def _entered_by_a_thread(kind: str) -> None:
    client, entered, lost = Client(store=memory_source(MemoryTable())), threading.Event(), list[str]()
    lease: Any = client.lock("a").acquire() if kind == "lock" else client.multilock(["a", "b"]).acquire()

    def enter() -> None:
        try:
            with lease:
                entered.set()
                while lease.state is LeaseState.HELD:
                    lease.lost.wait(0.01)
        except LeaseLost as error:
            lost.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    assert entered.wait(TEST_TIMEOUT)
    client.close()
    thread.join(TEST_TIMEOUT)
    assert [CLOSED in each for each in lost] == [True]


def test_a_body_that_is_over_is_not_told() -> None:
    """The client is closed while a multilock, whose body has ended, releases its first leases."""
    told: list[LeaseLost] = []

    async def slow(operation: str, done: bool) -> None:
        if operation == "release" and not done:
            await asyncio.sleep(1)

    async def enter(lock: AsyncMultiLock) -> None:
        async with lock:
            pass

    async def main() -> None:
        client = AsyncClient(store=disturbed(virtual.source(), slow), operation_timeout=5)
        body = asyncio.create_task(enter(client.multilock(["a", "b", "c"], ttl=300, on_lost=told.append)))
        await asyncio.sleep(0.5)
        await client.close()
        await body

    virtual.run(main)
    assert not told


def test_a_body_that_is_left_in_a_signal_handler_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is released in the background, or by the close if that comes first."""
    told: list[LeaseLost] = []
    client = Client(store=memory_source(MemoryTable()))
    lease = client.lock("name", on_lost=told.append).acquire()

    def never(_chore: Callable[[], None]) -> None:
        """Leave the release to the close, which comes first."""

    monkeypatch.setattr(client.session().renewer, "soon", never)

    def work() -> None:
        lease.__enter__()
        inside(partial(lease.__exit__, None, None, None))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TEST_TIMEOUT)
    client.close()
    assert lease.release() is Outcome.RELEASED
    assert not told


def test_a_callback_may_release_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The close, which calls it, does not wait for itself: `release` does not look for the outcome again and again."""
    outcomes: list[Outcome] = []
    waits: list[float] = []
    looks: list[int] = []
    right = Releases.collect

    def collect(releases: Releases, now: float) -> float:
        waits.append(now)
        return right(releases, now)

    client = Client(store=memory_source(MemoryTable()), operation_timeout=0.1)
    lease = client.lock("name", ttl=30).acquire()

    def release(_lost: LeaseLost) -> None:
        waits.clear()
        outcomes.append(lease.release())
        looks.append(len(waits))

    lease.on_lost(release)
    monkeypatch.setattr(Releases, "collect", collect)
    _enter_in_a_thread(lease)
    client.close()
    assert outcomes == [Outcome.UNKNOWN]
    assert looks[0] < 10
    assert lease.release() is Outcome.EXPIRED


def _enter_in_a_thread(lease: Lease) -> None:
    thread = threading.Thread(target=lease.__enter__)
    thread.start()
    thread.join(TEST_TIMEOUT)


@pytest.mark.parametrize("entered", [False, True])
def test_a_close_that_is_interrupted_can_be_repeated(entered: bool) -> None:
    """The lease whose release was interrupted is released, and its body told; another call releases the rest."""
    interrupts = iter([True])

    class Interrupted(MemoryStore):
        async def release(self, release: ReleaseRequest, until: float) -> Outcome:
            if next(interrupts, False):
                raise KeyboardInterrupt
            return await super().release(release, until)

    table = MemoryTable()
    client = Client(
        store=StoreSource("memory://", MemoryStore.capabilities, lambda runtime: Interrupted(runtime, table))
    )
    leases = [client.lock(name, ttl=30).acquire() for name in "ab"]
    if entered:
        _enter_in_a_thread(leases[0])
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert leases[0].state is (LeaseState.LOST if entered else LeaseState.RELEASED)
    client.close()
    assert leases[1].state is LeaseState.RELEASED
    with Client(store=memory_source(table)) as other:
        assert other.names() == []


def test_no_body_begins_under_a_lease_that_was_released() -> None:
    """A task that is handed a lease while the client is closed gets what a waiter gets; events tell both."""
    begun: list[AsyncLease] = []
    told: list[LockEvent] = []

    async def main() -> None:
        client = AsyncClient(store=virtual.source(), on_event=told.append)
        lock = client.lock("name", ttl=30)

        async def enter() -> None:
            async with lock as lease:
                begun.append(lease)

        first = await lock.acquire()
        leading = asyncio.create_task(_acquire(lock))  # a waiter gets tokens for those behind it, too
        await asyncio.sleep(1)
        assert await first.release() is Outcome.RELEASED
        held = await leading
        entering = asyncio.create_task(enter())
        await asyncio.sleep(1)
        closing = asyncio.create_task(client.close())
        releasing = asyncio.create_task(held.release())
        await closing
        assert await releasing is Outcome.RELEASED
        with pytest.raises(UsageError, match="closed"):
            await entering

    virtual.run(main)
    assert not begun
    kinds = [each.event for each in told]
    assert EventKind.HANDED_ON in kinds
    assert kinds.count(EventKind.ACQUIRED) == sum(each in {EventKind.RELEASED, EventKind.HANDED_ON} for each in kinds)


async def _acquire(lock: AsyncLock) -> AsyncLease:
    return await lock.acquire()


@pytest.mark.parametrize("kind", ["lock", "multilock"])
def test_no_thread_begins_a_body_under_a_lease_that_was_released(kind: str) -> None:
    """As a task, if it is held up between the grant and its body."""
    granted, closed = threading.Event(), threading.Event()
    client = Client(store=memory_source(MemoryTable()))
    lock: Any = client.lock("a") if kind == "lock" else client.multilock(["a", "b"])
    here = lock._entered._here

    def after_the_grant() -> object:
        granted.set()
        assert closed.wait(TEST_TIMEOUT)
        return here()

    lock._entered._here = after_the_grant
    ends: list[str] = []

    def work() -> None:
        try:
            with lock:
                ends.append("a body")
        except UsageError as error:
            ends.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    assert granted.wait(TEST_TIMEOUT)
    client.close()
    closed.set()
    thread.join(TEST_TIMEOUT)
    assert ["closed" in each for each in ends] == [True]


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_release_that_fails_at_first_is_repeated(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that answers again soon releases the leases, as any others that a client holds."""
    monkeypatch.setattr("tenure.core.release.LOST_TIMEOUT", 0.0)
    tries: list[str] = []

    class SilentAtFirst(MemoryStore):
        async def release(self, release: ReleaseRequest, until: float) -> Outcome:
            tries.append(release.name)
            if tries.count(release.name) < 3:
                raise StoreUnavailable("no answer")
            return await super().release(release, until)

    table, entered = MemoryTable(), threading.Event()
    client = Client(
        store=StoreSource("memory://", MemoryStore.capabilities, lambda runtime: SilentAtFirst(runtime, table))
    )
    lost: list[bool] = []

    def work() -> None:
        try:
            with client.multilock(list(names), ttl=30) as lease:
                entered.set()
                lease.lost.wait(TEST_TIMEOUT)
        except LeaseLost:
            lost.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(TEST_TIMEOUT)
    client.close()
    thread.join(TEST_TIMEOUT)
    assert lost == [True]
    with Client(store=memory_source(table)) as other:
        assert other.names() == []


def test_a_store_that_does_not_answer_leaves_nobody_untold() -> None:
    """The close gives up, and the lease ends at its ttl: its body is told at once, because nobody renews it."""

    async def silent(operation: str, done: bool) -> None:
        if operation == "release" and not done:
            await asyncio.sleep(5)
            raise StoreUnavailable("no answer")

    async def main() -> None:
        client = AsyncClient(store=disturbed(virtual.source(), silent))
        bodies = [await in_body(client.lock(name, ttl=300).acquire) for name in "ab"]
        await client.close()
        for _, body in bodies:
            with pytest.raises(LeaseLost, match=CLOSED):
                await body

    virtual.run(main)


def test_nobody_is_told_at_the_end_of_a_process(tmp_path: Path) -> None:
    """A daemon thread is in a body: all leases are released, nothing is said, and `on_lost` does not change the end."""
    code = """
import os, sys, threading, tenure
client = tenure.Client(sys.argv[1], on_event=lambda event: None)
entered = threading.Event()
def work():
    with client.lock("name", on_lost=lambda _: os._exit(3)):
        entered.set()
        threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
entered.wait()
"""
    url = f"sqlite:///{tmp_path}/locks.db"
    script = Script(code, url)
    assert script.end() == ("", "")
    assert script.status == 0
    with Client(url) as client:
        assert client.names() == []


def test_nobody_is_told_at_the_end_of_a_loop() -> None:
    """A task that stands still in a body is not begun again to be cancelled."""
    client, loop = AsyncClient(store=memory_source(MemoryTable())), asyncio.new_event_loop()
    lease, body = loop.run_until_complete(in_body(client.lock("name", ttl=30).acquire))
    loop.close()
    assert lease.state is LeaseState.RELEASED
    assert not body.done()
    with suppress(LeaseLost):
        cast("Coroutine[Any, Any, None]", body.get_coro()).close()


def test_a_body_of_another_loop_is_cancelled() -> None:
    """An AsyncClient that is closed in one event loop cancels the bodies of the other loops."""
    client = AsyncClient(store=memory_source(MemoryTable()))
    entered = threading.Event()
    failed: list[BaseException] = []

    async def hold() -> None:
        async with client.lock("name", ttl=30):
            entered.set()
            await asyncio.sleep(TEST_TIMEOUT)

    def work() -> None:
        try:
            asyncio.run(hold())
        except LeaseLost as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(TEST_TIMEOUT)
    asyncio.run(client.close())
    thread.join(TEST_TIMEOUT)
    assert [CLOSED in str(each) for each in failed] == [True]


# -- planted bugs ------------------------------------------------------------------------------------------

BUGS: dict[str, tuple[type, str, str, str, Callable[[], None]]] = {
    "bodies are not told": (
        Releases,
        "_tell",
        "lease.lose(CLOSED, LeaseEvent.NOT_KEPT)",
        "False",
        test_a_body_is_cancelled,
    ),
    "leases without a body are lost": (
        Releases,
        "release",
        "if told and lease.body is not None:\n                self",
        "if told:\n                self",
        test_a_lease_without_a_body_is_released,
    ),
    "who closes is the body": (
        Releases,
        "release",
        "if told and lease.body is not None:\n                self",
        "if lease.body is not None:\n                self",
        test_a_body_may_close_its_own_client,
    ),
    "an interrupt hides the session": (
        Client,
        "_close_session",
        "self._session = session",
        "pass",
        partial(test_a_close_that_is_interrupted_can_be_repeated, entered=False),
    ),
    "a body is of who acquired it": (
        AsyncLease,
        "__aenter__",
        "self._core.by = self._core.runtime.mark()",
        "pass",
        test_a_body_is_of_who_entered_it,
    ),
    "a body of a thread is of who acquired it": (
        Lease,
        "__enter__",
        "self._core.by = self._core.runtime.mark()",
        "pass",
        test_a_body_is_of_who_entered_it,
    ),
    "a body of several names is of who acquired them": (
        LeaseGroup,
        "enter_at",
        "each.by, each.body = by, body",
        "each.body = body",
        test_a_body_is_of_who_entered_it,
    ),
    "the body of a multilock is never over": (
        LeaseGroup,
        "release",
        "each.body = None",
        "pass",
        test_a_body_that_is_over_is_not_told,
    ),
    "who closes is told of its inner hold": (
        _Hold,
        "give_back",
        "Outcome.EXPIRED if self.reservation.lease.is_lost() else Outcome.RELEASED",
        "Outcome.RELEASED if self.reservation.lease.trusted() else Outcome.EXPIRED",
        test_a_body_may_close_its_own_client,
    ),
    "who closes is told": (
        Closing,
        "tells",
        " or lease.by is self.by",
        "",
        test_a_body_may_close_its_own_client,
    ),
    "the end of a loop is told": (
        Closing,
        "tells",
        "self.by is None or ",
        "",
        test_nobody_is_told_at_the_end_of_a_loop,
    ),
    "a body begins without a lease": (
        Lease,
        "_enter_at",
        "self._refuse_given_up()",
        "pass",
        partial(test_no_thread_begins_a_body_under_a_lease_that_was_released, "lock"),
    ),
    "a body in asyncio begins without a lease": (
        AsyncLease,
        "_enter_at",
        "self._refuse_given_up()",
        "pass",
        test_no_body_begins_under_a_lease_that_was_released,
    ),
    "a body begins without all its leases": (
        MultiLease,
        "_enter_at",
        "self._refuse_given_up()",
        "pass",
        partial(test_no_thread_begins_a_body_under_a_lease_that_was_released, "multilock"),
    ),
    "the end of a lease is no event": (
        Events,
        "_granted",
        " or lease.outcome is not None",
        "",
        test_no_body_begins_under_a_lease_that_was_released,
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that closes in another way fails a test."""
    owner, method, right, wrong, test = BUGS[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    assert_fails(test)


MORE_BUGS: dict[str, tuple[type, str, str, str, Callable[[pytest.MonkeyPatch], None]]] = {
    "a close waits for itself": (
        Releases,
        "_released_by_another",
        "lease.teller is not None and ",
        "False and ",
        test_a_callback_may_release_the_lease,
    ),
    "a body that was left in a signal handler goes on": (
        Lease,
        "_release_later",
        "held.body = None",
        "pass",
        test_a_body_that_is_left_in_a_signal_handler_is_not_told,
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("bug", sorted(MORE_BUGS))
def test_more_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with tests that patch."""
    owner, method, right, wrong, test = MORE_BUGS[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    assert_fails(partial(test, monkeypatch))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_release_that_is_given_up_early_is_found(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug in the repetition of the release."""
    monkeypatch.setattr("tenure.core.release.LOST_TIMEOUT", 0.0)  # before the planted method copies it
    monkeypatch.setattr(
        Releases, "_release_again", planted(Releases, "_release_again", " and not self._access.closed", "")
    )
    assert_fails(partial(test_a_release_that_fails_at_first_is_repeated, names, monkeypatch))
