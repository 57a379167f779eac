"""What may be changed while a name is held: how much of it, how much there is, and for how long it stays taken."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from collections.abc import Coroutine
from functools import partial
from typing import Any

from holdfast import AsyncClient, AsyncLease
from holdfast.contracts.messages import Notification, NotificationKind
from holdfast.core.lease import LeaseState
from holdfast.errors import UsageError
from holdfast.outcome import Outcome
from holdfast.testing.conformance.check import check
from holdfast.testing.conformance.kit import TEST_TIMEOUT, Kit, Running, expect
from holdfast.testing.conformance.wire import Wire

LONG = 20.0

MIN_HOLD = 0.3

# -- min_hold ----------------------------------------------------------------------------------------------


@check()
async def name_is_not_free_before_min_hold(kit: Kit) -> None:
    """Whoever releases a name early has released it; but nobody gets the name before min_hold is over."""
    here, there = kit.client(), kit.client()
    before = kit.now()
    lease = await here.lock("name", ttl=LONG, min_hold=MIN_HOLD).acquire()
    expect(await lease.release() is Outcome.RELEASED, "it is released")
    expect(lease.state is LeaseState.RELEASED, "and no longer held")
    expect(await lease.release() is Outcome.RELEASED, "asked again, it is the same")
    theirs = await there.lock("name", ttl=LONG).try_acquire()
    expect(theirs is None or kit.now() - before >= MIN_HOLD, "the name is kept")
    if theirs is None:
        theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    expect(kit.now() - before >= MIN_HOLD, "for as long as min_hold says")
    expect(theirs.token > lease.token, "tokens grow")


@check(queue=True)
async def waiter_is_granted_when_min_hold_ends(kit: Kit) -> None:
    """Who waits gets the name soon after min_hold, long before the lease would have ended."""
    here, there = kit.client(), kit.client()
    before = kit.now()
    lease = await here.lock("name", ttl=LONG, min_hold=MIN_HOLD).acquire()
    waiting = kit.start(lambda: there.lock("name", ttl=LONG).acquire())
    await kit.waiters(here, "name", 1)
    await lease.release()
    await waiting.result(LONG / 4)
    expect(kit.now() - before >= MIN_HOLD, "not before")


@check()
async def min_hold_does_not_delay_a_later_release(kit: Kit) -> None:
    """Who held a name for longer than min_hold releases it at once."""
    here, there = kit.client(), kit.client()
    lease = await here.lock("name", ttl=LONG, min_hold=0.05).acquire()
    await kit.pause(0.1)
    await lease.release()
    expect(await there.lock("name", ttl=LONG).try_acquire() is not None, "it is free")


@check()
async def early_release_survives_a_lost_reply(kit: Kit) -> None:
    """A release whose reply was lost is repeated, and keeps the name as the first one did."""
    wire = Wire()
    here, there = kit.client(wire), kit.client()
    lease = await here.lock("name", ttl=LONG, min_hold=MIN_HOLD).acquire()
    wire.lose["release"] = 1
    expect(await lease.release() is Outcome.RELEASED, "it is released")
    expect(not (await there.inspect("name")).waiters, "nobody waits")
    (await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)).check()


# -- downgrades ----------------------------------------------------------------------------------------------


async def _read(client: AsyncClient) -> AsyncLease:
    return await client.rwlock("name", ttl=LONG).read().acquire()


@check(weights=True, queue=True)
async def downgrade_admits_readers_but_no_writer(kit: Kit) -> None:
    """A writer that becomes a reader has the name all the time; readers that waited are let in, writers are not."""
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
    expect(lease.token == token, "it is the same lease")
    expect(not writer.done(), "nobody writes")
    await lease.downgrade()
    expect(await lease.extend() > 0, "it is renewed as before")
    for each in theirs:
        await each.release()
    expect(not writer.done(), "the former writer still reads")
    expect(await lease.release() is Outcome.RELEASED, "it is released as any other")
    (await writer.result()).check()


@check(weights=True)
async def downgrade_survives_a_lost_reply(kit: Kit) -> None:
    """A downgrade whose reply was lost is repeated, and is one downgrade."""
    wire = Wire()
    here, there = kit.client(wire), kit.client()
    lease = await here.rwlock("name", ttl=LONG).write().acquire()
    wire.lose["adjust"] = 1
    await lease.downgrade()
    theirs = await there.rwlock("name", ttl=LONG).read().try_acquire()
    expect(theirs is not None, "there is room for a reader")
    expect(len((await there.inspect("name")).holders) == 2, "each holds once")
    lease.check()


# -- permits ---------------------------------------------------------------------------------------------------


async def _refusal(refused: Coroutine[Any, Any, object]) -> str:
    """Return the UsageError that something ends in, or ""."""
    try:
        await refused
    except UsageError as error:
        return str(error)
    return ""


@check(weights=True, queue=True)
async def larger_semaphore_admits_waiters(kit: Kit) -> None:
    """A semaphore that grows lets in those who waited, without their asking again for another number."""
    here, there = kit.client(), kit.client()
    semaphore = here.semaphore("name", 2, ttl=LONG)
    lease = await semaphore.acquire(weight=2)
    waiting = kit.start(lambda: there.semaphore("name", 2, ttl=LONG).acquire())
    await kit.waiters(here, "name", 1)
    await semaphore.resize(4)
    (await waiting.result()).check()
    lease.check()
    expect(await semaphore.try_acquire() is not None, "the semaphore uses the new number itself")
    refusal = await _refusal(there.semaphore("name", 2, ttl=LONG).try_acquire())
    expect("4 permits" in refusal and "2 permits" in refusal, "who names the old number is told both")
    expect(await semaphore.try_acquire() is None, "and there are no more than that")


@check(weights=True, queue=True)
async def larger_semaphore_admits_waiters_of_its_client(kit: Kit) -> None:
    """A semaphore of one permit that grows lets in those of the same client who waited, and keeps its number."""
    client = kit.client()
    semaphore = client.semaphore("name", 1, ttl=LONG)
    lease = await semaphore.acquire()
    waiting = kit.start(semaphore.acquire)
    await kit.waiters(client, "name", 1)
    await semaphore.resize(3)
    (await waiting.result()).check()
    expect(await semaphore.try_acquire() is not None, "the name has the new number of permits")
    await lease.release()
    expect(await semaphore.try_acquire() is not None, "and keeps it when the first of them is released")


@check(weights=True, queue=True)
async def smaller_semaphore_revokes_no_lease(kit: Kit) -> None:
    """A semaphore that shrinks leaves holders what they hold, and waiters their places, but who wants too much."""
    here, there = kit.client(), kit.client()
    semaphore = here.semaphore("name", 3, ttl=LONG)
    first, second = await semaphore.acquire(weight=2), await semaphore.acquire()
    heavy = kit.start(lambda: kit.client().semaphore("name", 3, ttl=LONG).acquire(weight=3))
    await kit.waiters(here, "name", 1)
    light = kit.start(lambda: there.semaphore("name", 3, ttl=LONG).acquire())
    await kit.waiters(here, "name", 2)
    await semaphore.resize(2)
    refusal = await _refusal(heavy.result())
    expect("2 permits" in refusal and "3 permits" in refusal, "who wants more than there is is told so")
    first.check()
    second.check()
    expect(not light.done(), "more is held than there is")
    await second.release()
    expect(not light.done(), "all that there is is held")
    await first.release()
    (await light.result()).check()


@check(weights=True)
async def resize_requires_the_current_capacity(kit: Kit) -> None:
    """A number of permits is changed only by a semaphore that has it; any other is told both, and changes nothing."""
    here, there = kit.client(), kit.client()
    semaphore = here.semaphore("name", 3, ttl=LONG)
    lease = await semaphore.acquire()
    refusal = await _refusal(there.semaphore("name", 2, ttl=LONG).resize(5))
    expect("3 permits" in refusal and "from 2 to 5" in refusal, "who does not know it is told both numbers")
    lease.check()
    await semaphore.resize(4)
    await there.semaphore("name", 3, ttl=LONG).resize(4)  # asked again, as after a lost reply
    expect(await there.semaphore("name", 4, ttl=LONG).try_acquire(weight=3) is not None, "there are 4")
    free = here.semaphore("free", 2, ttl=LONG)
    await free.resize(1)
    expect(await free.try_acquire() is not None, "a name that nobody uses takes any number")


# -- asking for a name -------------------------------------------------------------------------------------------


@check()
async def holder_is_notified_of_a_revocation_request_once(kit: Kit) -> None:
    """A holder that is asked for the name is told once, is named, and loses nothing; nor does a lease after it."""
    here, judge = kit.client(owner="holder"), kit.client()
    expect(await judge.revoke("name") == [], "nobody is there to be asked")
    told: list[object] = []
    lease = await here.lock("name", ttl=LONG, on_revoke=told.append).acquire()
    await lease.extend()  # from its first renewal on, a holder can be told anything
    asked = await judge.revoke("name")
    expect([(each.owner, each.token) for each in asked] == [("holder", lease.token)], "the holder is named")

    async def heard() -> bool:
        return bool(told)

    await kit.until(heard, "the holder is told")
    expect(lease.revoking, "it shows on the lease")
    lease.check()
    await judge.revoke("name")
    late: list[object] = []
    lease.on_revoke(late.append)

    async def heard_late() -> bool:
        return bool(late)

    await kit.until(heard_late, "who begins to listen is told at once")
    expect((len(told), len(late)) == (1, 1), "each is told once")
    await lease.release()
    after = await here.lock("name", ttl=LONG, on_revoke=told.append).acquire()
    expect(not after.revoking, "the next lease was not asked for")
    expect(len(told) == 1, "nor told")


@check()
async def late_revocation_request_reaches_no_later_lease(kit: Kit) -> None:
    """What asked for an earlier lease, and comes late, does not reach the next one of the same client."""
    wire = Wire()
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

    await kit.until(asked, "a question of its own reaches a lease")
    expect(not second.revoking, "those of others do not")
    second.check()
