"""Names that one client wants again and again: leases that linger, and those that are acquired once more."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from holdfast import AsyncClient, AsyncLock
from holdfast.errors import SelfDeadlock, UsageError
from holdfast.outcome import Outcome
from holdfast.testing.conformance.check import check
from holdfast.testing.conformance.kit import TEST_TIMEOUT, Kit, expect

TTL = 20.0
LONG = 60.0
"""Longer than any check takes."""

AT_ONCE = 0.5
"""How soon, in seconds, an outside waiter has a name that lingers: before it would ask a second time."""

ROUNDS = 10
"""How often, at most, something is done that has to be quick once."""


async def _lingering(client: AsyncClient, linger: float = LONG) -> AsyncLock | None:
    """Return a lock whose lease lingers; None if the store cannot push, and refuses it."""
    try:
        lock = client.lock("name", ttl=TTL, linger=linger)
        lease = await lock.acquire()
    except UsageError:
        return None
    expect(await lease.release() is Outcome.RELEASED, "a lease that is to linger is released at once")
    expect(lease.remaining() == 0, "a released lease is not ours, though it lingers")
    return lock


@check(queue=True)
async def lingering_lease_is_reused(kit: Kit) -> None:
    """A lease that lingers is had again by its client, with a larger token each time; to others the name is held."""
    here, there = kit.client(), kit.client()
    lock = await _lingering(here)
    if lock is None:
        return
    tokens: list[int] = []
    for _ in range(5):
        expect(len((await there.inspect("name")).holders) == 1, "to others the name is held")
        lease = await lock.try_acquire()
        expect(lease is not None, "a lease that lingers is had without waiting")
        if lease is not None:
            lease.check()
            tokens.append(lease.token)
            await lease.release()
    expect(tokens == sorted(set(tokens)), "tokens grow")
    expect((await there.inspect("name")).last_token >= tokens[-1], "no token is above what the store has given out")


@check(queue=True)
async def waiter_ends_linger(kit: Kit) -> None:
    """Whoever waits elsewhere for a name that lingers has it at once, with a larger token."""
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
        expect(theirs.token > last.token, "the token of who comes after is larger")
        theirs.check()
        expect(await lock.try_acquire() is None, "what did linger is not had any more")
        await theirs.release()
    expect(min(took) < AT_ONCE, f"a waiter ends a linger of {LONG:g} s at once, not after {min(took):.3f} s")


@check(queue=True)
async def try_acquire_ends_linger(kit: Kit) -> None:
    """Whoever asks elsewhere without waiting finds a name that lingers held, and has it soon if nobody wants it."""
    here, there = kit.client(), kit.client()
    if await _lingering(here) is None:
        return
    lock = there.lock("name", ttl=TTL)
    expect(await lock.try_acquire() is None, "nobody has it beside who keeps it")

    async def had() -> bool:
        return await lock.try_acquire() is not None

    await kit.until(had, "a name that lingers is had by who asks for it again")


@check(queue=True)
async def linger_ends_in_time(kit: Kit) -> None:
    """A lease that nobody wants any more is released when its linger is over, and when its client closes."""
    here, there = kit.client(), kit.client()
    if await _lingering(here, 0.1) is None:
        return
    await kit.free(there, "name")
    await _lingering(here)
    await here.close()
    expect(not (await there.inspect("name")).holders, "a client that is closed keeps nothing")


@check(queue=True)
async def lost_lingering_lease_is_not_reused(kit: Kit) -> None:
    """A lease that is taken by force while it lingers is not had again."""
    here, there = kit.client(), kit.client()
    lock = await _lingering(here)
    if lock is None:
        return
    await there.revoke("name", force=True)
    theirs = await there.lock("name", ttl=TTL).acquire(timeout=TEST_TIMEOUT)

    async def refused() -> bool:
        lease = await lock.try_acquire()
        if lease is not None:  # it has not heard of it yet
            await lease.release()
        return lease is None

    await kit.until(refused, "the client hears that its lease was taken")
    theirs.check()
    await theirs.release()
    lease = await lock.acquire(timeout=TEST_TIMEOUT)
    expect(lease.token > theirs.token, "its next lease is another one")
    lease.check()


@check()
async def reentrant_lock_is_reacquired_by_its_holder(kit: Kit) -> None:
    """A reentrant lock is acquired again by who holds it, with the same token, and held until the last release."""
    here, there = kit.client(), kit.client()
    lock = here.lock("name", ttl=TTL, reentrant=True)
    outer = await lock.acquire()
    inner = await here.lock("name", ttl=TTL, reentrant=True).acquire()
    third = await lock.try_acquire()
    expect(third is not None and third.token == inner.token == outer.token, "all leases have one token")
    expect(await there.lock("name", ttl=TTL, reentrant=True).try_acquire() is None, "another client is another")
    expect(await kit.start(lock.try_acquire).result() is None, "another thread or task is another")
    expect(await outer.release() is Outcome.RELEASED, "the first may be released first")
    expect(outer.remaining() == 0, "a released lease is not ours")
    inner.check()
    await inner.release()
    expect(await there.lock("name", ttl=TTL).try_acquire() is None, "it is held until the last release")
    if third is not None:
        await third.release()
    expect(await there.lock("name", ttl=TTL).try_acquire() is not None, "then it is free")


@check()
async def holder_never_waits_for_itself(kit: Kit) -> None:
    """Who holds a lock and acquires it again without a timeout is told so, and leaves nothing in the queue."""
    here = kit.client()
    lease = await here.lock("name", ttl=TTL).acquire()
    for ttl in (TTL, TTL / 2):
        try:
            await here.lock("name", ttl=ttl).acquire()
        except SelfDeadlock:
            continue
        expect(holds=False, what="a second acquisition by the holder is refused")
    lease.check()
    expect(not (await here.inspect("name")).waiters, "it stands in no queue")
    await lease.release()


@check(queue=True, weights=True)
async def reader_never_waits_for_itself_behind_a_writer(kit: Kit) -> None:
    """Who reads and asks to read again, behind a writer that waits for the first, is told so and stands in no queue."""
    here, there = kit.client(), kit.client()
    rwlock = here.rwlock("name", ttl=TTL)
    lease = await rwlock.read().acquire()
    await (await rwlock.read().acquire()).release()  # nobody waits between: it is let in
    writing = kit.start(lambda: there.rwlock("name", ttl=TTL).write().acquire(timeout=TEST_TIMEOUT))
    await kit.waiters(here, "name", 1)
    try:
        await rwlock.read().acquire()
    except SelfDeadlock as error:
        expect("An earlier waiter" in str(error), "it says why")
    else:
        expect(holds=False, what="a second read behind a writer is refused")
    lease.check()
    expect(len((await here.inspect("name")).waiters) == 1, "it stands in no queue")
    await lease.release()
    await (await writing.result()).release()


@check(queue=True, weights=True)
async def holder_never_waits_for_its_own_permits(kit: Kit) -> None:
    """Who holds permits and asks for more, behind a waiter that needs those, is told so; not if others make room."""
    here, there = kit.client(), kit.client()
    semaphore, theirs = here.semaphore("name", 4, ttl=TTL), there.semaphore("name", 4, ttl=TTL)
    mine, first = await semaphore.acquire(weight=2), await theirs.acquire()
    waiting = kit.start(lambda: theirs.acquire(timeout=TEST_TIMEOUT, weight=2))
    await kit.waiters(here, "name", 1)

    async def make_room() -> None:
        await kit.waiters(there, "name", 2)
        await first.release()
        await (await waiting.result()).release()

    making = kit.start(make_room)
    more = await semaphore.acquire()
    await making.result()
    await more.release()
    waiting = kit.start(lambda: theirs.acquire(timeout=TEST_TIMEOUT, weight=3))
    await kit.waiters(here, "name", 1)
    try:
        await semaphore.acquire()
    except SelfDeadlock:
        expect(len((await here.inspect("name")).waiters) == 1, "it stands in no queue")
    else:
        expect(holds=False, what="a request behind one that needs what the asker holds is refused")
    mine.check()
    await mine.release()
    await (await waiting.result()).release()
