"""A session opens its store once, within the time limit of the caller."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tenure import AsyncClient, Client, StoreError, StoreUnavailable, UsageError
from tenure.contracts.cells import Cell
from tenure.contracts.messages import Notification
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.access import OPENING
from tenure.core.cells import Cells
from tenure.runtimes.threads import drive
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.etcd.scenes import Meanwhile
from tests.planting import planted

RETRY_FOR = 10.0
TIMEOUT = 1.0
"""The defaults of a client."""


class Opening(MemoryStore):
    """A store whose opening a test defines."""

    def __init__(self, runtime: Runtime, table: MemoryTable, tries: "Tries") -> None:
        super().__init__(runtime, table)
        self._tries = tries

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Run the attempts to open."""
        self._tries.began.append(self._runtime.now())
        await self._tries.each(self._runtime, until)
        return await super().open(deliver, until)


class Tries:
    """A store in memory whose openings end as `each` says."""

    def __init__(self, each: Callable[[Runtime, float], Coroutine[Any, Any, None]]) -> None:
        self.each = each
        self.began: list[float] = []
        """When they began."""
        self._table = virtual.table()

    def source(self) -> StoreSource:
        """Return the source for a client's store."""
        return StoreSource("a test", MemoryStore.capabilities, lambda runtime: Opening(runtime, self._table, self))


async def say_nothing(runtime: Runtime, until: float) -> None:
    """Accept the connection and never answer."""
    await runtime.sleep(until - runtime.now())
    raise StoreUnavailable("no answer")


async def refuse(runtime: Runtime, until: float) -> None:
    """Refuse at once."""
    raise StoreUnavailable("connection refused")


async def answer(runtime: Runtime, until: float) -> None:
    """Accept at once."""


