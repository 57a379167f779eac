"""Busy policies: what a caller does while another holds the lock, and how many may wait."""

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from tenure import AsyncClient, Client, LockTimeout, UsageError
from tenure.contracts.messages import NameView
from tenure.contracts.store import StoreSource
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tenure import Lock

    def check_blocking(client: Client, work: Callable[[int], str], own: Lock) -> None:
        """Check that a decorated function may return None only if its calls may be skipped."""
        assert_type(client.lock("name", busy="skip", linger=1)(work)(1), str | None)
        assert_type(client.lock("name", busy="skip", reentrant=True)(work)(1), str | None)
        assert_type(client.semaphore("name", 2, busy="skip")(work)(1), str | None)
        assert_type(client.rwlock("name", busy="skip").read()(work)(1), str | None)
        assert_type(client.rwlock("name", busy="skip").write()(work)(1), str | None)
        assert_type(client.lock("name")(work)(1), str)
        assert_type(client.lock("name", busy="raise")(work)(1), str)
        assert_type(client.semaphore("name", 2, ttl=30)(work)(1), str)
        assert_type(client.rwlock("name", busy="wait").read()(work)(1), str)
        assert_type(own(work)(1), str)
        own = client.lock("name", busy="skip")
        client.lock("name", busy="never")  # type: ignore[type-var] # pyright: ignore[reportArgumentType]

    async def check_asyncio(client: AsyncClient, work: Callable[[int], Coroutine[Any, Any, str]]) -> None:
        """Check the same of async functions."""
        assert_type(await client.lock("name", busy="skip", linger=1)(work)(1), str | None)
        assert_type(await client.lock("name", busy="skip", reentrant=True)(work)(1), str | None)
        assert_type(await client.semaphore("name", 2, busy="skip")(work)(1), str | None)
        assert_type(await client.rwlock("name", busy="skip").read()(work)(1), str | None)
        assert_type(await client.rwlock("name", busy="skip").write()(work)(1), str | None)
        assert_type(await client.lock("name")(work)(1), str)
        assert_type(await client.lock("name", busy="raise")(work)(1), str)
        assert_type(await client.semaphore("name", 2, ttl=30)(work)(1), str)
        assert_type(await client.rwlock("name", busy="wait").read()(work)(1), str)


@pytest.fixture
def source() -> StoreSource:
    """Return a table of the test's own."""
    return memory_source(MemoryTable())


def test_a_decorated_function_is_skipped_while_another_runs_it(source: StoreSource) -> None:
    """The call returns None, and does not wait."""
    with Client(store=source) as client, Client(store=source) as other:

        @client.lock("report {of}", busy="skip")
        def report(of: str) -> str:
            return f"report of {of}"

        assert report("today") == "report of today"
        with other.lock("report today"):
            assert report("today") is None
            assert report("later") == "report of later"
        assert report("today") == "report of today"


def test_an_async_function_is_skipped_while_another_runs_it(source: StoreSource) -> None:
    """As with threads."""

    async def main() -> None:
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:

            @client.lock("report", busy="skip")
            async def report() -> str:
                return "report"

            assert await report() == "report"
            async with other.lock("report"):
                assert await report() is None

    asyncio.run(main())


def test_a_call_that_may_be_skipped_waits_for_its_timeout_first() -> None:
    """The function is called if the name is free in time, else the call returns None; so in both forms."""

    async def main(*, held: float) -> str | None:
        source = memory_source(MemoryTable())
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:

            @client.lock("report", busy="skip", timeout=5)
            async def report() -> str:
                return "report"

            lease = await other.lock("report").acquire()
            asyncio.get_running_loop().call_later(held, lambda: tasks.append(asyncio.ensure_future(lease.release())))
            return await report()

    tasks: list[asyncio.Future[Any]] = []
    assert virtual.run(lambda: main(held=4)) == "report"
    assert virtual.run(lambda: main(held=6)) is None
    source = memory_source(MemoryTable())
    with Client(store=source) as client, Client(store=source) as other:
        skipping = client.lock("report", busy="skip", timeout=0.05)(lambda: "report")
        assert skipping() == "report"
        with other.lock("report"):
            assert skipping() is None


