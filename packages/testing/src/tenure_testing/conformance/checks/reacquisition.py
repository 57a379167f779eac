"""Checks of names that one client acquires repeatedly: lingering leases, reentrant locks, and waits for oneself."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from tenure import AsyncClient, AsyncLease, AsyncLock
from tenure.errors import UsageError
from tenure.outcome import Outcome
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, expect

TTL = 20.0
LONG = 60.0
"""Longer than any check takes."""

AT_ONCE = 0.5
"""Within how many seconds a waiter of another client is granted a lingering name: before its first re-poll."""

ROUNDS = 10
"""How many attempts a check makes, at most, at an operation that must be quick once."""


async def _lingering(client: AsyncClient, linger: float = LONG) -> AsyncLock | None:
    """Return a lock whose lease lingers; None if the store has no notifications and so refuses to linger."""
    try:
        lock = client.lock("name", ttl=TTL, linger=linger)
        lease = await lock.acquire()
    except UsageError:
        return None
    expect(await lease.release() is Outcome.RELEASED, "a lease with linger is released at once")
    expect(lease.remaining() == 0, "a released lease is no longer held, though it lingers")
    return lock


@check(queue=True)
async def lingering_lease_is_reused(kit: Kit) -> None:
    """The client of a lingering lease reacquires it, with a larger token each time; for others the name is held."""
    here, there = kit.client(), kit.client()
    lock = await _lingering(here)
    if lock is None:
        return
    tokens: list[int] = []
    for _ in range(5):
        expect(len((await there.inspect("name")).holders) == 1, "for others the name is held")
        lease = await lock.try_acquire()
        expect(lease is not None, "a lingering lease is reacquired without waiting")
        if lease is not None:
            lease.check()
            tokens.append(lease.token)
            await lease.release()
    expect(tokens == sorted(set(tokens)), "tokens increase")
    expect((await there.inspect("name")).last_token >= tokens[-1], "no token is above the last token of the store")


@check(exercises="store", queue=True)
async def waiter_ends_linger(kit: Kit) -> None:
    """A waiter of another client is granted a lingering name at once, with a larger token."""
    here, there = kit.client(), kit.client()
    took: list[float] = []
    while not took or (min(took) >= AT_ONCE and len(took) < ROUNDS):
        lock = await _lingering(here)
        if lock is None:
            return
        last = await lock.acquire()
        await last.release()
        began = kit.now()
        theirs = await there.lock("name", ttl=TTL).acquire(timeout=TEST_TIMEOUT)
        took.append(kit.now() - began)
        expect(theirs.token > last.token, "the next holder has a larger token")
        theirs.check()
        expect(await lock.try_acquire() is None, "the lingering lease is not reacquired any more")
        await theirs.release()
    expect(min(took) < AT_ONCE, f"a waiter ends a linger of {LONG:g} s at once, not after {min(took):.3f} s")


@check(queue=True)
async def try_acquire_ends_linger(kit: Kit) -> None:
    """Another client's `try_acquire` finds a lingering name held, but ends the linger: a later one is granted."""
    here, there = kit.client(), kit.client()
    if await _lingering(here) is None:
        return
    lock = there.lock("name", ttl=TTL)
    expect(await lock.try_acquire() is None, "a lingering name is held")

    async def granted() -> bool:
        return await lock.try_acquire() is not None

    await kit.until(granted, "a repeated try_acquire of a lingering name granted")


@check(queue=True)
async def linger_ends_in_time(kit: Kit) -> None:
    """A lingering lease is released when its linger time is over, and when its client closes."""
    here, there = kit.client(), kit.client()
    if await _lingering(here, 0.1) is None:
        return
    await kit.free(there, "name")
    await _lingering(here)
    await here.close()
    expect(not (await there.inspect("name")).holders, "a closed client holds no lingering lease")


