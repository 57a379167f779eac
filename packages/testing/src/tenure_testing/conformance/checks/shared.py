"""Checks of names with several holders: semaphores, and reader/writer locks."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tenure import AsyncClient, AsyncLease
from tenure.errors import UsageError
from tenure.primitives.base import AsyncLockBase
from tenure_testing.conformance.check import check
from tenure_testing.conformance.checks.waiting import short_waiter
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, Running, cancel_after, expect, timed_out
from tenure_testing.conformance.wire import FaultyWire

LONG = 20.0

ROUNDS = 6


class _Inside:
    """The total weight of the holders inside the critical section: now, and at most."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._mutex = threading.Lock()

    def change(self, weight: int) -> None:
        """Count a holder in by its weight, or out by its negative weight."""
        with self._mutex:
            self.now += weight
            self.most = max(self.most, self.now)


# -- semaphores --------------------------------------------------------------------------------------------


@check(weights=True)
async def permits_are_never_exceeded(kit: Kit) -> None:
    """However many contenders a semaphore has, and whatever their weights, the held permits never exceed its number."""
    inside = _Inside()

    async def work(client: AsyncClient, weight: int) -> None:
        semaphore = client.semaphore("name", 3, ttl=LONG)
        for _ in range(ROUNDS):
            async with await semaphore.acquire(weight=weight):
                inside.change(weight)
                await kit.pause(0.0005)
                inside.change(-weight)

    clients = [kit.client() for _ in range(2)]
    running = [kit.start(partial(work, client, weight)) for client in clients for weight in (1, 1, 2, 3)]
    for each in running:
        await each.result()
    expect(inside.most == 3, f"3 permits are used, and no more; not {inside.most}")
    expect(not (await clients[0].inspect("name")).holders, "all permits are returned")


@check(weights=True)
async def semaphore_counts_weights(kit: Kit) -> None:
    """A lease takes as many permits as its weight; a request that does not fit is refused; a release makes room."""
    here, there = kit.client(owner="here"), kit.client()
    heavy = await here.semaphore("name", 4, ttl=LONG).acquire(weight=3)
    semaphore = there.semaphore("name", 4, ttl=LONG)
    expect(await semaphore.try_acquire(weight=2) is None, "two permits are refused while one is free")
    light = await semaphore.try_acquire()
    expect(light is not None and light.token > heavy.token, "one permit is granted, with a token of its own")
    view = await there.inspect("name")
    expect((view.capacity, [each.weight for each in view.holders]) == (4, [3, 1]), "inspect shows permits and weights")
    expect(await semaphore.try_acquire() is None, "a full semaphore grants nothing")
    error = await timed_out(semaphore.acquire(timeout=0.05))
    expect("here" in str(error), "LockTimeout names the holder")
    await heavy.release()
    expect(await semaphore.try_acquire(weight=3) is not None, "released permits are free again")


@check(weights=True)
async def semaphore_users_must_agree(kit: Kit) -> None:
    """A semaphore with another number of permits than that in use is refused, with both numbers; so is another kind."""
    here, there = kit.client(), kit.client()
    lease = await here.semaphore("name", 3, ttl=LONG).acquire()
    await _expect_refusal(there.semaphore("name", 5, ttl=LONG), "3 permits", "5 permits")
    await _expect_refusal(there.lock("name", ttl=LONG), "3 permits", "a lock")
    await _expect_refusal(there.rwlock("name", ttl=LONG).read(), "3 permits", "a reader/writer lock")
    lease.check()
    await lease.release()
    async with there.rwlock("name", ttl=LONG).write():
        await _expect_refusal(here.semaphore("name", 3, ttl=LONG), "3 permits", "a reader/writer lock")
    async with there.lock("name", ttl=LONG):
        await _expect_refusal(here.semaphore("name", 3, ttl=LONG), "3 permits", "a lock")
    expect(await there.semaphore("name", 5, ttl=LONG).try_acquire() is not None, "an unused name takes any number")


async def _expect_refusal(lock: AsyncLockBase, *words: str) -> None:
    caught: UsageError | None = None
    try:
        await lock.acquire(timeout=TEST_TIMEOUT)
    except UsageError as error:
        caught = error
    expect(caught is not None, f"{lock!r} is refused")
    for word in words:
        expect(word in str(caught), f"the error says {word!r}: {caught}")


