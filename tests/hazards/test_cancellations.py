"""A task may be cancelled at any await, even when its result is there: no name stays held by that.

An interrupt is one of these: in a loop of `asyncio.run`, Ctrl-C cancels the main task.
"""

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from itertools import count
from types import coroutine
from typing import Any, cast

import pytest

from tenure import AsyncClient, LockTimeout
from tenure.contracts.deadlines import NEVER
from tenure.core.attempt import Attempt
from tenure.core.release import Releases
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.memory import memory_source
from tests import virtual
from tests.hazards.helpers import disturbed

TTL = 60.0
"""Far longer than anything here takes: what is free again was given back."""

TRAVELS = 0.001
"""How long a request is on its way, and its answer, in seconds."""

WAITING, LATE, AGAIN = "while it waits", "when it is answered", "again and again"
"""When a task is cancelled; late is before it has gone on with what it waited for."""

Work = Callable[[AsyncClient, AsyncClient, str], Coroutine[Any, Any, object]]


async def lock(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Acquire a lock and release it."""
    await (await ours.lock(name, ttl=TTL).acquire()).release()


async def with_lock(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Acquire it by `async with`, and extend it."""
    async with ours.lock(name, ttl=TTL, timeout=1) as lease:
        await lease.extend(TTL)


async def try_lock(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Try to acquire it once."""
    lease = await ours.lock(name, ttl=TTL).try_acquire()
    assert lease is not None
    await lease.release()


async def wait(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Wait for another client, which releases it."""
    lease = await theirs.lock(name, ttl=TTL).acquire()
    other = asyncio.create_task(_let_go(lease.release, 10 * TRAVELS))
    try:
        async with ours.lock(name, ttl=TTL):
            pass
    finally:
        await asyncio.shield(other)


async def wait_in_line(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Wait for another task of the same client, which hands it off."""
    lease = await theirs.lock(name, ttl=TTL).acquire()
    other = asyncio.create_task(_let_go(lease.release, 10 * TRAVELS))
    before = asyncio.create_task(_hold(ours, name))
    try:
        await asyncio.sleep(5 * TRAVELS)
        async with ours.lock(name, ttl=TTL):
            pass
    finally:
        await asyncio.shield(asyncio.gather(other, before))


async def give_up(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Wait for a lease that is not granted in time."""
    async with theirs.lock(f"{name} of others", ttl=TTL):
        with pytest.raises(LockTimeout):
            await ours.lock(f"{name} of others", ttl=TTL).acquire(timeout=20 * TRAVELS)


async def semaphore(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Acquire all permits."""
    async with ours.semaphore(name, 3, ttl=TTL).acquire(weight=3):
        pass


async def write(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Read, and then write."""
    async with ours.rwlock(name, ttl=TTL).read():
        pass
    async with ours.rwlock(name, ttl=TTL).write() as lease:
        await lease.downgrade()


async def multilock(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Acquire several names."""
    async with ours.multilock([name, f"{name}'"], ttl=TTL, timeout=1):
        pass


async def reentrant(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Acquire it twice."""
    again = ours.lock(name, ttl=TTL, timeout=1, reentrant=True)
    async with again, again:
        pass


async def linger(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Acquire it, let it linger, and reacquire it."""
    lingering = ours.lock(name, ttl=TTL, timeout=1, linger=TTL)
    await (await lingering.acquire()).release()
    async with lingering:
        pass


async def election(ours: AsyncClient, theirs: AsyncClient, name: str) -> None:
    """Win an election."""
    await (await ours.election(name, ttl=TTL).campaign("me")).release()


WORKS: tuple[Work, ...] = (
    lock, with_lock, try_lock, wait, wait_in_line, give_up, semaphore, write, multilock, reentrant, linger, election,
)  # fmt: skip


async def _let_go(release: Callable[[], Awaitable[object]], after: float) -> None:
    await asyncio.sleep(after)
    await release()


async def _hold(client: AsyncClient, name: str) -> None:
    async with client.lock(name, ttl=TTL):
        await asyncio.sleep(TRAVELS)


@coroutine
def cancelled(work: Coroutine[Any, Any, object], at: int, how: str) -> Generator[Any, Any, bool]:
    """Do some work, whose task is cancelled at its await number `at`; return whether there was such an await."""
    task = asyncio.current_task()
    assert task is not None
    go_on: Callable[[], Any] = lambda: work.send(None)  # noqa: E731 - replaced below
    for number in count(1):
        try:
            awaited = go_on()
        except StopIteration:
            return False
        if number == at or (number > at and how == AGAIN):
            if how == LATE and isinstance(awaited, asyncio.Future):
                cast("asyncio.Future[object]", awaited).add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        try:
            yield awaited
        except BaseException as error:  # noqa: BLE001 - it is the work's
            go_on = _throwing(work, error)
        else:
            go_on = lambda: work.send(None)  # noqa: E731 - as above
    return True


def _throwing(work: Coroutine[Any, Any, object], error: BaseException) -> Callable[[], Any]:
    return lambda: work.throw(error)


async def is_free(client: AsyncClient, name: str) -> bool:
    """Tell whether a client gets the name, and the other name that some of the works use."""
    lease = await client.multilock([name, f"{name}'"], ttl=TTL).try_acquire()
    if lease is None:
        return False
    await lease.release()
    return True


def leaks_of(work: Work, how: str) -> list[int]:
    """Do some work repeatedly, cancelled one await later each time; return the awaits after which a name stays held."""
    leaks: list[int] = []

    async def travel(operation: str, done: bool) -> None:
        await asyncio.sleep(TRAVELS)

    async def sweep() -> None:
        source = disturbed(memory_source(virtual.table()), travel, local=False)
        async with AsyncClient(store=source) as ours, AsyncClient(store=source) as theirs:
            for at in count(1):
                name = f"{work.__name__} {at}"
                task = asyncio.create_task(_run(cancelled(work(ours, theirs, name), at, how)))
                (ended,) = await asyncio.gather(task, return_exceptions=True)
                if ended is False:
                    assert at > 2, "there was nothing to cancel"
                    return
                assert isinstance(ended, asyncio.CancelledError), f"await {at} ended with {ended!r}"
                await asyncio.sleep(1.0)
                session = ours.session()
                kept = [held for held in session.renewer.kept() if held.lingers_until == NEVER]
                if session.attempts or kept or not (await is_free(ours, name) and await is_free(theirs, name)):
                    leaks.append(at)

    virtual.run(sweep)
    return leaks


async def _run(work: Awaitable[bool]) -> bool:
    return await work


@pytest.mark.parametrize("how", [WAITING, LATE, AGAIN])
@pytest.mark.parametrize("work", WORKS)
def test_a_cancellation_at_any_await_leaves_nothing_behind(work: Work, how: str) -> None:
    """After a cancellation at any await, the name is soon free; nothing is renewed or requested any more."""
    assert leaks_of(work, how) == []


async def _cut_short(self: AsyncioRuntime, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
    return await work


async def _nothing(*_: object, **__: object) -> None:
    pass


PLANTED: dict[str, tuple[type, str, Callable[..., Any], Work, str]] = {
    "who is cancelled stays in the queue": (Attempt, "_withdraw", _nothing, wait, WAITING),
    "a release that is cancelled is not carried out": (Releases, "complete", _nothing, lock, WAITING),
    "what ends a cancelled task can be cancelled": (AsyncioRuntime, "finish", _cut_short, lock, AGAIN),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bugs: each forgets one of the ways in which a task ends early."""
    where, what, instead, work, how = PLANTED[bug]
    monkeypatch.setattr(where, what, instead)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # leases are dropped
        assert leaks_of(work, how)