@check(queue=True)
async def lost_lingering_lease_is_not_reused(kit: Kit) -> None:
    """A lease that is revoked while it lingers is not reacquired."""
    here, there = kit.client(), kit.client()
    lock = await _lingering(here)
    if lock is None:
        return
    await there.revoke("name", force=True)
    theirs = await there.lock("name", ttl=TTL).acquire(timeout=TEST_TIMEOUT)

    async def refused() -> bool:
        lease = await lock.try_acquire()
        if lease is not None:  # the client does not know of the revocation yet
            await lease.release()
        return lease is None

    await kit.until(refused, "the client learns that its lease was revoked")
    theirs.check()
    await theirs.release()
    lease = await lock.acquire(timeout=TEST_TIMEOUT)
    expect(lease.token > theirs.token, "the next lease has a larger token")
    lease.check()


@check(tokens=True)
async def reentrant_lock_is_reacquired_by_its_holder(kit: Kit) -> None:
    """The holder of a reentrant lock acquires it again, with the same token, and holds it until the last release."""
    here, there = kit.client(), kit.client()
    lock = here.lock("name", ttl=TTL, reentrant=True)
    outer = await lock.acquire()
    inner = await here.lock("name", ttl=TTL, reentrant=True).acquire()
    third = await lock.try_acquire()
    expect(third is not None and third.token == inner.token == outer.token, "all leases have one token")
    expect(await there.lock("name", ttl=TTL, reentrant=True).try_acquire() is None, "another client is not the holder")
    expect(await kit.start(lock.try_acquire).result() is None, "another thread or task is not the holder")
    expect(await outer.release() is Outcome.RELEASED, "the first lease may be released first")
    expect(outer.remaining() == 0, "a released lease is no longer held")
    inner.check()
    await inner.release()
    expect(await there.lock("name", ttl=TTL).try_acquire() is None, "the name is held until the last release")
    if third is not None:
        await third.release()
    expect(await there.lock("name", ttl=TTL).try_acquire() is not None, "the name is free after the last release")


@check()
async def holder_waits_for_its_own_lease(kit: Kit) -> None:
    """A holder that acquires its lock again waits, in the local queue and in the store's, until another releases it."""
    here = kit.client()
    for ttl in (TTL, TTL / 2):
        lease = await here.lock("name", ttl=TTL).acquire()

        async def release(lease: AsyncLease = lease) -> None:
            await kit.pause()  # so that the holder waits by then
            await lease.release()

        released = kit.start(release)
        await (await here.lock("name", ttl=ttl).acquire()).release()
        await released.result()


@check(queue=True, weights=True)
async def reader_waits_behind_a_writer_that_waits_for_it(kit: Kit) -> None:
    """A reader that acquires again, behind a writer that waits for it, is granted after the writer."""
    here, there = kit.client(), kit.client()
    rwlock = here.rwlock("name", ttl=TTL)
    lease = await rwlock.read().acquire()
    await (await rwlock.read().acquire()).release()  # no writer waits yet: the second read is granted
    writing = kit.start(lambda: there.rwlock("name", ttl=TTL).write().acquire(timeout=TEST_TIMEOUT))
    await kit.waiters(here, "name", 1)

    async def make_room() -> None:
        await kit.waiters(there, "name", 2)
        await lease.release()
        await (await writing.result()).release()

    making = kit.start(make_room)
    more = await rwlock.read().acquire()
    await making.result()
    more.check()
    await more.release()


@check(queue=True, weights=True)
async def holder_waits_for_its_own_permits(kit: Kit) -> None:
    """A holder that wants more permits, behind a waiter for its own, is granted when both have made room."""
    here, there = kit.client(), kit.client()
    semaphore, theirs = here.semaphore("name", 4, ttl=TTL), there.semaphore("name", 4, ttl=TTL)
    mine, first = await semaphore.acquire(weight=2), await theirs.acquire()
    waiting = kit.start(lambda: theirs.acquire(timeout=TEST_TIMEOUT, weight=3))
    await kit.waiters(here, "name", 1)

    async def make_room() -> None:
        await kit.waiters(there, "name", 2)
        await first.release()
        await mine.release()
        await (await waiting.result()).release()

    making = kit.start(make_room)
    more = await semaphore.acquire(weight=2)
    await making.result()
    more.check()
    await more.release()