@check(queue=True, weights=True)
async def semaphore_is_first_come_first_served(kit: Kit) -> None:
    """A waiter for many permits is not overtaken by later waiters for few."""
    client = kit.client()
    semaphore = client.semaphore("name", 3, ttl=LONG)
    first, second = await semaphore.acquire(), await semaphore.acquire(weight=2)
    heavy = kit.start(lambda: kit.client().semaphore("name", 3, ttl=LONG).acquire(weight=3))
    await kit.waiters(client, "name", 1)
    light = kit.start(lambda: kit.client().semaphore("name", 3, ttl=LONG).acquire())
    await kit.waiters(client, "name", 2)
    await second.release()
    expect(await semaphore.try_acquire() is None, "nobody overtakes the queue")
    expect([each.weight for each in (await client.inspect("name")).waiters] == [3, 1], "both wait")
    await first.release()
    every_permit = await heavy.result()
    expect(not light.done(), "the first waiter holds all permits")
    await every_permit.release()
    (await light.result()).check()


@check(queue=True, weights=True)
async def timed_out_semaphore_waiter_lets_others_pass(kit: Kit) -> None:
    """When a waiter whose weight does not fit times out, waiters behind it that fit are granted at once."""
    here, there = kit.client(), kit.client()
    lease = await here.semaphore("name", 2, ttl=LONG).acquire()
    await there.names()  # connects, so that the whole timeout is left for the wait
    semaphore = there.semaphore("name", 2, ttl=LONG)
    heavy = await short_waiter(kit, here, lambda timeout: timed_out(semaphore.acquire(timeout=timeout, weight=2)))
    light = kit.start(lambda: here.semaphore("name", 2, ttl=LONG).acquire(timeout=TEST_TIMEOUT))
    expect(await heavy.result() is not None, "the heavy waiter timed out")
    (await light.result()).check()
    lease.check()


@check(weights=True)
async def permits_of_a_dead_holder_expire(kit: Kit) -> None:
    """The permits of a silent holder expire with its lease, which it knows to be lost; other permits stay held."""
    wire = FaultyWire()
    wire.cut = True
    here, there = kit.client(), kit.client(wire)
    kept = await here.semaphore("name", 3, ttl=LONG).acquire()
    silent = await there.semaphore("name", 3, ttl=kit.short).acquire(weight=2)
    mine = await here.semaphore("name", 3, ttl=LONG).acquire(timeout=TEST_TIMEOUT, weight=2)
    expect(silent.lost.is_set(), "the silent holder knew of the loss before the next holder was granted")
    mine.check()
    kept.check()
    expect(await here.semaphore("name", 3, ttl=LONG).try_acquire() is None, "all permits are in use")


@check(forms=("asyncio",), weights=True)
async def cancelled_semaphore_acquire_leaves_nothing(kit: Kit) -> None:
    """An acquisition of permits that is cancelled at any step leaves no holder and no waiter behind."""
    there = kit.client()
    await _cancel_at_each_step(
        kit, there.semaphore("name", 2, ttl=LONG), lambda: kit.client().semaphore("name", 2, ttl=LONG).acquire(weight=2)
    )


@check(exercises="store", forms=("asyncio",), weights=True)
async def cancelled_rwlock_acquire_leaves_nothing(kit: Kit) -> None:
    """An acquisition by a reader or a writer that is cancelled at any step leaves no holder and no waiter behind."""
    there = kit.client().rwlock("name", ttl=LONG)
    await _cancel_at_each_step(kit, there.read(), lambda: kit.client().rwlock("name", ttl=LONG).write().acquire())
    await _cancel_at_each_step(kit, there.write(), lambda: kit.client().rwlock("name", ttl=LONG).read().acquire())


# -- reader/writer locks -----------------------------------------------------------------------------------


@check(exercises="store", weights=True)
async def readers_share_and_writers_exclude(kit: Kit) -> None:
    """Readers of all clients share the name; a writer holds it alone."""
    inside = {"reader": _Inside(), "writer": _Inside()}
    met: list[str] = []

    async def work(client: AsyncClient, kind: str) -> None:
        lock = client.rwlock("name", ttl=LONG)
        other = inside["writer" if kind == "reader" else "reader"]
        for _ in range(ROUNDS):
            async with lock.read() if kind == "reader" else lock.write():
                inside[kind].change(1)
                await kit.pause(0.0005)
                if other.now:
                    met.append(kind)
                inside[kind].change(-1)

    clients = [kit.client() for _ in range(2)]
    kinds = ("reader", "reader", "writer", "reader")
    running = [kit.start(partial(work, client, kind)) for client in clients for kind in kinds]
    for each in running:
        await each.result()
    expect(not met, f"readers and writers never hold the name together: {met}")
    expect(inside["writer"].most == 1, f"one writer at a time, not {inside['writer'].most}")
    both = [await client.rwlock("name", ttl=LONG).read().try_acquire() for client in clients]
    expect(all(each is not None for each in both), "readers of different clients share")


