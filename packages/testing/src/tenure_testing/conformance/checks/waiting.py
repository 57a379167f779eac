"""Checks of waiting: its order, its timeout, its notifications, and that a failed wait leaves nothing behind."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tenure import AsyncClient, AsyncLease
from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import Notification, NotificationKind, Queued
from tenure.core.access import INTERVAL
from tenure.errors import LockTimeout, StoreUnavailable
from tenure.outcome import Outcome
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, Running, expect, timed_out
from tenure_testing.conformance.wire import FaultyWire

T = TypeVar("T")

TTL = 20.0
"""Long enough that no lease expires in these checks."""

ROUNDS = 10
"""How many attempts a check makes, at most, at an operation that must be quick once."""


@check()
async def timeout_is_kept(kit: Kit) -> None:
    """An acquisition that times out raises LockTimeout, neither early nor late, and leaves no waiter behind."""
    here, there = kit.client(owner="holder"), kit.client()
    lease = await here.lock("name", ttl=TTL).acquire()
    holder = "holder" if kit.shows_leases else (await here.inspect("name")).holders[0].owner
    expect(holder, "the holder is shown")
    for timeout in (0, 0.15):
        started = kit.now()
        error = await timed_out(there.lock("name", ttl=TTL).acquire(timeout=timeout))
        took = kit.now() - started
        expect(error is not None, "a held name times out")
        expect(holder in str(error), "the error names the holder")
        expect(timeout <= took <= timeout + TEST_TIMEOUT / 4, f"a timeout of {timeout} s took {took:.3f} s")
    view = await here.inspect("name")
    expect(not view.waiters, "a timeout leaves no waiter")
    lease.check()
    await lease.release()
    again = await here.lock("name", ttl=TTL).try_acquire()
    expect(again is not None, "a waiter that timed out is not granted later")


@check(exercises="store", queue=True)
async def waiters_are_served_in_order(kit: Kit) -> None:
    """Waiters of different clients are granted in the order in which they joined the queue."""
    clients = [kit.client() for _ in range(7)]
    lease = await clients[0].lock("name", ttl=TTL).acquire()
    served: list[int] = []

    async def wait(number: int) -> None:
        async with clients[number + 1].lock("name", ttl=TTL):
            served.append(number)

    running: list[Running[None]] = []
    for number in range(6):
        running.append(kit.start(partial(wait, number)))
        await kit.waiters(clients[0], "name", number + 1)
    await lease.release()
    for each in running:
        await each.result()
    expect(served == list(range(6)), f"waiters are served in order, not {served}")


@check(queue=True)
async def waiters_of_a_client_are_served_in_order(kit: Kit) -> None:
    """Waiters of one client are granted in the order of their arrival, with increasing tokens, by hand-offs."""
    client = kit.client()
    lease = await client.lock("name", ttl=TTL).acquire()
    served: list[tuple[int, int]] = []

    async def wait(number: int) -> None:
        async with client.lock("name", ttl=TTL) as mine:
            served.append((mine.token, number))

    running: list[Running[None]] = []
    for number in range(6):
        running.append(kit.start(partial(wait, number)))
        await kit.waiters(client, "name", number + 1)
    await lease.release()
    for each in running:
        await each.result()
    expect([number for _, number in served] == list(range(6)), f"waiters are served in order, not {served}")
    expect(sorted(served) == served and served[0][0] > lease.token, f"tokens increase with each hand-off: {served}")


@check(queue=True, barging=True)
async def waiter_that_may_be_passed_is_granted(kit: Kit) -> None:
    """A waiter with fair=False or fair=True is granted though other clients acquire the name again and again."""
    clients = [kit.client() for _ in range(4)]
    ended, inside = False, 0

    async def take_again_and_again(client: AsyncClient) -> None:
        nonlocal inside
        while not ended:
            async with client.lock("name", ttl=TTL, fair=False):
                inside += 1
                expect(inside == 1, "one holder at a time")
                await kit.pause()
                inside -= 1

    running = [kit.start(partial(take_again_and_again, client)) for client in clients[:2]]
    try:
        for client, fair in ((clients[2], False), (clients[3], True)) * 2:
            lease = await client.lock("name", ttl=TTL, timeout=TEST_TIMEOUT, fair=fair).acquire()
            expect(not inside, "one holder at a time")
            await lease.release()
    finally:
        ended = True
        for each in running:
            await each.result()


@check(queue=True)
async def contended_client_hands_the_name_over(kit: Kit) -> None:
    """A client that always has waiters of its own still releases the name for a waiter of another client."""
    here, there = kit.client(), kit.client()
    ended = False

    async def take_again_and_again() -> int:
        taken = 0
        while not ended:
            async with here.lock("name", ttl=TTL):
                taken += 1
                await kit.pause()
        return taken

    crowd = [kit.start(take_again_and_again) for _ in range(3)]
    for _ in range(5):
        async with there.lock("name", ttl=TTL, timeout=TEST_TIMEOUT):
            pass
    ended = True
    expect(sum([await each.result() for each in crowd]) > 0, "the waiters of the first client were granted, too")


@check(queue=True)
async def newcomer_does_not_overtake(kit: Kit) -> None:
    """Nobody is granted a name ahead of a waiter, not even a holder that acquires it again at once."""
    here, there = kit.client(), kit.client()
    lock = here.lock("name", ttl=TTL)
    lease = await lock.acquire()
    waiting = kit.start(lambda: there.lock("name", ttl=TTL).acquire())
    await kit.waiters(here, "name", 1)
    await lease.release()
    expect(await lock.try_acquire() is None, "the waiter is granted first")
    theirs = await waiting.result()
    expect(theirs.token > lease.token, "the waiter was granted next")


@check(exercises="store", queue=True)
async def release_hands_off_at_once(kit: Kit) -> None:
    """A release hands the name off to the next waiter in the same step, not at the waiter's next re-poll."""
    here, there = kit.client(), kit.client()
    took: list[float] = []
    while not took or (min(took) >= seconds(INTERVAL) / 2 and len(took) < ROUNDS):
        lease = await here.lock("name", ttl=TTL).acquire()
        waiting = kit.start(lambda: there.lock("name", ttl=TTL).acquire())
        await kit.waiters(here, "name", 1)  # the waiter has just sent its request: its re-poll is an interval away
        released_at = kit.now()
        await lease.release()
        theirs = await waiting.result()
        took.append(kit.now() - released_at)
        await theirs.release()
    interval = seconds(INTERVAL)
    expect(min(took) < interval / 2, f"hand-offs took {took}; a re-poll would have taken about {interval} s")


