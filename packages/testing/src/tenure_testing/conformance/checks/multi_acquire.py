"""Checks of multilocks: all names or none, and never a deadlock."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

import contextlib
from functools import partial

from tenure import AsyncClient
from tenure.contracts.messages import Busy, Granted, HolderView, Notification, NotificationKind, Queued, Reply
from tenure.core.lease import LeaseState
from tenure.errors import LeaseLost, LockTimeout, StoreUnavailable, UsageError
from tenure.outcome import Outcome
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, cancel_after, expect, timed_out
from tenure_testing.conformance.wire import FaultyWire

KEPT = 5.0
"""A ttl that does not expire during a check, in seconds: no machine stands still for so long."""

LONG = 20.0

NAMES = ("c", "a", "b")


async def _unused(kit: Kit, client: AsyncClient, names: tuple[str, ...] = NAMES) -> None:
    """Wait until nobody holds or waits for any of the names."""
    for name in names:
        await kit.free(client, name)
        await kit.waiters(client, name, 0)


@check(exercises="store", tokens=True)
async def multilock_is_all_or_nothing(kit: Kit) -> None:
    """A multilock holds all its names exclusively; while another client holds one of them, it holds none."""
    here, there = kit.client(owner="here"), kit.client()
    async with here.multilock(NAMES, ttl=LONG) as lease:
        lease.check()
        expect(list(lease.tokens) == ["a", "b", "c"], "the lease has a token for each name, in the order of the names")
        for name, token in lease.tokens.items():
            holders = (await there.inspect(name)).holders
            expect([holder.token for holder in holders] == [token], f"{name!r} is held with its token")
            expect(await there.lock(name, ttl=LONG).try_acquire() is None, f"a lock of {name!r} is not granted")
        for names in (("d", "c"), ("a", "d"), ("0", "b")):
            expect(await there.multilock(names, ttl=LONG).try_acquire() is None, f"{names} are not all free")
            expect(
                not kit.lists or set(await there.names()) == set(NAMES),
                "no other name is held or waited for",
            )
    expect(not kit.lists or await there.names() == [], "all names are released together")
    again = await there.multilock(NAMES, ttl=LONG).try_acquire()
    expect(again is not None, "released names are free")
    if again is not None:
        expect(all(token > lease.tokens[name] for name, token in again.tokens.items()), "the next tokens are larger")
        expect(await again.release() is Outcome.RELEASED, "the release returns RELEASED")
        expect(await again.release() is Outcome.RELEASED, "a repeated release returns RELEASED")


@check()
async def multilocks_in_any_order_never_deadlock(kit: Kit) -> None:
    """Contenders for overlapping names, given in any order, are all granted in the end, and no update is lost."""
    counts = dict.fromkeys("abcd", 0)

    async def work(client: AsyncClient, names: str) -> None:
        for _ in range(6):
            async with client.multilock(list(names), ttl=LONG, timeout=TEST_TIMEOUT):
                read = {name: counts[name] for name in names}
                await kit.pause(0.0005)
                for name in names:
                    counts[name] = read[name] + 1

    async def work_on_one(client: AsyncClient, name: str) -> None:
        for _ in range(6):
            async with client.lock(name, ttl=LONG, timeout=TEST_TIMEOUT):
                read = counts[name]
                await kit.pause(0.0005)
                counts[name] = read + 1

    groups = ("abc", "cba", "dcb", "ad", "bd")
    clients = [kit.client() for _ in range(2)]
    running = [kit.start(partial(work, client, names)) for client in clients for names in groups]
    running += [kit.start(partial(work_on_one, client, name)) for client in clients for name in "bc"]
    for each in running:
        await each.result(6 * TEST_TIMEOUT)
    expected = {name: 12 * sum(name in names for names in (*groups, *"bc")) for name in counts}
    expect(counts == expected, f"no update is lost: {counts} and not {expected}")


@check(queue=True)
async def multilock_waits_in_the_order_of_names(kit: Kit) -> None:
    """A multilock that waits for a name holds the names before it and none after it; when granted, it holds all."""
    here, there = kit.client(), kit.client()
    lease = await here.lock("b", ttl=LONG).acquire()
    waiting = kit.start(lambda: there.multilock(NAMES, ttl=LONG).acquire())
    await kit.waiters(here, "b", 1)
    expect((await here.inspect("a")).holders, "the name before the held one is held, too")
    last = await here.inspect("c")
    expect(not last.holders and not last.waiters, "the name after the held one is free")
    await lease.release()
    result = await waiting.result()
    result.check()
    expect(len(await here.names()) == len(NAMES), "all names are held")
    await result.release()
    await _unused(kit, here)


@check()
async def timed_out_multilock_leaves_nothing(kit: Kit) -> None:
    """LockTimeout of a multilock names the busy name and its holder; no name is held or waited for afterwards."""
    here, there = kit.client(owner="somebody"), kit.client()
    lease = await here.lock("b", ttl=LONG).acquire()
    holder = "somebody" if kit.shows_leases else (await here.inspect("b")).holders[0].owner
    expect(holder, "the holder is shown")
    for timeout in (0.0, 0.1):
        error = await timed_out(there.multilock(NAMES, ttl=LONG).acquire(timeout=timeout))
        said = str(error)
        expect("'b'" in said and holder in said, f"the error names the name and its holder: {said}")
        expect(not kit.lists or await here.names() == ["b"], "no other name is held")
        expect(not (await here.inspect("b")).waiters, "nobody waits")
    lease.check()
    await lease.release()


@check(weights=True)
async def failed_multilock_leaves_nothing(kit: Kit) -> None:
    """A name in use as another kind of lock is an error of a multilock, which leaves no other name held."""
    here, there = kit.client(), kit.client()
    permits = await here.semaphore("b", 3, ttl=LONG).acquire()
    caught: UsageError | None = None
    try:
        await there.multilock(NAMES, ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    except UsageError as error:
        caught = error
    expect("b'" in str(caught), f"the error names the name: {caught}")
    expect(not kit.lists or await here.names() == ["b"], "no other name is held")
    permits.check()


@check(exercises="store", forms=("asyncio",))
async def cancelled_multilock_leaves_nothing(kit: Kit) -> None:
    """A multilock acquisition that is cancelled at any step leaves no holder and no waiter of any name behind."""
    there, watcher = kit.client(), kit.client()
    for held in ("", "a", "b", "c"):
        for steps in range(20):
            lease = await there.lock(held, ttl=LONG).acquire() if held else None
            running = kit.start(lambda: kit.client().multilock(NAMES, ttl=LONG).acquire())
            await cancel_after(running, steps)
            for name in NAMES:
                await kit.waiters(watcher, name, 0)
            if lease is not None:
                lease.check()
                await lease.release()
            await _unused(kit, watcher)


@check()
async def multilock_is_lost_with_any_name(kit: Kit) -> None:
    """If one name of a multilock is lost, all are lost at once; a release frees the rest, `with` raises LeaseLost."""
    here, there = kit.client(), kit.client()
    lease = await here.multilock(NAMES, ttl=LONG).acquire()
    expect(not lease.lost.is_set() and lease.remaining() > 0, "the lease is held")
    await there.revoke("b", force=True)
    expect(await lease.lost.wait(TEST_TIMEOUT), "`lost.wait` returns")
    expect(lease.state is LeaseState.LOST and lease.remaining() == 0, "the whole lease is lost")
    caught: LeaseLost | None = None
    try:
        async with lease:
            lease.check()
    except LeaseLost as error:
        caught = error
    expect("b'" in str(caught), f"the error names the lost name: {caught}")
    await _unused(kit, there)


@check()
async def silent_multilock_expires(kit: Kit) -> None:
    """The names of a silent holder are free when its leases have expired, and the holder knows of the loss before."""
    wire = FaultyWire()
    wire.cut = True
    silent = await kit.client(wire).multilock(NAMES, ttl=kit.short).acquire()
    lease = await kit.client().multilock(NAMES[::-1], ttl=LONG).acquire(timeout=TEST_TIMEOUT)
    expect(silent.lost.is_set(), "the silent holder knew of the loss before the next holder was granted")
    lease.check()
    await lease.release()


@check(records=True)
async def multilock_is_renewed_and_extended(kit: Kit) -> None:
    """The leases of a multilock are renewed in the background, and `extend` renews all of them."""
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    lease = await here.multilock(NAMES, ttl=KEPT).acquire()

    async def holders() -> list[HolderView]:
        return [(await there.inspect(name)).holders[0] for name in NAMES]

    async def renewed() -> bool:  # a delay of the check does not change these sums
        return all(holder.held_for + holder.expires_in > KEPT + 0.04 for holder in await holders())

    await kit.pause(0.05)
    wire.push(Notification("", NotificationKind.GAP, ""))  # the client renews soon: its store may have forgotten leases
    await kit.until(renewed, "a renewal of all names")
    lease.check()
    expect(await there.multilock(NAMES, ttl=LONG).try_acquire() is None, "the multilock is held")
    expect(await lease.extend(LONG) > KEPT, "the multilock can be extended")
    least = min(holder.expires_in for holder in await holders())
    expect(least > lease.remaining() > KEPT / 2, "the store keeps all names longer than the holder does")
    await lease.release()


@check(tokens=True)
async def multilock_survives_lost_replies(kit: Kit) -> None:
    """If replies to acquire requests or releases are lost, the names are held once, and are free after the release."""
    for lost in (1, 2):
        wire = FaultyWire()
        here, there = kit.client(wire), kit.client()
        wire.lose["acquire"] = lost
        lease = await here.multilock(NAMES, ttl=LONG).acquire(timeout=TEST_TIMEOUT)
        lease.check()
        for name, token in lease.tokens.items():
            holders = (await there.inspect(name)).holders
            expect([holder.token for holder in holders] == [token], f"{name!r} is held once")
        wire.lose["release"] = lost
        expect(await lease.release() is Outcome.RELEASED, "the multilock is released")
        await _unused(kit, there)


@check()
async def refused_multilock_leaves_nothing_after_a_lost_reply(kit: Kit) -> None:
    """If the reply to a refused acquire request is lost, a multilock leaves no holder and no waiter behind."""
    wire = FaultyWire()
    here, there = kit.client(), kit.client(wire)
    await there.inspect("name")  # connects, so that the whole timeout is left to repeat the request
    async with here.lock("b", ttl=LONG):
        wire.lose["acquire"] = 2
        with contextlib.suppress(LockTimeout, StoreUnavailable):  # the latter if the repeated request took all the time
            await there.multilock(NAMES, ttl=LONG).acquire(timeout=0.4)
        await kit.free(here, "a")
        await kit.waiters(here, "b", 0)
        await kit.free(here, "c")
        await kit.waiters(here, "c", 0)


@check(exercises="store", multi_acquire=True)
async def free_names_cost_one_request(kit: Kit) -> None:
    """One request acquires all free names, however many; one more acquires the names after a held name.

    A waiter that no notification reaches repeats its request meanwhile, which grants nothing.
    """
    wire = FaultyWire()
    here, there = kit.client(wire), kit.client()
    lease = await here.multilock(NAMES, ttl=LONG).acquire()
    expect(wire.counts["acquire"] == 1, f"one request, not {wire.counts['acquire']}")
    await lease.release()
    held = await there.lock("b", ttl=LONG).acquire()
    waiting = kit.start(lambda: here.multilock(NAMES, ttl=LONG).acquire())
    await kit.waiters(there, "b", 1)
    await held.release()
    await (await waiting.result()).release()
    expect(wire.counts["granted"] <= 4, f"one up to the held name, and one after it: {wire.counts['granted'] - 1}")


@check(exercises="store", multi_acquire=True)
async def acquire_many_stops_at_the_first_refusal(kit: Kit) -> None:
    """`acquire_many` grants requests in order up to the first refusal; repeated, it gives the same replies."""
    here, there = await kit.raw(), await kit.raw()
    held = there.request("b")
    token = await there.acquire_free(held)
    requests = [here.request(name) for name in ("a", "b", "c")]
    first = await here.acquire_many(requests)
    expect([type(reply) for reply in first] == [Granted, Queued], f"one granted, one queued: {first}")
    expect(_same_tokens(first, await here.acquire_many(requests)), "the repeated requests get the same replies")
    expect(not (await there.inspect("c")).holders, "the name after the refusal is not held")
    for wait, kind in ((False, Busy), (True, Queued)):
        others = [there.request(name, wait=wait) for name in ("0", "a", "c")]
        replies = await there.acquire_many(others)
        expect([type(reply) for reply in replies] == [Granted, kind], f"{kind.__name__} is the last reply: {replies}")
        for request in others[:2]:
            await there.withdraw(request)
    await there.release(held, token)
    second = await here.acquire_many(requests)
    expect([type(reply) for reply in second] == [Granted] * 3, f"all requests are granted: {second}")
    expect(_tokens(second)[0] == _tokens(first)[0], "the request that was granted before has the same grant")
    expect(_same_tokens(second, await here.acquire_many(requests)), "the repeated requests get the same replies")
    for request, each in zip(requests, _tokens(second), strict=True):
        expect(await here.release(request, each) is Outcome.RELEASED, "each name has a lease of its own")


def _tokens(replies: list[Reply]) -> list[int]:
    return [reply.token for reply in replies if isinstance(reply, Granted)]


def _same_tokens(some: list[Reply], others: list[Reply]) -> bool:
    return [type(each) for each in some] == [type(each) for each in others] and _tokens(some) == _tokens(others)
