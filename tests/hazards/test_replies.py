"""A request is carried out and its answer is lost, comes after its caller has given up, or never comes."""

import asyncio
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest

from tenure import (
    AsyncClient,
    Client,
    Lease,
    LeaseLost,
    LeaseState,
    LockTimeout,
    Outcome,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from tenure.contracts.messages import AcquireRequest, NameView, NotGranted, Reply, Withdrawn, WithdrawRequest
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.core import release
from tenure.runtimes import clocks
from tenure.runtimes.threads import ThreadEvent
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import DisturbedStore, disturbed, eventually, soon

T = TypeVar("T")

ALWAYS = 1_000_000
BRIEF = 0.05
"""What LOST_TIMEOUT is in tests in which it is used up, in seconds."""


class Losing:
    """A hook that loses the next replies to some operations, after they were carried out."""

    def __init__(self, **lose: int) -> None:
        self.lose = Counter(lose)
        self.seen = Counter[str]()

    async def __call__(self, operation: str, done: bool) -> None:
        """Lose the reply if one is to be lost."""
        self.seen[operation] += done
        if done and self.lose[operation] > 0:
            self.lose[operation] -= 1
            raise OutcomeUnknown("the reply was lost")


@pytest.mark.parametrize("times", [1, 2])
def test_an_acquire_whose_reply_was_lost_is_granted_once(times: int) -> None:
    """An acquire request that is repeated after a lost reply gets the token of the first one."""
    table = MemoryTable()
    losing = Losing(acquire=times)
    with (
        Client(store=disturbed(memory_source(table), losing, local=False)) as client,
        Client(store=memory_source(table)) as other,
    ):
        lease = client.lock("name", ttl=20).acquire()
        view = other.inspect("name")
        assert [holder.token for holder in view.holders] == [lease.token] == [view.last_token]
        assert losing.seen["acquire"] == times + 1
        assert lease.release() is Outcome.RELEASED
        assert not other.inspect("name").holders


@pytest.mark.parametrize("local", [True, False])
def test_an_acquire_that_is_never_answered_leaves_no_orphan(local: bool) -> None:
    """A caller without an answer until its timeout holds nothing, in the store as well."""
    table = MemoryTable()
    source = disturbed(memory_source(table), Losing(acquire=ALWAYS), local=local)
    with Client(store=source, retry_for=0.1) as client, Client(store=memory_source(table)) as other:
        with pytest.raises(StoreUnavailable):
            client.lock("name", ttl=20).acquire()
        assert not other.inspect("name").holders


def test_a_request_that_cannot_be_withdrawn_lapses_after_its_ttl() -> None:
    """If neither the acquire request nor the withdrawal gets through, the lease in the store ends after its ttl."""

    async def cut(operation: str, done: bool) -> None:
        if (operation, done) in {("acquire", True), ("withdraw", False)}:
            raise OutcomeUnknown("the connection is cut")

    async def main() -> None:
        table = virtual.table()
        source = disturbed(memory_source(table), cut, local=False)
        async with AsyncClient(store=source) as client, AsyncClient(store=memory_source(table)) as other:
            asked_at = clocks.steady()
            with pytest.raises(StoreUnavailable):
                await client.lock("name", ttl=60).acquire(timeout=0)
            (holder,) = (await other.inspect("name")).holders
            assert clocks.steady() + holder.expires_in == pytest.approx(asked_at + 60)

    virtual.run(main)


class Mute(DisturbedStore):
    """A store that carries out requests, and answers some operations only when it is too late."""

    def __init__(self, store: Store, mute: set[str]) -> None:
        super().__init__(store, Losing(), local=False)
        self._mute = mute

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, and answer or not."""
        return await self._too_late("acquire", await super().acquire(request, until), until)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Forget the request, and answer or not."""
        return await self._too_late("withdraw", await super().withdraw(withdraw, until), until)

    async def _too_late(self, operation: str, answer: T, until: float) -> T:
        if operation in self._mute:
            await asyncio.sleep(until - clocks.steady())
            raise OutcomeUnknown("no reply came in time")
        return answer


@pytest.mark.parametrize(
    ("mute", "error"),
    [({"acquire", "withdraw"}, StoreUnavailable), ({"withdraw"}, LockTimeout)],
    ids=["all", "leaving"],
)
def test_a_timeout_ends_soon_though_replies_are_lost(mute: set[str], error: type[Exception]) -> None:
    """After its timeout the caller waits for a request and a short attempt; the withdrawal goes on without it."""

    async def main() -> None:
        table = virtual.table()
        plain = memory_source(table)
        capabilities = dataclasses.replace(plain.capabilities, runs_in_caller=False)
        source = StoreSource("mute", capabilities, lambda runtime: Mute(plain.make(runtime), mute))
        async with AsyncClient(store=source, operation_timeout=1) as client, AsyncClient(store=plain) as other:
            holder = await other.lock("name").acquire() if error is LockTimeout else None
            began = clocks.steady()
            with pytest.raises(error):
                await client.lock("name", ttl=60).acquire(timeout=0.05)
            assert clocks.steady() - began < 1.2
            mute.clear()
            if holder is not None:
                await holder.release()
            async with other.lock("name", timeout=5):
                assert clocks.steady() - began < 5

    virtual.run(main)


def test_an_abandoned_request_is_withdrawn_in_the_background() -> None:
    """When the store answers again, a request that was not withdrawn in time is withdrawn long before its ttl."""

    async def main() -> None:
        table, silent = virtual.table(), True

        async def disturb(operation: str, done: bool) -> None:
            if silent and (operation, done) in {("acquire", True), ("withdraw", False)}:
                raise OutcomeUnknown("the connection is cut")

        source = disturbed(memory_source(table), disturb, local=False)
        async with AsyncClient(store=source) as client, AsyncClient(store=memory_source(table)) as other:
            with pytest.raises(StoreUnavailable):
                await client.lock("name", ttl=60).acquire(timeout=0.05)
            assert (await other.inspect("name")).holders, "it was granted, and could not be withdrawn"
            silent = False
            async with other.lock("name", timeout=5):
                pass

    virtual.run(main)


@pytest.mark.parametrize("times", [1, 2])
def test_a_release_whose_reply_was_lost_returns_released(times: int) -> None:
    """It raises no error, and no later lease is released."""
    table = MemoryTable()
    source = disturbed(memory_source(table), Losing(release=times), local=False)
    with Client(store=source) as client, Client(store=memory_source(table)) as other:
        lease = client.lock("name", ttl=20).acquire()
        assert lease.release() is Outcome.RELEASED
        with other.lock("name", ttl=20, timeout=0) as next_lease:
            assert next_lease.token > lease.token
            assert lease.release() is Outcome.RELEASED


def test_a_release_that_is_never_answered_returns_unknown() -> None:
    """It raises no error, and claims nothing that it cannot know."""
    table = MemoryTable()

    async def cut(operation: str, done: bool) -> None:
        if operation == "release" and not done:
            raise StoreUnavailable("the connection is cut")

    with Client(store=disturbed(memory_source(table), cut, local=False)) as client:
        lease = client.lock("name", ttl=0.05).acquire()
        lease._session.renewer.discard(lease._core)
        eventually(lambda: not lease.remaining(), "the deadline")
        assert lease.release() is Outcome.UNKNOWN
        assert lease.state is LeaseState.LOST
        assert lease.release() is Outcome.UNKNOWN


def lost_while_gone(table: MemoryTable, gone: Callable[[], None]) -> tuple[Client, Lease]:
    """Return a client and its lost lease, at a store that calls `gone` before each release."""

    async def disturb(operation: str, done: bool) -> None:
        if operation == "release" and not done:
            gone()

    client = Client(store=disturbed(memory_source(table), disturb, local=False))
    lease = client.lock("name", ttl=20, max_hold=0.1).acquire()
    assert lease.lost.wait(5)
    return client, lease


def test_the_release_of_a_lost_lease_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a `with` does not wait for a store that does not answer."""
    monkeypatch.setattr(release, "LOST_TIMEOUT", BRIEF)
    asked = 0

    def silent() -> None:
        nonlocal asked
        asked += 1
        time.sleep(BRIEF)
        raise OutcomeUnknown("the store is silent")

    client, lease = lost_while_gone(MemoryTable(), silent)
    with client:
        assert lease.release() is Outcome.UNKNOWN
        assert asked == 1


def test_the_release_of_a_lost_lease_is_repeated_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is back at once returns the outcome of the lease; the release gives up otherwise."""
    errors: list[Exception] = [OutcomeUnknown("the connection broke"), StoreUnavailable("it is not there yet")]
    table = MemoryTable()

    def back_soon() -> None:
        if errors:
            raise errors.pop()

    def refused() -> None:
        raise StoreUnavailable("the store is gone")

    monkeypatch.setattr(release, "LOST_TIMEOUT", 30.0)  # a machine may stand still
    client, lease = lost_while_gone(table, back_soon)
    with client, Client(store=memory_source(table)) as other:
        other.revoke("name", force=True)
        other.lock("name").acquire().release()
        assert lease.release() is Outcome.TAKEN_OVER
        assert not errors
    monkeypatch.setattr(release, "LOST_TIMEOUT", BRIEF)
    client, lease = lost_while_gone(MemoryTable(), refused)
    with client:
        assert lease.release() is Outcome.UNKNOWN


class Breaking(DisturbedStore):
    """A store that breaks the connection at the first inspections."""

    left = 0

    async def inspect(self, name: str, until: float) -> NameView:
        """Break the connection, or inspect the name."""
        if self.left:
            self.left -= 1
            raise StoreUnavailable("the connection broke")
        return await super().inspect(name, until)


def test_an_inspection_is_repeated_when_the_connection_breaks() -> None:
    """An inspection changes nothing, so the client repeats it without its caller; but it ends in time."""
    stores: list[Breaking] = []
    source = memory_source(MemoryTable())

    async def nothing(_operation: str, _done: bool) -> None: ...

    def make(runtime: Runtime) -> Store:
        stores.append(Breaking(source.make(runtime), nothing, local=True))
        return stores[-1]

    breaking = StoreSource("breaking", source.capabilities, make)
    with Client(store=breaking, operation_timeout=10.0) as client:
        client.names()
        stores[0].left = 2
        assert client.inspect("name").name == "name"
        assert not stores[0].left
    with Client(store=breaking, operation_timeout=0.1) as client:
        client.names()
        stores[1].left = ALWAYS
        with pytest.raises(StoreUnavailable, match="broke"):
            client.inspect("name")
        assert stores[1].left < ALWAYS


def test_lost_replies_to_renewals_do_not_end_a_lease() -> None:
    """A lease whose renewals are carried out, with every other reply lost, is at risk at times, and never lost."""
    count = 0

    async def every_other(operation: str, done: bool) -> None:
        nonlocal count
        if operation == "renew" and done:
            count += 1
            if count % 2:
                raise OutcomeUnknown("the reply was lost")

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), every_other, local=False)) as client:
            lease = await client.lock("name", ttl=2).acquire()
            await soon(lambda: lease.state is LeaseState.AT_RISK, "a lease at risk")
            await soon(lambda: lease.state is LeaseState.HELD, "a lease held again")
            await asyncio.sleep(60)
            assert count > 60
            assert await lease.release() is Outcome.RELEASED

    virtual.run(main)


