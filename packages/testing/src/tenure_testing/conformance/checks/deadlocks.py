"""Checks of deadlock detection: waiters in a circle get DeadlockDetected, and no others do."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tenure import AsyncClient, AsyncLease
from tenure.contracts.owner_metadata import OwnerMetadata
from tenure.errors import DeadlockDetected, LockTimeout
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import Kit, cancel_after, expect

LONG = 20.0

RE_POLLED = 1.25
"""Longer than it takes until a waiter has sent its request, and looked for deadlocks, again; in seconds."""


async def _hold_and_wait(client: AsyncClient, first: str, second: str, kit: Kit, others: Callable[[], int]) -> bool:
    """Hold one name and acquire another once every client holds one; return whether that was a deadlock."""
    lease = await client.lock(first, ttl=LONG, detect_deadlock=True).acquire()
    await kit.until(_true_when(lambda: others() > 0), "every client holds a name")
    try:
        await (await client.lock(second, ttl=LONG, detect_deadlock=True).acquire()).release()
    except DeadlockDetected as error:
        expect({wait.name for wait in error.waits} >= {first, second}, f"the error contains both names: {error}")
        return True
    finally:
        await lease.release()
    return False


def _true_when(holds: Callable[[], bool]) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def tell() -> bool:
        return holds()

    return tell


async def _circle(kit: Kit, clients: Sequence[AsyncClient]) -> None:
    watcher, names = clients[0], [f"name {number}" for number in range(len(clients))]
    ready: list[bool] = []
    running = [
        kit.start(partial(_hold_and_wait, client, name, second, kit, lambda: len(ready)))
        for client, name, second in zip(clients, names, names[1:] + names[:1], strict=True)
    ]

    async def all_held() -> bool:
        return all([(await watcher.inspect(name)).holders for name in names])

    await kit.until(all_held, "every client holds a name")
    ready.append(True)
    told = [await each.result() for each in running]
    expect(told.count(True) == 1, f"one of a circle gets DeadlockDetected, the others are granted: {told}")


@check(queue=True)
async def deadlock_of_two_is_detected(kit: Kit) -> None:
    """Of two contenders that wait for each other, one gets DeadlockDetected; then the other is granted."""
    await _circle(kit, [kit.client(owner="this"), kit.client(owner="that")])


@check(queue=True)
async def deadlock_of_four_is_detected(kit: Kit) -> None:
    """Of four contenders in a circle, two of one client, one gets DeadlockDetected; then the others are granted."""
    here, there = kit.client(owner="here"), kit.client(owner="there")
    await _circle(kit, [here, there, here, kit.client(owner="elsewhere")])


@check(queue=True, weights=True)
async def deadlock_of_readers_and_writers_is_detected(kit: Kit) -> None:
    """A deadlock of locks, readers and writers is detected as well."""
    here, there = kit.client(), kit.client()
    read = await here.rwlock("shared", ttl=LONG, detect_deadlock=True).read().acquire()
    running = kit.start(partial(_hold_and_write, there))
    await kit.waiters(here, "shared", 1)
    try:
        lease = await here.lock("alone", ttl=LONG, detect_deadlock=True).acquire()
        told = False
        await lease.release()
    except DeadlockDetected:
        told = True
    await read.release()
    expect(told != await running.result(), "one of the two gets DeadlockDetected")


async def _hold_and_write(client: AsyncClient) -> bool:
    lease = await client.lock("alone", ttl=LONG, detect_deadlock=True).acquire()
    try:
        await (await client.rwlock("shared", ttl=LONG, detect_deadlock=True).write().acquire()).release()
    except DeadlockDetected:
        return True
    finally:
        await lease.release()
    return False


@check(queue=True, weights=True)
async def waits_without_a_circle_are_no_deadlock(kit: Kit) -> None:
    """A waiter gets no DeadlockDetected while a holder that does not wait could release the permits it waits for."""
    here, there, elsewhere = kit.client(), kit.client(), kit.client()
    mine = await here.lock("mine", ttl=LONG, detect_deadlock=True).acquire()
    permits = await elsewhere.semaphore("permits", 2, ttl=LONG, detect_deadlock=True).acquire()
    waiting = kit.start(partial(_permit_and_lock, there))
    await kit.waiters(here, "mine", 1)
    timed_out = False
    try:
        await here.semaphore("permits", 2, ttl=LONG, timeout=RE_POLLED, detect_deadlock=True).acquire()
    except LockTimeout:
        timed_out = True
    expect(timed_out, "two holders have the permits, and one of them does not wait: that is no deadlock")
    await permits.release()
    await mine.release()
    await waiting.result()


async def _permit_and_lock(client: AsyncClient) -> None:
    permit = await client.semaphore("permits", 2, ttl=LONG, detect_deadlock=True).acquire()
    lease = await client.lock("mine", ttl=LONG, detect_deadlock=True).acquire()
    await lease.release()
    await permit.release()


@check(exercises="store", queue=True)
async def deadlocks_of_others_are_listed(kit: Kit) -> None:
    """`deadlocks` lists the circles of all clients, and none once a circle is broken."""
    raw, watcher = await kit.raw(), kit.client()
    requests = {
        (actor, name): replace(
            raw.request(name), owner=OwnerMetadata(f"owner {actor}", actor=f"{actor} thread", holds=(held,)).text()
        )
        for actor, held in (("1", "left"), ("2", "right"))
        for name in ("left", "right")
    }
    await raw.acquire_free(requests["1", "left"])
    token = await raw.acquire_free(requests["2", "right"])
    await raw.acquire(requests["1", "right"])
    expect(await watcher.deadlocks() == [], "one of the two does not wait yet")
    await raw.acquire(requests["2", "left"])
    (circle,) = await watcher.deadlocks()
    told = {(wait.waiter, wait.name, wait.holder) for wait in circle}
    expect(
        told == {("owner 1", "right", "owner 2"), ("owner 2", "left", "owner 1")}, f"the edges of the circle: {told}"
    )
    await raw.withdraw(requests["2", "left"])
    await raw.release(requests["2", "right"], token)
    expect(await watcher.deadlocks() == [], "the circle is broken")


@check(exercises="store", forms=("asyncio",), queue=True)
async def cancelled_deadlock_detection_leaves_nothing(kit: Kit) -> None:
    """An acquisition that is cancelled at any step of deadlock detection leaves the queue."""
    here, there = kit.client(), kit.client()
    lease = await there.lock("name", ttl=LONG).acquire()

    async def hold_and_wait() -> AsyncLease:
        async with here.lock("mine", ttl=LONG, detect_deadlock=True):
            return await here.lock("name", ttl=LONG, detect_deadlock=True).acquire()

    for steps in range(24):
        await cancel_after(kit.start(hold_and_wait), steps)
        await kit.waiters(there, "name", 0)
        await kit.free(there, "mine")
    lease.check()
    await lease.release()