def test_a_call_that_is_skipped_does_not_ask_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sees the explanation. An error has one, for which the store is asked once more."""
    asked = list[str]()
    inspect = MemoryStore.inspect

    async def note(store: MemoryStore, name: str, until: float) -> NameView:
        asked.append(name)
        return await inspect(store, name, until)

    async def main() -> None:
        source = memory_source(MemoryTable())
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:

            async def report() -> str:
                return "report"

            async with other.lock("report"):
                kinds: list[dict[str, Any]] = [{}, {"reentrant": True}, {"detect_deadlock": True}]
                for options in kinds:
                    lock: Any = client.lock("report", busy="skip", timeout=5, **options)
                    assert await lock(report)() is None
                assert not asked
                with pytest.raises(LockTimeout, match="is held by"):
                    await client.lock("report", busy="skip", timeout=5).acquire()
                assert asked == ["report"]

    monkeypatch.setattr(MemoryStore, "inspect", note)
    virtual.run(main)
    asked.clear()
    source = memory_source(MemoryTable())
    with Client(store=source) as client, Client(store=source) as other, other.lock("report"):
        assert client.lock("report", busy="skip", timeout=0.05)(lambda: "report")() is None
    assert not asked


def test_a_caller_may_want_an_error_instead_of_a_wait(source: StoreSource) -> None:
    """With busy="raise" (and without a decorator with "skip", too) LockTimeout is raised at once."""
    with Client(store=source) as client, Client(store=source, owner="there") as other, other.lock("name"):
        for busy in ("raise", "skip"):
            with pytest.raises(LockTimeout, match="is held by there"):
                client.lock("name", busy=busy).acquire()
        with pytest.raises(LockTimeout, match="is held by there"):
            client.lock("name", busy="raise")(print)()


def _take(client: Client) -> None:
    client.lock("name").acquire().release()


@pytest.mark.parametrize("most", [0, 2])
def test_no_more_wait_than_allowed(source: StoreSource, most: int) -> None:
    """Who comes when so many wait already is refused at once, and a free name is granted whatever the number."""
    with ExitStack() as stack:
        client, other, *others = (stack.enter_context(Client(store=source)) for _ in range(2 + most))
        lock = client.lock("name", max_waiters=most)
        with lock:
            pass
        lease = other.lock("name").acquire()
        threads = [threading.Thread(target=_take, args=(each,)) for each in others]
        for thread in threads:
            thread.start()
        eventually(lambda: len(other.inspect("name").waiters) == most, "all waiters")
        with pytest.raises(LockTimeout, match=f"'name' is held, and {most} wait for it already.*max_waiters={most}"):
            lock.acquire(timeout=TEST_TIMEOUT)
        assert len(other.inspect("name").waiters) == most
        lease.release()
        for thread in threads:
            thread.join(TEST_TIMEOUT)
        lock.acquire().release()


def test_one_more_may_wait_below_the_limit(source: StoreSource) -> None:
    """And is granted in turn."""
    with Client(store=source) as client, Client(store=source) as other:
        lease = other.lock("name").acquire()
        waiter = threading.Thread(target=lambda: client.lock("name", max_waiters=1).acquire().release())
        waiter.start()
        eventually(lambda: len(other.inspect("name").waiters) == 1, "a waiter")
        lease.release()
        waiter.join(TEST_TIMEOUT)
        assert not waiter.is_alive()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"busy": "never"}, "busy must be one of 'skip', 'wait', 'raise', not 'never'"),
        ({"busy": "raise", "timeout": 5}, "busy='raise' does not wait: leave timeout out, or give busy='wait'"),
        ({"busy": "raise", "max_waiters": 5}, "busy='raise' needs no max_waiters: leave it out"),
        ({"busy": "skip", "timeout": 5, "max_waiters": 5}, "busy='skip' needs no max_waiters: leave it out"),
        ({"max_waiters": 1.5}, "max_waiters .* must be a whole number"),
    ],
)
def test_wrong_policies_are_refused(source: StoreSource, options: dict[str, object], error: str) -> None:
    """When the lock is made."""
    with pytest.raises(UsageError, match=error):
        Client(store=source).lock("name", **options)  # type: ignore[arg-type, type-var]