async def took(doing: Coroutine[Any, Any, object], error: type[Exception] = StoreUnavailable) -> float:
    """Return how long it takes to fail."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(error):
        await doing
    return asyncio.get_running_loop().time() - began


def test_a_store_is_opened_once_for_all_callers() -> None:
    """The store opens once, even if another thread opens it between the check and the decision to open it."""
    table = MemoryTable()
    with Client(store=memory_source(table)) as client:
        session = client.session()
        session.opening._mutex = Meanwhile(lambda: drive(session.open()))
        drive(session.open())
        assert len(table._channels) == 1
    assert table._channels == {}


@pytest.mark.parametrize("each", [say_nothing, refuse])
@pytest.mark.parametrize("timeout", [0.5, 3.0, 30.0, None])
def test_an_opening_takes_no_longer_than_its_caller_has(
    each: Callable[[Runtime, float], Coroutine[Any, Any, None]], timeout: float | None
) -> None:
    """The limit is the acquisition's `timeout`, or the client's `retry_for`, within which the last attempt begins."""

    async def main() -> None:
        async with AsyncClient(store=Tries(each).source()) as client:
            tried = RETRY_FOR if timeout is None else min(timeout, RETRY_FOR)
            allowed = RETRY_FOR + TIMEOUT if timeout is None else min(timeout, RETRY_FOR + TIMEOUT)
            for lock in (client.lock("name", timeout=timeout), client.multilock(["a", "b"], timeout=timeout)):
                spent = await took(lock.acquire())
                assert tried - 1.0 <= spent <= allowed + 0.001

    virtual.run(main)


def test_an_acquisition_without_a_wait_tries_once() -> None:
    """It takes one `operation_timeout`; another operation may take three, because an opening is several requests."""

    async def main() -> None:
        tries = Tries(say_nothing)
        async with AsyncClient(store=tries.source()) as client:
            assert await took(client.lock("name").try_acquire()) == pytest.approx(TIMEOUT)
            assert await took(client.multilock(["name", "other"]).try_acquire()) == pytest.approx(TIMEOUT)
            assert await took(client.inspect("name")) == pytest.approx(OPENING * TIMEOUT)
            assert len(tries.began) == 3

    virtual.run(main)


def test_a_caller_with_less_time_does_not_wait_for_one_with_more() -> None:
    """The caller that opens the store goes on; the other one gives up when its own time is over."""

    async def main() -> None:
        tries = Tries(say_nothing)
        async with AsyncClient(store=tries.source()) as client:
            patient = asyncio.create_task(took(client.lock("name", timeout=4).acquire()))
            await asyncio.sleep(0)
            assert await took(client.lock("name", timeout=0.5).acquire()) == pytest.approx(0.5)
            assert len(tries.began) == 1
            assert await patient == pytest.approx(4)

    virtual.run(main)


def test_a_store_that_comes_up_in_time_is_used() -> None:
    """Attempts repeat after growing pauses, and never at the same time as those of another client."""

    async def up_after_three_seconds(runtime: Runtime, until: float) -> None:
        if runtime.now() < virtual.START + 3.0:
            await refuse(runtime, until)

    async def main() -> None:
        herd = [Tries(up_after_three_seconds) for _ in range(5)]
        clients = [AsyncClient(store=each.source()) for each in herd]
        leases = await asyncio.gather(*(client.lock("name").acquire() for client in clients))
        assert all(lease.remaining() > 0.0 for lease in leases)
        for each in herd:
            pauses = [later - sooner for sooner, later in itertools.pairwise(each.began)]
            assert max(pauses[-2:]) > 2 * pauses[0]
        again = [each.began[1:-1] for each in herd]
        assert len(set(itertools.chain(*again))) == sum(map(len, again))
        for client in clients:
            await client.close()

    virtual.run(main)


def seller(client: AsyncClient) -> Coroutine[Any, Any, object]:
    """Return the sale of a unit of a stock that has some."""

    async def sell() -> int:
        stock = client.stock("name")
        await stock.restock(1)
        return await stock.take(1)

    return sell()


async def work() -> None:
    """Do nothing, as a job."""


CALLS: dict[str, Callable[[AsyncClient], Coroutine[Any, Any, object]]] = {
    "a counter counts": lambda client: client.counter("name").add(1),
    "a counter is read": lambda client: client.counter("name").get(),
    "a limit lets pass": lambda client: client.limit("name", 5, 60.0).acquire(),
    "a limit is asked": lambda client: client.limit("name", 5, 60.0).available(),
    "a limit is busy": lambda client: client.limit("name", 5, 60.0).busy_for(),
    "a stock sells": seller,
    "a job runs": lambda client: client.once("name", window=60).run(work),
    "a job runs by key": lambda client: client.once("name", key="key").run(work),
    "a semaphore is used": lambda client: client.semaphore("name", None).acquire(),
}
"""The calls besides acquisitions of locks that wait for a store."""


@pytest.mark.parametrize("each", [say_nothing, refuse])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_waits_for_its_store_as_an_acquisition_does(
    call: str, each: Callable[[Runtime, float], Coroutine[Any, Any, None]]
) -> None:
    """For `retry_for`, within which the last try begins, or until the client is closed. A store may come up in time."""

    async def up_after_three_seconds(runtime: Runtime, until: float) -> None:
        if runtime.now() < virtual.START + 3.0:
            await each(runtime, until)

    async def main() -> None:
        async with AsyncClient(store=Tries(each).source()) as client:
            assert RETRY_FOR - 1.0 <= await took(CALLS[call](client)) <= RETRY_FOR + TIMEOUT + 0.001
        async with AsyncClient(store=Tries(each).source()) as client:
            calling = asyncio.create_task(took(CALLS[call](client), UsageError))
            await asyncio.sleep(1.0)
            await client.close()
            assert await calling <= (OPENING + 1) * TIMEOUT

    async def comes_up() -> None:
        tries = Tries(up_after_three_seconds)
        async with AsyncClient(store=tries.source()) as client:
            with suppress(UsageError):  # the store has no number of permits
                await CALLS[call](client)
            assert len(tries.began) > 1

    virtual.run(main)
    virtual.run(comes_up)


@pytest.mark.parametrize("each", [say_nothing, refuse])
@pytest.mark.parametrize("timeout", [0.0, 3.0])
def test_a_call_waits_no_longer_than_its_timeout(
    each: Callable[[Runtime, float], Coroutine[Any, Any, None]], timeout: float
) -> None:
    """With a timeout of 0 there is one try, which takes at most one `operation_timeout`."""

    async def main() -> None:
        tries = Tries(each)
        async with AsyncClient(store=tries.source()) as client:
            spent = await took(client.limit("name", 5, 60.0).acquire(timeout=timeout))
            assert timeout - 1.0 <= spent <= max(timeout, TIMEOUT) + 0.001
            assert len(tries.began) == 1 or timeout
            if timeout:
                assert await took(client.once("name", key="key", timeout=timeout).run(work)) <= timeout + 0.001
                assert await took(client.semaphore("name", None, timeout=timeout).acquire()) <= timeout + 0.001

    virtual.run(main)


def test_a_call_of_a_thread_waits_for_its_store() -> None:
    """As one of a task does."""
    up_at = time.monotonic() + 0.1

    async def up_soon(runtime: Runtime, until: float) -> None:
        if time.monotonic() < up_at:
            await refuse(runtime, until)

    with Client(store=Tries(up_soon).source()) as client:
        assert client.counter("name").add(1) == 1


@pytest.mark.parametrize("call", ["a counter is read", "a limit is asked", "a stock sells", "a job runs"])
def test_a_call_waits_for_a_store_that_dies_later(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its first request, which reads."""

    async def main() -> None:
        async with AsyncClient(store=Tries(answer).source()) as client:
            await client.counter("other").get()
            back_at, read = asyncio.get_running_loop().time() + 3.0, MemoryStore.read_cell

            async def read_cell(self: MemoryStore, name: str, until: float) -> Cell:
                if self._runtime.now() < back_at:
                    raise StoreUnavailable("it has died")
                return await read(self, name, until)

            monkeypatch.setattr(MemoryStore, "read_cell", read_cell)
            await CALLS[call](client)
            assert asyncio.get_running_loop().time() >= back_at

    virtual.run(main)