def test_a_request_that_arrives_after_its_withdrawal_is_refused() -> None:
    """A request that was under way when its caller gave up is not granted when it arrives."""
    table = MemoryTable()
    ghosts: list[AcquireRequest] = []
    stores: list[Store] = []

    class Late(DisturbedStore):
        async def acquire(self, request: AcquireRequest, until: float) -> Reply:
            ghosts.append(request)
            raise OutcomeUnknown("no answer in time")

    async def calm(operation: str, done: bool) -> None:
        """Do nothing."""

    def make(runtime: Runtime) -> Store:
        store = memory_source(table).make(runtime)
        stores.append(store)
        return Late(store, calm, local=False)

    late = disturbed(memory_source(table), calm, local=False)
    with (
        Client(store=StoreSource(late.title, late.capabilities, make)) as client,
        Client(store=memory_source(table)) as other,
    ):
        with pytest.raises(StoreUnavailable):
            client.lock("name", ttl=20).acquire(timeout=0)
        reply = asyncio.run(_ask(stores[0], ghosts[0]))
        assert isinstance(reply, Withdrawn)
        with other.lock("name", timeout=0):
            pass


async def _ask(store: Store, request: AcquireRequest) -> Reply:
    return await store.acquire(request, time.monotonic() + 5)


def test_acquire_rides_out_a_short_outage_and_says_when_it_gives_up() -> None:
    """An acquisition survives an outage shorter than retry_for, and raises StoreUnavailable after a longer one."""
    outage = True
    requests = 0

    async def down(operation: str, done: bool) -> None:
        nonlocal outage, requests
        if operation == "acquire" and not done:
            requests += 1
            outage = outage and requests < 4
            if outage:
                raise StoreUnavailable("down")

    with Client(store=disturbed(memory_source(MemoryTable()), down)) as client:
        client.lock("name").acquire().release()
        assert requests == 4

    async def gone(operation: str, done: bool) -> None:
        if operation == "acquire":
            raise StoreUnavailable("down")

    with Client(store=disturbed(memory_source(MemoryTable()), gone), retry_for=0.1) as client:
        with pytest.raises(StoreUnavailable):
            client.lock("name").acquire()
        for timeout in (0, 0.05):
            with pytest.raises(StoreError) as caught:
                client.lock("name").acquire(timeout=timeout)
            assert not isinstance(caught.value, LockTimeout)
        with pytest.raises(StoreUnavailable):
            client.lock("name").try_acquire()


