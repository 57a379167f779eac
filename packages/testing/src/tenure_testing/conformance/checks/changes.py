"""Checks of changes while a name is held: `min_hold`, downgrades, resized semaphores and revocation requests."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from collections.abc import Coroutine
from functools import partial
from typing import Any

from tenure import AsyncClient, AsyncLease
from tenure.contracts.messages import Notification, NotificationKind
from tenure.core.lease import LeaseState
from tenure.errors import UsageError
from tenure.outcome import Outcome
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, Running, expect
from tenure_testing.conformance.wire import FaultyWire

LONG = 20.0

MIN_HOLD = 0.3

# -- min_hold ----------------------------------------------------------------------------------------------


@check(records=True)
async def name_is_not_free_before_min_hold(kit: Kit) -> None:
    """A release before min_hold returns at once, but nobody else is granted the name until min_hold is over."""
    here, there = kit.client(), kit.client()
    before = kit.now()
    lease = await here.lock("name", ttl=LONG, min_hold=MIN_HOLD).acquire()
    expect(await lease.release() is Outcome.RELEASED, "the lease is released")
    expect(lease.state is LeaseState.RELEASED, "the lease is in the state RELEASED")
    expect(await lease.release() is Outcome.RELEASED, "a repeated release returns the same outcome")
    theirs = await there.lock("name", ttl=LONG).try_acquire()
    expect(theirs is None or kit.now() - before >= MIN_HOLD, "the name is not granted before min_hold")
    if theirs is None:
        theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    expect(kit.now() - before >= MIN_HOLD, "the name is granted after min_hold")
    expect(theirs.token > lease.token, "tokens increase")


@check(queue=True)
async def waiter_is_granted_when_min_hold_ends(kit: Kit) -> None:
    """A waiter is granted the name soon after min_hold, long before the lease would have expired."""
    here, there = kit.client(), kit.client()
    before = kit.now()
    lease = await here.lock("name", ttl=LONG, min_hold=MIN_HOLD).acquire()
    waiting = kit.start(lambda: there.lock("name", ttl=LONG).acquire())
    await kit.waiters(here, "name", 1)
    await lease.release()
    await waiting.result(LONG / 4)
    expect(kit.now() - before >= MIN_HOLD, "the waiter is not granted before min_hold")


@check(records=True)
async def min_hold_does_not_delay_a_later_release(kit: Kit) -> None:
    """A lease that was held for longer than min_hold is free at once when it is released."""
    here, there = kit.client(), kit.client()
    lease = await here.lock("name", ttl=LONG, min_hold=0.05).acquire()
    await kit.pause(0.1)
    await lease.release()
    expect(await there.lock("name", ttl=LONG).try_acquire() is not None, "the name is free")


@check(exercises="store", records=True)
async def early_release_survives_a_lost_reply(kit: Kit) -> None:
    """An early release whose reply was lost is repeated, and keeps the name until min_hold as the first one did."""
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    lease = await here.lock("name", ttl=LONG, min_hold=MIN_HOLD).acquire()
    wire.lose["release"] = 1
    expect(await lease.release() is Outcome.RELEASED, "the lease is released")
    expect(not (await there.inspect("name")).waiters, "nobody waits")
    (await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)).check()


# -- downgrades ----------------------------------------------------------------------------------------------


async def _read(client: AsyncClient) -> AsyncLease:
    return await client.rwlock("name", ttl=LONG).read().acquire()


@check(exercises="store", weights=True, queue=True)
async def downgrade_admits_readers_but_no_writer(kit: Kit) -> None:
    """A writer that downgrades to a reader holds the name throughout; waiting readers are granted, writers are not."""
    here, watcher = kit.client(), kit.client()
    lease = await here.rwlock("name", ttl=LONG).write().acquire()
    token = lease.token
    readers: list[Running[AsyncLease]] = []
    for place in range(2):
        readers.append(kit.start(partial(_read, kit.client())))
        await kit.waiters(watcher, "name", place + 1)
    writer = kit.start(lambda: watcher.rwlock("name", ttl=LONG).write().acquire())
    await kit.waiters(watcher, "name", 3)
    await lease.downgrade()
    theirs = [await each.result() for each in readers]
    lease.check()
    expect(lease.token == token, "the downgraded lease keeps its token")
    expect(not writer.done(), "the writer still waits")
    await lease.downgrade()
    expect(await lease.extend() > 0, "the downgraded lease is renewed")
    for each in theirs:
        await each.release()
    expect(not writer.done(), "the former writer still reads")
    expect(await lease.release() is Outcome.RELEASED, "the downgraded lease is released")
    (await writer.result()).check()


@check(weights=True)
async def downgrade_survives_a_lost_reply(kit: Kit) -> None:
    """A downgrade whose reply was lost is repeated, and takes effect once."""
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    lease = await here.rwlock("name", ttl=LONG).write().acquire()
    wire.lose["adjust"] = 1
    await lease.downgrade()
    theirs = await there.rwlock("name", ttl=LONG).read().try_acquire()
    expect(theirs is not None, "there is room for a reader")
    expect(len((await there.inspect("name")).holders) == 2, "each reader holds the name once")
    lease.check()


# -- permits ---------------------------------------------------------------------------------------------------


async def _refusal(refused: Coroutine[Any, Any, object]) -> str:
    """Return the message of the UsageError that an awaitable raises, or ""."""
    try:
        await refused
    except UsageError as error:
        return str(error)
    return ""


@check(exercises="store", weights=True, queue=True)
async def larger_semaphore_admits_waiters(kit: Kit) -> None:
    """A semaphore that is resized to more permits grants its waiters, though their requests name the old number."""
    here, there = kit.client(), kit.client()
    semaphore = here.semaphore("name", 2, ttl=LONG)
    lease = await semaphore.acquire(weight=2)
    waiting = kit.start(lambda: there.semaphore("name", 2, ttl=LONG).acquire())
    await kit.waiters(here, "name", 1)
    await semaphore.resize(4)
    (await waiting.result()).check()
    lease.check()
    expect(await semaphore.try_acquire() is not None, "the resized semaphore uses the new number")
    refusal = await _refusal(there.semaphore("name", 2, ttl=LONG).try_acquire())
    expect("4 permits" in refusal and "2 permits" in refusal, "a request with the old number is refused with both")
    expect(await semaphore.try_acquire() is None, "all permits are held")


@check(weights=True, queue=True)
async def larger_semaphore_admits_waiters_of_its_client(kit: Kit) -> None:
    """A semaphore of one permit that is resized to more grants the waiters of its own client, and keeps its number."""
    client = kit.client()
    semaphore = client.semaphore("name", 1, ttl=LONG)
    lease = await semaphore.acquire()
    waiting = kit.start(semaphore.acquire)
    await kit.waiters(client, "name", 1)
    await semaphore.resize(3)
    (await waiting.result()).check()
    expect(await semaphore.try_acquire() is not None, "the name has the new number of permits")
    await lease.release()
    expect(await semaphore.try_acquire() is not None, "the name keeps this number when its first lease is released")


@check(weights=True, queue=True)
async def smaller_semaphore_revokes_no_lease(kit: Kit) -> None:
    """A resize to fewer permits revokes no lease and moves no waiter, but refuses waiters that no longer fit at all."""
    here, there = kit.client(), kit.client()
    semaphore = here.semaphore("name", 3, ttl=LONG)
    first, second = await semaphore.acquire(weight=2), await semaphore.acquire()
    heavy = kit.start(lambda: kit.client().semaphore("name", 3, ttl=LONG).acquire(weight=3))
    await kit.waiters(here, "name", 1)
    light = kit.start(lambda: there.semaphore("name", 3, ttl=LONG).acquire())
    await kit.waiters(here, "name", 2)
    await semaphore.resize(2)
    refusal = await _refusal(heavy.result())
    expect("2 permits" in refusal and "3 permits" in refusal, "a waiter for too many permits is refused")
    first.check()
    second.check()
    expect(not light.done(), "more permits are held than the semaphore has")
    await second.release()
    expect(not light.done(), "all permits are held")
    await first.release()
    (await light.result()).check()


@check(exercises="store", weights=True)
async def resize_requires_the_current_capacity(kit: Kit) -> None:
    """Only a semaphore with the current number of permits resizes it; another is refused with both numbers."""
    here, there = kit.client(), kit.client()
    semaphore = here.semaphore("name", 3, ttl=LONG)
    lease = await semaphore.acquire()
    refusal = await _refusal(there.semaphore("name", 2, ttl=LONG).resize(5))
    expect("3 permits" in refusal and "from 2 to 5" in refusal, "the refusal contains both numbers")
    lease.check()
    await semaphore.resize(4)
    await there.semaphore("name", 3, ttl=LONG).resize(4)  # a repeated request, as after a lost reply
    expect(await there.semaphore("name", 4, ttl=LONG).try_acquire(weight=3) is not None, "the name has 4 permits")
    free = here.semaphore("free", 2, ttl=LONG)
    await free.resize(1)
    expect(await free.try_acquire() is not None, "a name that nobody uses takes any number")


@check(weights=True, queue=True)
async def resizing_semaphore_stays_in_use(kit: Kit) -> None:
    """A semaphore that is resized, and used meanwhile, gets no UsageError: requests are sent again."""
    semaphore = kit.client().semaphore("name", 2, ttl=LONG)
    stop = False

    async def use() -> int:
        rounds = 0
        while not stop:
            await (await semaphore.acquire(timeout=TEST_TIMEOUT)).release()
            rounds += 1
            await kit.pause()  # in asyncio the others run meanwhile
        return rounds

    users = [kit.start(use) for _ in range(3)]
    try:
        for permits in (3, 1, 4, 2, 5, 1, 3, 2) * 2:
            await semaphore.resize(permits)
            await kit.pause()
    finally:
        stop = True
    expect(all([await each.result() > 0 for each in users]), "all users go on")


@check(weights=True, cells=True)
async def semaphore_takes_the_number_of_the_store(kit: Kit) -> None:
    """Semaphores without a number of their own are resized while they work, and the number stays when they are free."""
    here, there, later = (kit.client().semaphore("name", None, ttl=LONG) for _ in range(3))
    refusal = await _refusal(here.acquire(timeout=0))
    expect("no number of permits" in refusal, "there is no number before the first resize")
    await here.resize(1)
    lease = await here.acquire()
    expect(await there.try_acquire() is None, "there is one permit")
    await there.resize(3)
    others = [await here.acquire(timeout=TEST_TIMEOUT), await there.acquire(timeout=TEST_TIMEOUT)]
    expect(await later.try_acquire() is None, "there are three permits")
    refusal = await _refusal(later.acquire(weight=4))
    expect("from 1 to 3" in refusal, "more permits than there are now are refused")
    for each in [lease, *others]:
        await each.release()
    expect(await later.try_acquire(weight=3) is not None, "the number stays when nobody uses the name")


@check(weights=True, cells=True)
async def kept_number_replaces_an_older_one(kit: Kit) -> None:
    """A number that another user set while the name was free does not last: the store keeps that of the last resize."""
    fleet, old = kit.client().semaphore("name", None, ttl=LONG), kit.client().semaphore("name", 1, ttl=LONG)
    await fleet.resize(2)
    lease = await old.acquire()
    theirs = await fleet.acquire(timeout=TEST_TIMEOUT)
    lease.check()
    theirs.check()
    other = kit.client().semaphore("other", 3, ttl=LONG)
    held = await other.acquire()
    expect(await kit.client().semaphore("other", None, ttl=LONG).try_acquire(weight=2) is not None, "the number in use")
    held.check()


# -- revocation requests -----------------------------------------------------------------------------------------


@check(exercises="store", records=True, notified=True)
async def holder_is_notified_of_a_revocation_request_once(kit: Kit) -> None:
    """A revocation request names the holder, notifies it once, and ends no lease; a later lease is not notified."""
    here, judge = kit.client(owner="holder"), kit.client()
    expect(await judge.revoke("name") == [], "a free name has no holder to ask")
    told: list[object] = []
    lease = await here.lock("name", ttl=LONG, on_revoke=told.append).acquire()
    await lease.extend()  # a holder receives notifications from its first renewal on
    asked = await judge.revoke("name")
    expect([(each.owner, each.token) for each in asked] == [("holder", lease.token)], "the reply names the holder")

    async def notified() -> bool:
        return bool(told)

    await kit.until(notified, "the holder is notified")
    expect(lease.revoking, "`lease.revoking` is true")
    lease.check()
    await judge.revoke("name")
    late: list[object] = []
    lease.on_revoke(late.append)

    async def notified_late() -> bool:
        return bool(late)

    await kit.until(notified_late, "a callback that is added later is called at once")
    expect((len(told), len(late)) == (1, 1), "each callback is called once")
    await lease.release()
    after = await here.lock("name", ttl=LONG, on_revoke=told.append).acquire()
    expect(not after.revoking, "`revoking` of the next lease is false")
    expect(len(told) == 1, "the next lease is not notified")


@check(records=True)
async def late_revocation_request_reaches_no_later_lease(kit: Kit) -> None:
    """A revocation request for an earlier lease that arrives late does not reach the next lease of the same client."""
    wire = FaultyWire()
    here = kit.client(wire)
    lock = here.lock("name", ttl=LONG)
    first = await lock.acquire()
    await first.release()
    second = await lock.acquire()
    earlier, later = wire.requests[0], wire.requests[-1]
    for request_id in (earlier.request_id, later.request_id):
        wire.push(Notification(later.channel, NotificationKind.REVOCATION_REQUESTED, request_id, first.token))
    other = await here.lock("other", ttl=LONG).acquire()
    wire.push(
        Notification(later.channel, NotificationKind.REVOCATION_REQUESTED, wire.requests[-1].request_id, other.token)
    )

    async def asked() -> bool:
        return other.revoking

    await kit.until(asked, "a revocation request reaches its lease")
    expect(not second.revoking, "a revocation request for another lease does not reach it")
    second.check()