async def short_waiter(kit: Kit, watcher: AsyncClient, wait: Callable[[float], Coroutine[Any, Any, T]]) -> Running[T]:
    """Start a waiter for "name" with a short timeout, but long enough that this machine sees it in the queue."""
    timeout = 0.1
    while True:
        running = kit.start(partial(wait, timeout))

        async def waits_or_gave_up(running: Running[T] = running) -> bool:
            return running.done() or bool((await watcher.inspect("name")).waiters)

        await kit.until(waits_or_gave_up, "a waiter in the queue")
        if not running.done():
            return running
        timeout *= 2


@check(queue=True)
async def timed_out_waiter_is_skipped(kit: Kit) -> None:
    """A waiter that timed out does not delay the waiters behind it."""
    here, there = kit.client(), kit.client()
    lease = await here.lock("name", ttl=TTL).acquire()
    await there.names()  # connects, so that the whole timeout is left for the wait
    lock = there.lock("name", ttl=TTL)
    first = await short_waiter(kit, here, lambda timeout: timed_out(lock.acquire(timeout=timeout)))
    second = kit.start(lambda: there.lock("name", ttl=TTL).acquire())
    expect(await first.result() is not None, "the first waiter timed out")
    await kit.waiters(here, "name", 1)
    await lease.release()
    theirs = await second.result()
    theirs.check()


