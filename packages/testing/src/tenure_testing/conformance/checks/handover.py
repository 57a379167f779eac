"""Checks of leases that are handed over: detached by one client, and adopted by another by their handle."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from tenure import AsyncClient, AsyncLease
from tenure.core.lease import LeaseState
from tenure.errors import LeaseLost, LockTimeout
from tenure.outcome import Outcome
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, expect
from tenure_testing.conformance.wire import FaultyWire

T = TypeVar("T")

LONG = 20.0

BRIEF = 3.0
"""A ttl that expires during a check, but not while a busy machine sends a few requests, in seconds."""


def holds(lease: AsyncLease) -> bool:
    """Tell whether a holder takes the lease for its own."""
    return lease.remaining() > 0


async def _is_ended(client: AsyncClient, handle: str) -> bool:
    try:
        await client.adopt(handle)
    except LeaseLost:
        return True
    return False


async def _in_time(kit: Kit, work: Callable[[], Awaitable[T]]) -> T:
    """Do `work()`, which takes several requests for a short lease; again if a machine that stood still let it end."""
    while True:
        began = kit.now()
        try:
            return await work()
        except LeaseLost:
            expect(kit.may_be_over(began), "no lease ends before its ttl")


@check(exercises="store", hands_over=True)
async def detached_lease_is_adopted_without_a_gap(kit: Kit) -> None:
    """The name of a detached lease is held until it is adopted, and after: nobody else is granted it in between."""
    here, there, other = kit.client(owner="first"), kit.client(owner="second"), kit.client()
    lease = await here.lock("name", ttl=LONG).acquire()
    waiting = kit.start(lambda: other.lock("name", ttl=LONG).acquire())
    if kit.capabilities.shows_waiters:
        await kit.waiters(there, "name", 1)
    handle = await lease.detach(reason="a deploy")
    expect(lease.state is LeaseState.DETACHED and not holds(lease), "the first owner holds nothing")
    expect(await other.lock("other").try_acquire() is not None, "other names are free")
    holder = (await there.inspect("name")).holders[0]
    expect(
        (holder.owner, holder.reason, holder.detached) == ("first", "a deploy", True), "the store shows it as detached"
    )
    expect(not waiting.done(), "a waiter is not granted a name whose lease is detached")
    adopted = await there.adopt(handle)
    adopted.check()
    expect(adopted.token > lease.token, "tokens increase")
    expect(adopted.ttl == LONG, "the ttl is that of the handle")
    holder = (await here.inspect("name")).holders[0]
    expect((holder.owner, holder.reason, holder.detached) == ("second", "a deploy", False), "the adopter is the owner")
    expect(holder.token == adopted.token, "the store shows the token of the adopter")
    expect(await adopted.extend() > LONG / 2, "the adopter renews the lease")
    expect(await lease.release() is Outcome.DETACHED, "the first owner releases nothing")
    expect(not waiting.done(), "a waiter is not granted a name whose lease was adopted")
    expect(await adopted.release() is Outcome.RELEASED, "the adopter releases the lease")
    theirs = await waiting.result()
    expect(theirs.token > adopted.token, "tokens increase")
    expect(await _is_ended(here, handle), "a handle whose lease was released is worth nothing")


@check(hands_over=True)
async def leaving_the_body_of_a_detached_lease_releases_nothing(kit: Kit) -> None:
    """A body that detaches its lease is left without an error, and the name stays held, though its client is closed."""
    here, there = kit.client(), kit.client()
    async with here.lock("name", ttl=LONG) as lease:
        handle = await lease.detach()
        told = ""
        try:
            lease.check()
        except LeaseLost as error:
            told = str(error)
        expect("detached" in told, "a detached lease fails its check, and the error says why")
    await here.close()
    expect(await there.lock("name", ttl=LONG).try_acquire() is None, "the name stays held")
    (await there.adopt(handle)).check()


@check(exercises="store", hands_over=True)
async def hand_over_survives_lost_replies(kit: Kit) -> None:
    """A lease is detached and adopted once, though the first reply to each request was lost."""
    here_wire, there_wire = FaultyWire(), FaultyWire()
    here, there = kit.client(here_wire), kit.client(there_wire)
    lease = await here.lock("name", ttl=LONG).acquire()
    here_wire.lose["adjust"] = there_wire.lose["adjust"] = 1
    handle = await lease.detach()
    adopted = await there.adopt(handle)
    expect((here_wire.lose["adjust"], there_wire.lose["adjust"]) == (0, 0), "each request was sent again")
    adopted.check()
    expect(await adopted.extend() > LONG / 2, "the adopter renews the lease")
    expect(len((await here.inspect("name")).holders) == 1, "the name has one holder")
    expect(await adopted.release() is Outcome.RELEASED, "the adopter releases the lease")


@check(exercises="store", hands_over=True)
async def second_adopter_holds_after_the_first(kit: Kit) -> None:
    """Of two adopters the last one holds the lease, and only when the first does not take it for its own any more."""
    wire = FaultyWire()
    wire.unaware = True
    here, first, second = kit.client(), kit.client(wire), kit.client()
    handle = await (await here.lock("name", ttl=LONG).acquire()).detach()
    early = await first.adopt(handle, BRIEF)
    wire.cut = True  # it does not hear that its renewals are refused
    late = await second.adopt(handle)
    expect(not holds(early), "the first adopter took the lease for lost before the second held it")
    expect(late.token > early.token, "tokens increase")
    late.check()
    await early.release()
    expect(await late.extend() > 0, "what the first adopter releases is not the lease of the second")
    expect(await late.release() is Outcome.RELEASED, "the last adopter releases the lease")


@check(hands_over=True)
async def earlier_adopter_is_refused(kit: Kit) -> None:
    """An adopter whose lease was adopted once more is refused a renewal, and learns that its lease is lost."""
    wire = FaultyWire()
    wire.unaware = True
    here, first, second = kit.client(), kit.client(wire), kit.client()
    handle = await (await here.lock("name", ttl=LONG).acquire()).detach()
    early = await first.adopt(handle, BRIEF)
    adopting = kit.start(lambda: second.adopt(handle))
    expect(await early.lost.wait(TEST_TIMEOUT), "the first adopter is told that its lease is lost")
    late = await adopting.result()
    expect(not holds(early), "one adopter holds the lease")
    late.check()


@check(hands_over=True)
async def simultaneous_adopters_never_both_hold(kit: Kit) -> None:
    """Of clients that adopt one lease at the same time, each that gets it finds that no other holds it."""
    here = kit.client()
    handle = await (await here.lock("name", ttl=LONG).acquire()).detach()
    held: list[AsyncLease] = []

    async def adopt(client: AsyncClient) -> None:
        try:
            lease = await client.adopt(handle, BRIEF)
        except LeaseLost:  # another has adopted it meanwhile
            return
        others = [other for other in held if holds(other)]
        expect(not others, "no other adopter takes the lease for its own")
        held.append(lease)

    running = [kit.start(partial(adopt, kit.client())) for _ in range(4)]
    for each in running:
        await each.result()
    expect(bool(held), "one of them gets the lease")
    expect(sum(map(holds, held)) <= 1, "one of them holds the lease")


@check(exercises="store", hands_over=True)
async def lease_of_a_dead_adopter_is_free_after_its_ttl(kit: Kit) -> None:
    """A lease whose adopter falls silent is free after the ttl that the adopter chose, be it shorter than before."""
    wire = FaultyWire()
    here, there, other = kit.client(), kit.client(wire), kit.client()

    async def hand_over() -> tuple[str, AsyncLease]:
        handle = await (await here.lock("name", ttl=LONG).acquire()).detach()
        return handle, await there.adopt(handle, kit.short)

    handle, adopted = await _in_time(kit, hand_over)
    wire.cut = True
    theirs = await other.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    expect(not holds(adopted), "the adopter took the lease for lost before the next holder was granted")
    expect(theirs.token > adopted.token, "tokens increase")
    expect(await _is_ended(here, handle), "a handle whose lease ran out is worth nothing")


@check(hands_over=True)
async def lease_that_nobody_adopts_is_free_after_its_ttl(kit: Kit) -> None:
    """A detached lease lasts for the ttl of its handle, and then others are granted the name."""
    here, there = kit.client(), kit.client()

    async def detach() -> str:
        return await (await here.lock("name", ttl=kit.short).acquire()).detach()

    handle = await _in_time(kit, detach)
    theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    theirs.check()
    expect(await _is_ended(here, handle), "a handle whose lease ran out is worth nothing")


@check(hands_over=True)
async def adopter_that_may_not_wait_changes_nothing(kit: Kit) -> None:
    """An adoption that would have to wait for an earlier adopter for too long raises LockTimeout, and takes nothing."""
    here, first, second = kit.client(), kit.client(), kit.client()
    handle = await (await here.lock("name", ttl=LONG).acquire()).detach()
    early = await first.adopt(handle, timeout=0)
    refused = False
    try:
        await second.adopt(handle, timeout=0.1)
    except LockTimeout:
        refused = True
    expect(refused, "an adoption that has to wait raises LockTimeout")
    expect(await early.extend() > LONG / 2, "the earlier adopter keeps the lease")


@check(hands_over=True)
async def adopted_lease_is_detached_again(kit: Kit) -> None:
    """An adopter hands the lease on by a handle of its own; the handle before is worth nothing from then on."""
    here, there = kit.client(), kit.client()
    first = await (await here.lock("name", ttl=LONG).acquire()).detach(reason="why")
    adopted = await there.adopt(first)
    second = await adopted.detach(reason="why else")
    expect(await _is_ended(here, first), "the first handle is worth nothing")
    again = await here.adopt(second, timeout=0)
    expect(again.token > adopted.token, "tokens increase")
    expect((await there.inspect("name")).holders[0].reason == "why else", "the store shows the last reason")


@check(exercises="store", hands_over=True, notified=True)
async def adopter_hears_revocation_requests(kit: Kit) -> None:
    """A revocation request, and a revocation by force, reach the client that has adopted the lease."""
    here, there = kit.client(), kit.client()
    lease = await there.adopt(await (await here.lock("name", ttl=LONG).acquire()).detach(), BRIEF)

    async def asked() -> bool:
        await here.revoke("name")
        return lease.revoking

    await kit.until(asked, "the revocation request at the adopter")
    await here.revoke("name", force=True)
    expect(await lease.lost.wait(TEST_TIMEOUT), "the adopter is told that its lease was revoked")


@check(exercises="store", hands_over=True, weights=True)
async def lease_that_shares_a_name_is_handed_over(kit: Kit) -> None:
    """A lease of a semaphore is handed over beside the others, though those are granted tokens meanwhile."""
    here, there = kit.client(), kit.client()
    semaphore = here.semaphore("name", 3, ttl=LONG)
    lease = await semaphore.acquire(weight=2)
    beside = await semaphore.acquire()
    handle = await lease.detach()
    expect(await semaphore.try_acquire() is None, "its permits stay held")
    await beside.release()
    beside = await semaphore.acquire()
    adopted = await there.adopt(handle)
    expect(adopted.token > beside.token, "its token is the last")
    expect(await there.semaphore("name", 3, ttl=LONG).try_acquire() is None, "its permits stay held")
    expect(await adopted.release() is Outcome.RELEASED, "the adopter releases it")
    expect(await semaphore.try_acquire(weight=2) is not None, "its permits are free")
    beside.check()


@check(hands_over=True)
async def local_waiters_go_on_after_a_detachment(kit: Kit) -> None:
    """A waiter of the client that detaches its lease is granted the name when the adopter releases it."""
    here, there = kit.client(), kit.client()
    lock = here.lock("name", ttl=LONG)
    lease = await lock.acquire()
    waiting = kit.start(lock.acquire)
    if kit.capabilities.shows_waiters:
        await kit.waiters(here, "name", 1)
    adopted = await there.adopt(await lease.detach())
    expect(not waiting.done(), "the waiter waits")
    await adopted.release()
    (await waiting.result()).check()
