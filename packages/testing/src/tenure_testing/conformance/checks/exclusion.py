"""Checks of mutual exclusion: one holder at a time, distinct names, and a truthful inspection."""

from dataclasses import dataclass
from functools import partial

from tenure import AsyncClient, AsyncLease
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import Kit, expect

CLIENTS = 3
WORKERS = 3
ROUNDS = 4

AWKWARD_NAMES = (
    "a",
    "A",
    "a ",
    " a",
    "a/b",
    "a:b",
    "../etc/passwd",
    "a\0b",
    "a\0c",
    "line\nbreak",
    "tab\tstop",
    "'; DROP TABLE names; --",
    '"double"',
    "back\\slash",
    "{braces}",
    "100%s",
    "*?[a]",
    "\u00e9",
    "e\u0301",
    "名前",
    "🔒",
    "\u202eright to left",
    "x" * 512,
    "🔒" * 128,
    "x" * 511 + "y",
)
"""Names that a store or a shell might misread, or confuse with each other."""


@dataclass
class _Tally:
    """A counter that only one holder may change at a time; two at once would lose updates."""

    count: int = 0
    inside: int = 0
    most: int = 0


@check(exercises="store")
async def one_holder_at_a_time(kit: Kit) -> None:
    """However many clients, threads or tasks contend for a name, only one of them holds it at a time."""
    tally = _Tally()

    async def work(client: AsyncClient) -> None:
        lock = client.lock("counter", ttl=20)
        for _ in range(ROUNDS):
            async with lock:
                tally.inside += 1
                tally.most = max(tally.most, tally.inside)
                read = tally.count
                await kit.pause(0.0005)
                tally.count = read + 1
                tally.inside -= 1

    clients = [kit.client() for _ in range(CLIENTS)]
    running = [kit.start(partial(work, client)) for client in clients for _ in range(WORKERS)]
    for each in running:
        await each.result()
    expect(tally.most == 1, f"one holder at a time, not {tally.most}")
    expect(tally.count == CLIENTS * WORKERS * ROUNDS, f"no update is lost; counted {tally.count}")


@check()
async def try_acquire_returns_at_once(kit: Kit) -> None:
    """`try_acquire` returns a lease if the name is free, else None, and never leaves a place in the queue."""
    here, there = kit.client(), kit.client()
    lease = await here.lock("name", ttl=20).try_acquire()
    expect(lease is not None, "a free name is granted")
    for client in (here, there):
        expect(await client.lock("name", ttl=20).try_acquire() is None, "a held name is not granted")
    view = await here.inspect("name")
    expect(len(view.holders) == 1, "the holder keeps the name")
    expect(not view.waiters, "nobody waits")
    if lease is not None:
        await lease.release()
    again = await there.lock("name", ttl=20).try_acquire()
    expect(again is not None, "a released name is granted")


@check(exercises="store")
async def names_are_distinct(kit: Kit) -> None:
    """Every text of up to 512 bytes of UTF-8 is a name of its own, whatever its characters."""
    here, there = kit.client(), kit.client()
    leases: list[AsyncLease] = []
    for name in AWKWARD_NAMES:
        lease = await here.lock(name, ttl=20).try_acquire()
        expect(lease is not None, f"{name!r} is not another name's lock")
        if lease is not None:
            leases.append(lease)
    expect(
        not kit.lists or await there.names() == sorted(AWKWARD_NAMES),
        "names() lists every name as it was given",
    )
    for name in AWKWARD_NAMES:
        expect((await there.inspect(name)).name == name, f"inspect returns the name {name!r}")
        expect(await there.lock(name, ttl=20).try_acquire() is None, f"{name!r} is held for every client")
    for lease in leases:
        await lease.release()
    expect(not kit.lists or await there.names() == [], "names() lists no name that nobody uses")


@check(exercises="store")
async def namespaces_are_separate(kit: Kit) -> None:
    """Clients of different namespaces never contend with each other, whatever the characters of a namespace."""
    spaces = ("", "-", "-/b c", "-'\"%_*?[a]", "-名", "-nul\0byte", "-{a}")
    clients = [kit.client(within=space) for space in spaces]
    for client, space in zip(clients, spaces, strict=True):
        lease = await client.lock("name", ttl=20).try_acquire()
        expect(lease is not None, f"the name is free in namespace {space!r}")
    for client, space in zip(clients, spaces, strict=True):
        expect(not kit.lists or await client.names() == ["name"], f"names() lists namespace {space!r} alone")


@check(exercises="store", records=True)
async def inspect_and_names_show_holders_and_waiters(kit: Kit) -> None:
    """`inspect` and `names` show exactly the present holders and waiters."""
    here, there = kit.client(owner="holder"), kit.client(owner="waiter")
    expect(not kit.lists or await here.names() == [], "a name that was never used is not listed")
    unused = await here.inspect("name")
    expect(not unused.holders, "a name that was never used has no holder")
    lease = await here.lock("name", ttl=20).acquire()
    view = await there.inspect("name")
    expect([holder.owner for holder in view.holders] == ["holder"], "the holder is shown with its owner")
    holder = view.holders[0]
    expect(holder.token == lease.token, "the holder's token is shown")
    expect(view.last_token >= lease.token, "the last token is shown")
    expect(0 < holder.expires_in <= holder.ttl, "the remaining time of the lease is within its ttl")
    expect(lease.remaining() <= holder.expires_in + 1, "the store keeps the lease for at least the holder's time")
    expect(not kit.lists or await there.names() == ["name"], "a held name is listed")
    if kit.capabilities.queue:
        waiting = kit.start(lambda: there.lock("name", ttl=20).acquire(timeout=10))
        await kit.waiters(here, "name", 1)
        view = await here.inspect("name")
        expect([waiter.owner for waiter in view.waiters] == ["waiter"], "the waiter is shown with its owner")
        expect(view.waiters[0].alive, "a live waiter is shown as alive")
        await lease.release()
        lease = await waiting.result()
    await lease.release()
    view = await here.inspect("name")
    expect(not view.holders, "a released name has no holder")
    expect(not view.waiters, "a granted waiter is no longer shown as a waiter")
    expect(not kit.lists or await here.names() == [], "a name that nobody uses is not listed")
