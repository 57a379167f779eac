"""Checks of the lifecycle of a lease: its renewal, and its end by release, expiry, revocation or `max_hold`."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from tenure import AsyncClient, AsyncLease
from tenure.contracts.deadlines import DRIFT
from tenure.contracts.messages import Notification, NotificationKind
from tenure.core.lease import LeaseState
from tenure.errors import LeaseLost
from tenure.outcome import Outcome
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, expect
from tenure_testing.conformance.wire import FaultyWire

KEPT = 5.0
"""A ttl that does not expire during a check, in seconds: no machine stands still for so long."""

LONG = 20.0


def is_lost(lease: AsyncLease) -> bool:
    """Tell whether a lease is lost. Raises Violation if `lost`, `check`, `remaining` and `state` differ."""
    try:
        lease.check()
        checked = True
    except LeaseLost:
        checked = False
    if lease.lost.is_set():
        expect(not checked, "a lost lease fails its check")
        expect(lease.remaining() == 0, "a lost lease has no time left")
        expect(lease.state is LeaseState.LOST, "a lost lease is in the state LOST")
    return lease.lost.is_set()


def expect_whole(kit: Kit, lease: AsyncLease, since: float) -> None:
    """Expect that a lease of `KEPT` seconds, requested at `since`, lasts its whole ttl."""
    gone_by = kit.now() - since
    expect(lease.remaining() + gone_by >= 0.95 * KEPT, f"{lease.remaining():.2f} s remain of {KEPT:g} s")


@check()
async def lease_lasts_its_whole_ttl(kit: Kit) -> None:
    """A lease that is granted at once lasts its whole ttl from the acquire request on."""
    here, asked_at = kit.client(), kit.now()
    expect_whole(kit, await here.lock("name", ttl=KEPT).acquire(), asked_at)
    asked_at = kit.now()
    expect_whole(kit, await here.lock("other", ttl=KEPT).acquire(timeout=0), asked_at)


@check()
async def lease_of_a_waiter_lasts_its_whole_ttl(kit: Kit) -> None:
    """A lease that a waiter gets by a hand-off lasts its whole ttl from the last request of the waiter on."""
    here, there = kit.client(), kit.client()
    first = await here.lock("name", ttl=KEPT).acquire()
    asked_at = kit.now()
    waiting = kit.start(lambda: there.lock("name", ttl=KEPT).acquire())
    if kit.capabilities.queue:
        await kit.waiters(here, "name", 1)
    await first.release()
    expect_whole(kit, await waiting.result(), asked_at)


@check(exercises="store", tokens=True)
async def silent_holder_loses_the_lease(kit: Kit) -> None:
    """A holder that cannot renew learns at its local deadline that its lease is lost, before anybody is granted."""
    wire = FaultyWire()
    wire.cut = True
    here, there = kit.client(wire), kit.client()
    told: list[LeaseLost] = []
    asked_at = kit.now()
    lease = await here.lock("name", ttl=kit.short, on_lost=told.append).acquire()
    expect(lease.remaining() <= kit.short, "the remaining time is within the ttl")
    expect(
        not is_lost(lease) or kit.may_be_over(asked_at),
        "no lease is lost before its deadline",
    )
    theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    expect(lease.lost.is_set(), "the old holder knew of the loss before the next holder was granted")
    expect(is_lost(lease), "the lease is lost")
    expect(await lease.lost.wait(TEST_TIMEOUT), "`lost.wait` returns")
    expect(theirs.token > lease.token, "the next token is larger")

    async def was_told() -> bool:
        return len(told) > 0

    await kit.until(was_told, "on_lost called")
    expect(len(told) == 1, "on_lost is called once")
    theirs.check()


@check(exercises="store")
async def unrenewed_lease_ends_when_extend_says(kit: Kit) -> None:
    """With `renew=False` a lease ends at its ttl, though its holder lives; `extend` moves its end either way."""
    here, there = kit.client(), kit.client()
    ended = await here.lock("name", ttl=kit.short, renew=False).acquire()
    (await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)).check()
    expect(is_lost(ended), "the lease ended before another was granted")

    extended = await here.lock("other", ttl=KEPT, renew=False).acquire()
    expect(await extended.extend(LONG) > KEPT, "an extension prolongs the lease")
    expect(await extended.extend(kit.short) <= kit.short, "an extension shortens the lease")
    (await there.lock("other", ttl=LONG).acquire(timeout=TEST_TIMEOUT)).check()
    expect(is_lost(extended), "the shortened lease ended before another was granted")


@check()
async def lease_is_lost_while_a_renewal_hangs(kit: Kit) -> None:
    """A lease is lost at its local deadline even while a renewal hangs."""
    wire = FaultyWire()
    wire.stalled = True
    told: list[LeaseLost] = []
    lease = await kit.client(wire).lock("name", ttl=kit.short, on_lost=told.append).acquire()
    expect(await lease.lost.wait(TEST_TIMEOUT), "`lost.wait` returns")

    async def was_told() -> bool:
        return len(told) > 0

    await kit.until(was_told, "on_lost called while the renewal hangs")
    expect(is_lost(lease), "the lease is lost")
    wire.stalled = False


@check()
async def failed_renewal_is_no_loss(kit: Kit) -> None:
    """A failed renewal puts a lease at risk; a renewal that succeeds in time makes the lease safe again."""
    wire = FaultyWire()
    lease = await kit.client(wire).lock("name", ttl=LONG).acquire()
    wire.cut = True
    _renew_soon(wire)

    async def at_risk() -> bool:
        return lease.state is LeaseState.AT_RISK

    async def held() -> bool:
        return lease.state is LeaseState.HELD

    await kit.until(at_risk, "a lease at risk")
    lease.check()
    wire.cut = False
    await kit.until(held, "a lease out of risk")
    lease.check()
    expect(await lease.release() is Outcome.RELEASED, "the lease was held until its release")


@check(exercises="store", records=True)
async def renewal_keeps_the_lease(kit: Kit) -> None:
    """A live holder keeps its lease beyond the ttl: the lease is renewed, and nobody else is granted meanwhile."""
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    lease = await here.lock("name", ttl=LONG).acquire()
    await kit.pause(0.05)
    _renew_soon(wire)

    async def renewed() -> bool:
        (holder,) = (await there.inspect("name")).holders
        return holder.held_for + holder.expires_in > LONG + 0.04  # a delay of the check does not change this sum

    await kit.until(renewed, "a renewal in the background")
    lease.check()
    expect(await lease.release() is Outcome.RELEASED, "the lease was held until its release")


@check(exercises="store")
async def renewed_lease_outlives_its_ttl(kit: Kit) -> None:
    """A lease that was renewed in time is still held when the ttl of its grant is over."""
    raw, there = await kit.raw(), kit.client()
    while True:
        request, asked_at = raw.request("name", ttl=kit.short), kit.now()
        token = await raw.acquire_free(request)
        if await raw.renew(request, token, LONG) is None:
            break
        expect(kit.now() - asked_at >= kit.short, "a renewal in time is not refused")
    await kit.pause(asked_at + 1.5 * kit.short - kit.now())
    expect(await there.lock("name", ttl=LONG).try_acquire() is None, "nobody else is granted a renewed lease's name")
    expect(kit.is_held(await raw.inspect("name"), token), "the holder is the same")
    expect(await raw.release(request, token) is Outcome.RELEASED, "the lease was held until its release")


@check(exercises="store")
async def extend_lengthens_the_lease(kit: Kit) -> None:
    """`extend` renews a lease at once, with a new ttl, in the store as well."""
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    lease = await here.lock("name", ttl=KEPT).acquire()
    remaining = await lease.extend(LONG)
    expect(KEPT < remaining <= LONG, f"{remaining} s remain of {LONG} s")
    wire.cut = True
    holder = (await there.inspect("name")).holders[0]
    if kit.shows_leases:
        expect(holder.expires_in > lease.remaining(), "the store keeps the lease longer than its holder does")
        expect(holder.ttl == LONG, "inspect shows the new ttl")
    lease.check()


@check(exercises="store")
async def lost_lease_cannot_be_extended(kit: Kit) -> None:
    """`extend` of an expired lease raises LeaseLost, and the lease stays lost."""
    wire = FaultyWire()
    wire.cut = True
    lease = await kit.client(wire).lock("name", ttl=kit.short).acquire()
    await lease.lost.wait(TEST_TIMEOUT)
    wire.cut = False
    extended = True
    try:
        await lease.extend(LONG)
    except LeaseLost:
        extended = False
    expect(not extended, "a lost lease is not extended")
    expect(is_lost(lease), "the lease stays lost")


@check(tokens=True)
async def max_hold_ends_the_lease(kit: Kit) -> None:
    """A lease lasts no longer than max_hold, so that a stuck holder loses the name, in the store as well."""
    here, there = kit.client(), kit.client()
    asked_at = kit.now()
    lease = await here.lock("name", ttl=LONG, max_hold=kit.short).acquire()
    expect(await lease.lost.wait(TEST_TIMEOUT), "max_hold ends the lease")
    expect(kit.may_be_over(asked_at), "max_hold does not end the lease early")
    theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    expect(is_lost(lease), "the lease is lost")
    expect(theirs.token > lease.token, "the next token is larger")


def _renew_soon(wire: FaultyWire) -> None:
    """Make the client renew its leases soon, as it does when its store may have forgotten some."""
    wire.push(Notification("", NotificationKind.GAP, ""))


async def _silent_lease(kit: Kit, *, lock_delay: float = 0.0) -> AsyncLease:
    """Acquire a lease whose renewals fail."""
    wire = FaultyWire()
    wire.cut = True
    return await kit.client(wire).lock("name", ttl=kit.short, lock_delay=lock_delay).acquire()


@check(exercises="store", records=True)
async def lock_delay_follows_expiry_only(kit: Kit) -> None:
    """After an expiry nobody is granted for the lock delay; after a release the name is free at once."""
    there = kit.client()
    delay = 2 * kit.short
    lease = await kit.client().lock("name", ttl=LONG, lock_delay=delay).acquire()
    await lease.release()
    free = await there.lock("name", ttl=LONG).try_acquire()
    expect(free is not None, "no delay after a release")
    if free is not None:
        await free.release()
    asked_at = kit.now()
    await _silent_lease(kit, lock_delay=delay)
    theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    waited = kit.now() - asked_at
    least = (kit.short + delay) * (1 - DRIFT)
    expect(waited >= least, f"granted {waited:.3f} s after the request; the lease and its delay take {least:.3f} s")
    theirs.check()


@check(exercises="store")
async def release_returns_the_outcome(kit: Kit) -> None:
    """A release returns RELEASED for a held lease, EXPIRED for an expired one, and TAKEN_OVER after another grant."""
    there = kit.client()
    lease = await there.lock("name", ttl=LONG).acquire()
    expect(await lease.release() is Outcome.RELEASED, "a held lease is released")
    expired = await _silent_lease(kit)
    ends_at = kit.now() + kit.short
    await kit.free(there, "name")
    while (left := ends_at - kit.now()) > 0:  # a store whose clock stood still may end a lease before its client does
        await kit.pause(left)
    expect(await expired.release() is Outcome.EXPIRED, "the release of an expired lease returns EXPIRED")
    followed = await _silent_lease(kit)
    theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    outcome = await followed.release()
    expect(outcome is Outcome.TAKEN_OVER, f"a lease that another followed is taken over, not {outcome}")
    theirs.check()


@check(tokens=True)
async def release_is_idempotent(kit: Kit) -> None:
    """A repeated release returns the same outcome and does not touch the next holder."""
    here, there = kit.client(), kit.client()
    lease = await here.lock("name", ttl=LONG).acquire()
    expect(await lease.release() is Outcome.RELEASED, "a held lease is released")
    theirs = await there.lock("name", ttl=LONG).acquire()
    expect(await lease.release() is Outcome.RELEASED, "a repeated release returns the same outcome")
    await _untouched(there, theirs)


@check(tokens=True)
async def late_release_harms_no_later_holder(kit: Kit) -> None:
    """The late release of an expired lease does not touch the next holder."""
    there = kit.client()
    old = await _silent_lease(kit)
    theirs = await there.lock("name", ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    await old.release()
    await _untouched(there, theirs)


async def _untouched(client: AsyncClient, lease: AsyncLease) -> None:
    lease.check()
    view = await client.inspect("name")
    expect([holder.token for holder in view.holders] == [lease.token], "the new holder keeps the name")


@check(exercises="store", tokens=True)
async def revoke_takes_the_name(kit: Kit) -> None:
    """`revoke` with force takes a name: its holder is notified, and the next waiter is granted a larger token."""
    here, there, judge = kit.client(owner="victim"), kit.client(), kit.client()
    expect(await judge.revoke("name", force=True) == [], "the revocation of a free name has no victim")
    lease = await here.lock("name", ttl=KEPT).acquire()
    waiting = kit.start(lambda: there.lock("name", ttl=LONG).acquire())
    if kit.capabilities.queue:
        await kit.waiters(judge, "name", 1)
    victims = await judge.revoke("name", force=True)
    expect([(each.owner, each.token) for each in victims] == [("victim", lease.token)], "the reply names the victim")
    theirs = await waiting.result()
    expect(theirs.token > lease.token, "the next token is larger")
    expect(await lease.lost.wait(TEST_TIMEOUT), "the victim is notified")
    expect(is_lost(lease), "the lease is lost")
    expect(await lease.release() is Outcome.TAKEN_OVER, "the victim's release returns TAKEN_OVER")
    await _untouched(judge, theirs)


@check(exercises="store", tokens=True)
async def revoked_lease_is_never_released(kit: Kit) -> None:
    """A release after a revocation that the holder never heard of does not return RELEASED.

    Neither if another holds the name and the first reply to the release is lost, nor if the name is free again.
    """
    for another_follows in (True, False):
        name = f"name-{another_follows}"
        wire = FaultyWire()
        wire.cut = wire.unaware = True
        here, there = kit.client(wire), kit.client()
        lease = await here.lock(name, ttl=KEPT).acquire()
        await there.revoke(name, force=True)
        theirs = await there.lock(name, ttl=LONG).acquire()
        if another_follows:
            wire.lose["release"] = 1
        else:
            await theirs.release()
        outcome = await lease.release()
        expect(outcome is not Outcome.RELEASED, f"the release of a revoked lease returns {outcome}")
        if another_follows:
            theirs.check()
            view = await there.inspect(name)
            expect([holder.token for holder in view.holders] == [theirs.token], "the new holder keeps the name")


@check(tokens=True)
async def revoke_takes_a_name_by_its_token(kit: Kit) -> None:
    """`revoke` with a token takes a name from the holder of that token only, not from an earlier or later holder."""
    here, judge = kit.client(), kit.client()
    earlier = await here.lock("name", ttl=KEPT).acquire()
    await earlier.release()
    lease = await here.lock("name", ttl=KEPT).acquire()
    (shown,) = (await judge.inspect("name")).holders
    expect(await judge.revoke("name", force=True, token=shown.token - 1) == [], "another token has no victim")
    await _untouched(judge, lease)
    victims = await judge.revoke("name", force=True, token=shown.token)
    expect([each.token for each in victims] == [shown.token], "the reply names the victim")
    expect(await lease.lost.wait(TEST_TIMEOUT), "the victim is notified")
    expect(not (await judge.inspect("name")).holders, "nobody holds a revoked name")


@check(weights=True)
async def revoke_takes_a_permit_by_its_token(kit: Kit) -> None:
    """`revoke` with a token takes one of several permits: a waiter is granted it, and other holders keep theirs."""
    here, there, judge = kit.client(owner="here"), kit.client(owner="there"), kit.client()
    kept = await here.semaphore("name", 2, ttl=KEPT).acquire()
    taken = await there.semaphore("name", 2, ttl=KEPT).acquire()
    waiting = kit.start(lambda: kit.client().semaphore("name", 2, ttl=LONG).acquire())
    if kit.capabilities.queue:
        await kit.waiters(judge, "name", 1)
    victims = await judge.revoke("name", force=True, token=taken.token)
    expect([each.owner for each in victims] == ["there"], "the reply names the victim, and nobody else")
    expect(await taken.lost.wait(TEST_TIMEOUT), "the victim is notified")
    theirs = await waiting.result()
    kept.check()
    expect(theirs.token > max(kept.token, taken.token), "the next token is larger")
    holders = {holder.token for holder in (await judge.inspect("name")).holders}
    expect(holders == {kept.token, theirs.token}, "the others keep their permits")


@check(records=True)
async def revoked_token_is_fenced(kit: Kit) -> None:
    """The token of a revoked lease is smaller than the last token of the name, even if no holder followed."""
    here, judge = kit.client(), kit.client()
    lease = await here.lock("name", ttl=KEPT).acquire()
    await judge.revoke("name", force=True)
    view = await judge.inspect("name")
    expect(not view.holders, "nobody holds a revoked name")
    expect(view.last_token > lease.token, "the revoked token is not the last")
    await lease.lost.wait(TEST_TIMEOUT)
    expect(await lease.release() is Outcome.TAKEN_OVER, "a revoked lease is not released by its holder")