@check(queue=True, weights=True)
async def readers_and_writers_are_served_in_order(kit: Kit) -> None:
    """Readers and writers are granted in the order of their arrival; adjacent readers are granted together."""
    client, order = kit.client(), ("reader", "reader", "writer", "reader", "reader")
    lease = await client.rwlock("name", ttl=LONG).write().acquire()
    waiting: list[Running[AsyncLease]] = []
    for place, kind in enumerate(order):
        waiting.append(kit.start(partial(_acquire, kit.client(), kind)))
        await kit.waiters(client, "name", place + 1)
    await lease.release()
    view = await client.inspect("name")
    expect((len(view.holders), len(view.waiters)) == (2, 3), "one release grants both readers at the head at once")
    early = [await each.result() for each in waiting[:2]]
    for each in early:
        expect(not waiting[2].done(), "the writer waits for both readers")
        await each.release()
    written = await waiting[2].result()
    expect(not any(each.done() for each in waiting[3:]), "the readers behind the writer wait for the writer")
    await written.release()
    late = [await each.result() for each in waiting[3:]]
    tokens = [each.token for each in (lease, *early, written)]
    expect(tokens == sorted(tokens) and all(each.token > written.token for each in late), "tokens grow in this order")
    expect(len((await client.inspect("name")).holders) == 2, "the last readers share the name")


async def _acquire(client: AsyncClient, kind: str) -> AsyncLease:
    lock = client.rwlock("name", ttl=LONG)
    return await (lock.read() if kind == "reader" else lock.write()).acquire()


@check(queue=True, weights=True)
async def reader_does_not_overtake_a_waiting_writer(kit: Kit) -> None:
    """A writer waits for every reader before it, and no later reader is granted before the writer."""
    client, other = kit.client(), kit.client()
    first, second = await _acquire(client, "reader"), await _acquire(other, "reader")
    writer = kit.start(partial(_acquire, kit.client(), "writer"))
    await kit.waiters(client, "name", 1)
    for each in (client, other):
        expect(await each.rwlock("name", ttl=LONG).read().try_acquire() is None, "the writer is first in the queue")
    await first.release()
    expect(await client.rwlock("name", ttl=LONG).read().try_acquire() is None, "the writer is still first")
    expect(len((await client.inspect("name")).waiters) == 1, "one reader keeps the writer out")
    await second.release()
    written = await writer.result()
    written.check()
    expect(await client.rwlock("name", ttl=LONG).read().try_acquire() is None, "a writer keeps readers out")
    await written.release()
    expect(await client.rwlock("name", ttl=LONG).read().try_acquire() is not None, "readers follow the writer")


@check(weights=True)
async def writer_is_granted_after_a_dead_reader_expires(kit: Kit) -> None:
    """A silent reader delays a writer no longer than until its lease expires, and knows that the lease is lost."""
    wire = FaultyWire()
    wire.cut = True
    silent = await kit.client(wire).rwlock("name", ttl=kit.short).read().acquire()
    written = await kit.client().rwlock("name", ttl=LONG).write().acquire(timeout=TEST_TIMEOUT)
    expect(silent.lost.is_set(), "the silent holder knew of the loss before the next holder was granted")
    written.check()


@check(forms=("asyncio",), queue=True, weights=True)
async def cancelled_writer_admits_readers(kit: Kit) -> None:
    """Readers that wait behind a writer are granted at once when the writer is cancelled."""
    client = kit.client()
    lease = await _acquire(client, "reader")
    writer = kit.start(partial(_acquire, kit.client(), "writer"))
    await kit.waiters(client, "name", 1)
    readers = [kit.start(partial(_acquire, kit.client(), "reader")) for _ in range(2)]
    await kit.waiters(client, "name", 3)
    writer.cancel()
    for each in readers:
        (await each.result()).check()
    lease.check()
    await kit.waiters(client, "name", 0)


async def _cancel_at_each_step(
    kit: Kit, other: AsyncLockBase, acquire: Callable[[], Coroutine[Any, Any, AsyncLease]]
) -> None:
    """Cancel `acquire` after every number of steps, while the name is free and while `other` holds it."""
    watcher = kit.client()
    for held in (False, True):
        for steps in range(12):
            lease = await other.acquire() if held else None
            await cancel_after(kit.start(acquire), steps)
            await kit.waiters(watcher, "name", 0)
            if lease is not None:
                lease.check()
                await lease.release()
            await kit.free(watcher, "name")
