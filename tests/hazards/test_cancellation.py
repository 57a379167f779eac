"""A cancellation may come at any await. It never leaves a holder or a waiter behind."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClient, AsyncLease, LockTimeout
from tenure.contracts.store import StoreSource
from tenure.stores.sqlite.store import SqliteStore
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, disturbed

STORES = ("memory", "sqlite")
TTL = 20.0
"""So long that nothing in here ends by itself."""


class Points:
    """A hook that suspends around every operation, and cancels a task at the n-th of these points."""

    def __init__(self, *cancel_at: int) -> None:
        self.victim: asyncio.Task[Any] | None = None
        self.count = 0
        self._cancel_at = cancel_at

    async def __call__(self, operation: str, done: bool) -> None:
        """Suspend, and cancel the task at its point."""
        if self.victim is not None:
            self.count += 1
            if self.count in self._cancel_at:
                self.victim.cancel()
        await asyncio.sleep(0)


class Scene:
    """A victim behind a suspending store, a holder, and an observer, each with a client of its own."""

    def __init__(self, source: StoreSource, points: Points, *, local: bool = True) -> None:
        self.points = points
        self.victim = AsyncClient(store=disturbed(source, points, local=local), owner="victim")
        self.other = AsyncClient(store=source, owner="other")

    async def left_nothing(self) -> None:
        """Assert that the victim neither holds nor waits, and that another client gets the name at once."""
        give_up_at = asyncio.get_running_loop().time() + TEST_TIMEOUT
        while True:
            view = await self.other.inspect("name")
            owners = [each.owner for each in view.holders] + [each.owner for each in view.waiters]
            if not owners:
                break
            assert asyncio.get_running_loop().time() < give_up_at, f"left behind: {owners}"
            await asyncio.sleep(0.001)
        lease = await self.other.lock("name", ttl=TTL).try_acquire()
        assert lease is not None
        await lease.release()

    async def close(self) -> None:
        """Close both clients, and check that no task is left."""
        self.points.victim = None
        await self.victim.close()
        await self.other.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left


Act = Callable[[Scene], Coroutine[Any, Any, AsyncLease | None]]


async def uncontended(scene: Scene) -> AsyncLease | None:
    """Acquire a free name."""
    return await scene.victim.lock("name", ttl=TTL).acquire()


async def handed_over(scene: Scene) -> AsyncLease | None:
    """Acquire a held name, which is released meanwhile."""
    held = await scene.other.lock("name", ttl=TTL).acquire()
    releasing = asyncio.ensure_future(_release_when_awaited(scene, held))
    try:
        return await scene.victim.lock("name", ttl=TTL).acquire()
    finally:
        await asyncio.shield(releasing)


async def _release_when_awaited(scene: Scene, held: AsyncLease) -> None:
    for _ in range(12):  # long enough for the victim to queue, or to be cancelled before
        await asyncio.sleep(0)
        if (await scene.other.inspect("name")).waiters:
            break
    await held.release()


async def timed_out(scene: Scene) -> AsyncLease | None:
    """Wait until the timeout."""
    async with scene.other.lock("name", ttl=TTL):
        try:
            return await scene.victim.lock("name", ttl=TTL).acquire(timeout=0.005)
        except LockTimeout:
            return None


async def within_a_block(scene: Scene) -> AsyncLease | None:
    """Enter and leave a block."""
    async with scene.victim.lock("name", ttl=TTL):
        await asyncio.sleep(0)
    return None


async def extended(scene: Scene) -> AsyncLease | None:
    """Acquire, extend, release."""
    async with scene.victim.lock("name", ttl=TTL) as lease:
        await lease.extend()
    return None


ACTS: tuple[Act, ...] = (uncontended, handed_over, timed_out, within_a_block, extended)


def make_source(kind: str, folder: Path, number: int) -> StoreSource:
    """Make a store of its own for each run, in virtual time."""
    if kind == "memory":
        return virtual.source()
    path = folder / f"{number}.db"
    return StoreSource("sqlite", SqliteStore.capabilities, lambda runtime: SqliteStore(runtime, path, virtual.micros))


async def run(source: StoreSource, act: Act, points: Points, *, local: bool) -> bool:
    """Run an act that is cancelled at `points`; check what is left; return whether it was cancelled."""
    scene = Scene(source, points, local=local)
    task = asyncio.ensure_future(act(scene))
    points.victim = task
    cancelled = False
    try:
        lease = await asyncio.wait_for(asyncio.shield(task), TEST_TIMEOUT)
        if lease is not None:
            points.victim = None
            lease.check()
            await lease.release()
    except asyncio.CancelledError:
        cancelled = True
    points.victim = None
    assert task.cancelling() == 0 or cancelled, "a cancellation was swallowed"
    await scene.left_nothing()
    await scene.close()
    return cancelled


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_cancelled_at_any_await_nothing_is_left_behind(kind: str, act: Act, local: bool, tmp_path: Path) -> None:
    """An acquisition, a block or a renewal that is cancelled at any await leaves no holder and no waiter."""
    number = itertools.count()
    points = Points()
    source = make_source(kind, tmp_path, next(number))
    assert not virtual.run(partial(run, source, act, points, local=local))
    assert points.count >= 4
    for at in range(1, points.count + 1):
        source = make_source(kind, tmp_path, next(number))
        # A cancellation may change the course of the act so that there is no n-th point: then nothing was cancelled.
        once = Points(at)
        assert virtual.run(partial(run, source, act, once, local=local)) or once.count < at


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_cancelled_again_during_the_cleanup_nothing_is_left_behind(kind: str, act: Act, tmp_path: Path) -> None:
    """A second cancellation during the cleanup after the first does not stop the cleanup."""
    points = Points()
    virtual.run(partial(run, make_source(kind, tmp_path, 0), act, points, local=True))
    for at in range(1, points.count + 1):
        for gap in (1, 2):
            source = make_source(kind, tmp_path, 10 * at + gap)
            virtual.run(partial(run, source, act, Points(at, at + gap), local=True))


@pytest.mark.parametrize("kind", STORES)
def test_a_cancelled_release_is_carried_out_all_the_same(kind: str, tmp_path: Path) -> None:
    """After a cancelled release the lock is free, and the cancellation is not swallowed."""

    async def body(at: int) -> int:
        points = Points(at)
        scene = Scene(make_source(kind, tmp_path, at), points)
        lease = await scene.victim.lock("name", ttl=TTL).acquire()
        points.victim = asyncio.ensure_future(lease.release())
        await asyncio.wait({points.victim}, timeout=TEST_TIMEOUT)
        assert points.victim.cancelled() == (at > 0)
        await scene.left_nothing()
        count = points.count
        await scene.close()
        return count

    for at in range(virtual.run(lambda: body(0)) + 1):
        virtual.run(partial(body, at))


@pytest.mark.parametrize("kind", STORES)
def test_a_cancelled_close_is_carried_out_all_the_same(kind: str, tmp_path: Path) -> None:
    """A client whose close was cancelled has released its leases, and its tasks and sockets are gone."""

    async def body(at: int) -> int:
        points = Points(at)
        scene = Scene(make_source(kind, tmp_path, at), points)
        lease = await scene.victim.lock("name", ttl=TTL).acquire()
        points.victim = asyncio.ensure_future(scene.victim.close())
        await asyncio.wait({points.victim}, timeout=TEST_TIMEOUT)
        assert points.victim.cancelled() == (at > 0)
        await scene.left_nothing()
        assert not lease.remaining()
        give_up_at = asyncio.get_running_loop().time() + TEST_TIMEOUT
        while [task for task in asyncio.all_tasks() if task.get_name() == "tenure-finish"]:
            assert asyncio.get_running_loop().time() < give_up_at
            await asyncio.sleep(0.001)
        count = points.count
        await scene.close()
        return count

    for at in range(virtual.run(lambda: body(0)) + 1):
        virtual.run(partial(body, at))


@pytest.mark.parametrize("kind", STORES)
def test_an_outer_timeout_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    """An acquisition ends by asyncio.timeout() or wait_for() as it would by a timeout of its own."""

    async def body() -> None:
        source = make_source(kind, tmp_path, 0)
        async with AsyncClient(store=source) as holder, AsyncClient(store=source) as waiter:
            lease = await holder.lock("name", ttl=TTL).acquire()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await waiter.lock("name", ttl=TTL).acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiter.lock("name", ttl=TTL).acquire(), 0.02)
            assert not (await holder.inspect("name")).waiters
            await lease.release()
            async with waiter.lock("name", ttl=TTL, timeout=0):
                pass

    virtual.run(body)