@check(exercises="store", queue=True)
async def dead_waiter_is_skipped(kit: Kit) -> None:
    """A waiter that died is skipped once its waiter_ttl, and a provisional grant to it, have expired."""
    dead, here, there = await kit.raw(), kit.client(), kit.client()
    lease = await here.lock("name", ttl=TTL).acquire()
    reply = await dead.acquire(dead.request("name", waiter_ttl=0.4, ttl=0.4))
    expect(isinstance(reply, Queued), "a request for a held name is queued")
    await dead.close()
    waiting = kit.start(lambda: there.lock("name", ttl=TTL).acquire())
    await _live_waiter(kit, here)
    await lease.release()
    theirs = await waiting.result()
    theirs.check()


async def _live_waiter(kit: Kit, client: AsyncClient) -> None:
    """Wait until the queue has a live waiter."""

    async def alive() -> bool:
        return any(waiter.alive and waiter.owner == "check" for waiter in (await client.inspect("name")).waiters)

    await kit.until(alive, "a live waiter in the queue")


@check(queue=True)
async def lost_notification_only_delays(kit: Kit) -> None:
    """A waiter whose notification was lost learns of its grant at its re-poll, before the grant expires."""
    wire = FaultyWire()
    wire.deaf = True
    here, there = kit.client(), kit.client(wire)
    lease = await here.lock("name", ttl=TTL).acquire()
    waiting = kit.start(lambda: there.lock("name", ttl=2.0).acquire())
    await kit.waiters(here, "name", 1)
    await lease.release()
    theirs = await waiting.result()
    theirs.check()
    expect(
        (await here.inspect("name")).last_token == theirs.token, "the waiter got the grant whose notification was lost"
    )


@check(exercises="store", queue=True)
async def old_notification_is_ignored(kit: Kit) -> None:
    """A notification that is not newer than the waiter's last reply is of an earlier grant, and is ignored."""
    wire = FaultyWire()
    here, there = kit.client(), kit.client(wire)
    lease = await here.lock("name", ttl=TTL).acquire()
    waiting = kit.start(lambda: there.lock("name", ttl=TTL).acquire())
    await kit.waiters(here, "name", 1)
    request = wire.requests[-1]
    for token in (1, lease.token):
        wire.push(Notification(request.channel, NotificationKind.GRANTED, request.request_id, token))
    await kit.pause(0.05)
    expect(not waiting.done(), "an old notification grants nothing")
    lease.check()
    await lease.release()
    theirs = await waiting.result()
    expect(theirs.token > lease.token, "the waiter has a token of its own")


@check(tokens=True)
async def lost_reply_loses_no_lease(kit: Kit) -> None:
    """An acquisition whose reply was lost is repeated and holds once; a release whose reply was lost still succeeds."""
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    wire.lose["acquire"] = 2
    lease = await here.lock("name", ttl=TTL).acquire(timeout=TEST_TIMEOUT)
    view = await there.inspect("name")
    expect([holder.token for holder in view.holders] == [lease.token], "the client holds once, with its own token")
    wire.lose["release"] = 1
    outcome = await lease.release()
    expect(outcome is Outcome.RELEASED, f"the release was carried out, not {outcome}")
    other = await there.lock("name", ttl=TTL).try_acquire()
    expect(other is not None, "the name is free")


@check(exercises="store")
async def unanswered_request_leaves_nothing(kit: Kit) -> None:
    """An acquisition that gives up without a reply leaves no holder and no waiter behind."""
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    wire.lose["acquire"] = 1_000
    leases: list[AsyncLease] = []
    with contextlib.suppress(LockTimeout, StoreUnavailable):
        leases.append(await here.lock("name", ttl=TTL).acquire(timeout=0.2))
    expect(not leases, "without a reply there is no lease")

    async def is_free() -> bool:
        view = await there.inspect("name")
        return not view.holders and not view.waiters

    # What the client cannot withdraw within its timeout, it withdraws in the background, long before the ttl.
    await kit.until(is_free, "a name that nobody holds or waits for")