def test_a_call_whose_store_was_opened_late_ends_with_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last request may begin until then. At that very instant no other one does."""
    reads = 0

    async def late(runtime: Runtime, until: float) -> None:
        await runtime.sleep(0.8)

    async def read_cell(self: MemoryStore, name: str, until: float) -> Cell:
        nonlocal reads
        reads += 1
        assert reads < 100
        raise StoreUnavailable("it has died")

    async def main() -> None:
        async with AsyncClient(store=Tries(late).source()) as client:
            assert await took(client.limit("name", 5, 60.0).acquire(timeout=TIMEOUT)) <= TIMEOUT + 0.001
            assert reads > 1

    monkeypatch.setattr(MemoryStore, "read_cell", read_cell)
    virtual.run(main)


def test_an_error_that_a_retry_cannot_repair_is_raised_at_once() -> None:
    """A wrong password is such an error."""

    async def deny(runtime: Runtime, until: float) -> None:
        raise StoreError("the password is wrong")

    async def main() -> None:
        tries = Tries(deny)
        async with AsyncClient(store=tries.source()) as client:
            assert await took(client.lock("name").acquire(), StoreError) == 0.0
            assert len(tries.began) == 1

    virtual.run(main)


WAITS = test_a_call_waits_for_its_store_as_an_acquisition_does
BRIEF = test_a_call_waits_no_longer_than_its_timeout


@pytest.mark.parametrize(
    ("method", "right", "wrong", "check"),
    [
        ("_open", "timeout and longest", "0.0", partial(WAITS, "a counter counts", refuse)),
        ("_open", "timeout and longest", "None", partial(BRIEF, say_nothing, 0.0)),
        ("_open", "timeout and longest", "longest and None", partial(BRIEF, refuse, 3.0)),
        ("look", "self._open(timeout)", "self._open(0.0)", partial(WAITS, "a limit is asked", refuse)),
        ("look", "self._open(timeout)", "self._open(None)", partial(BRIEF, refuse, 3.0)),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, method: str, right: str, wrong: str, check: Callable[[], None]
) -> None:
    """Each is one that a maintainer could bring in."""
    monkeypatch.setattr(Cells, method, planted(Cells, method, right, wrong))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()