class Broken:
    """A hook that makes renewals fail or hang."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hang = threading.Event()
        self.hang.set()

    async def __call__(self, operation: str, done: bool) -> None:
        """Disturb a renewal."""
        if operation == "renew" and not done:
            self.hang.wait(10)
            if self.error is not None:
                raise self.error


@pytest.mark.parametrize("error", [StoreUnavailable("down"), ZeroDivisionError("a broken store")], ids=repr)
def test_a_lease_is_lost_once_and_at_its_deadline_if_no_renewal_succeeds(error: Exception) -> None:
    """Failing renewals put a lease at risk; at its local deadline it is lost, which is reported once."""
    broken = Broken()

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), broken)) as client:
            told: list[LeaseLost] = []
            lease = await client.lock("name", ttl=2.5, on_lost=told.append).acquire()
            other = await client.lock("other", ttl=30).acquire()
            broken.error = error
            await soon(lambda: lease.state is LeaseState.AT_RISK, "a lease at risk")
            lease.check()
            broken.error = None
            await soon(lambda: lease.state is LeaseState.HELD, "a lease held again")
            broken.error = error
            deadline = lease._core.valid_until
            assert await lease.lost.wait(10)
            assert clocks.steady() == pytest.approx(deadline)
            await asyncio.sleep(0)
            assert len(told) == 1
            broken.error = None
            assert not lease.remaining()
            with pytest.raises(LeaseLost):
                await lease.extend()
            other.check()
            async with client.lock("third", ttl=2.5) as third:  # the renewer is alive
                await asyncio.sleep(30)
                third.check()
            assert len(told) == 1
            await lease.release()
            await other.release()

    virtual.run(main)


def test_a_renewal_that_hangs_does_not_hide_a_deadline() -> None:
    """The loss is reported at the deadline even while a renewal blocks."""
    broken = Broken()
    with Client(store=disturbed(memory_source(MemoryTable()), broken)) as client:
        told = threading.Event()
        lease = client.lock("name", ttl=0.2, on_lost=lambda _error: told.set()).acquire()
        deadline = lease._core.valid_until
        broken.hang.clear()
        assert told.wait(5)
        assert lease._session.runtime.now() >= deadline
        assert not lease.remaining()
        broken.hang.set()
        assert lease.lost
        lease.release()


def test_a_renewal_that_is_never_awaited_does_not_hide_a_deadline() -> None:
    """The body of an async block is cancelled at the deadline even while a renewal never ends."""

    async def main() -> None:
        never = asyncio.Event()

        async def hang(operation: str, done: bool) -> None:
            if operation == "renew":
                await never.wait()

        async with AsyncClient(store=disturbed(virtual.source(), hang)) as client:
            told: list[LeaseLost] = []

            async def block() -> None:
                async with client.lock("name", ttl=15, on_lost=told.append):
                    await asyncio.sleep(60)

            began = clocks.steady()
            with pytest.raises(LeaseLost):
                await block()
            assert 14.8 < clocks.steady() - began < 15
            assert len(told) == 1
            never.set()
            await soon(lambda: len(asyncio.all_tasks()) <= 2, "the end of the renewal")

    virtual.run(main)


def test_a_refused_renewal_loses_the_lease_at_once() -> None:
    """A store that no longer knows a lease ends it long before its deadline."""
    table = MemoryTable()
    with Client(store=memory_source(table)) as client:
        lease: Lease = client.lock("name", ttl=5).acquire()
        table._states.clear()
        with pytest.raises(LeaseLost):
            lease.extend()
        assert lease.lost
        assert lease.release() is not Outcome.RELEASED


@pytest.mark.parametrize("stage", ["acquire", "wait"])
def test_an_interrupt_leaves_nothing_behind(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyboardInterrupt in a request, or in the wait for a grant, leaves no holder and no waiter."""
    table = MemoryTable()

    async def interrupt(operation: str, done: bool) -> None:
        if operation == "acquire" and done and stage == "acquire":
            raise KeyboardInterrupt

    wait = ThreadEvent.wait

    async def interrupted_wait(event: ThreadEvent, until: float | None) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return await wait(event, until)  # a renewer is not interrupted

    with (
        Client(store=disturbed(memory_source(table), interrupt), owner="victim") as client,
        Client(store=memory_source(table)) as other,
    ):
        held = other.lock("name").acquire() if stage == "wait" else None
        with monkeypatch.context() as patch:
            if stage == "wait":
                patch.setattr("tenure.runtimes.threads.ThreadEvent.wait", interrupted_wait)
            with pytest.raises(KeyboardInterrupt):
                client.lock("name", ttl=20).acquire()
        view = other.inspect("name")
        assert not view.waiters
        assert "victim" not in [holder.owner for holder in view.holders]
        if held is not None:
            held.release()
        with other.lock("name", timeout=0):
            pass
