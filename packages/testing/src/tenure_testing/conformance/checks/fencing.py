"""Checks of fencing tokens: one strictly increasing sequence a name, whoever holds it and however a lease ended."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import Kit, expect
from tenure_testing.conformance.wire import FaultyWire

LARGEST = 2**53
"""The largest integer that a double represents exactly: the numbers of every language can hold a token."""


@check(tokens=True)
async def tokens_increase(kit: Kit) -> None:
    """Each grant of a name has a larger token than every grant before, whichever client is granted."""
    clients = [kit.client() for _ in range(3)]
    tokens: list[int] = []
    for number in range(9):
        lease = await clients[number % 3].lock("name", ttl=20).acquire()
        tokens.append(lease.token)
        await lease.release()
    expect(all(type(token) is int and 0 < token < LARGEST for token in tokens), f"tokens are exact: {tokens}")
    expect(tokens == sorted(set(tokens)), f"tokens increase strictly: {tokens}")


@check(tokens=True)
async def tokens_increase_under_contention(kit: Kit) -> None:
    """Tokens increase in the order in which holders enter, also across hand-offs from waiter to waiter."""
    tokens: list[int] = []

    async def work() -> None:
        lock = kit.client().lock("name", ttl=20)
        for _ in range(4):
            async with lock as lease:
                tokens.append(lease.token)
                await kit.pause(0)

    for each in [kit.start(work) for _ in range(4)]:
        await each.result()
    expect(tokens == sorted(set(tokens)), f"tokens increase in the order of entry: {tokens}")


@check(tokens=True)
async def tokens_increase_across_idleness(kit: Kit) -> None:
    """After a time in which nobody used a name and no client remembers it, its tokens still increase."""
    first = kit.client()
    lease = await first.lock("name", ttl=20).acquire()
    await lease.release()
    await first.close()
    second = kit.client()

    async def idle() -> bool:
        return not (await second.inspect("name")).holders

    await kit.until(idle, "a name out of use")
    later = await second.lock("name", ttl=20).acquire()
    expect(later.token > lease.token, f"{later.token} follows {lease.token}")


@check(tokens=True)
async def tokens_increase_across_expiry(kit: Kit) -> None:
    """The holder after a silent holder has a larger token, so that late writes can be refused."""
    wire = FaultyWire()
    wire.cut = True
    here, there = kit.client(wire), kit.client()
    silent = await here.lock("name", ttl=kit.short).acquire()
    tokens = [silent.token]
    for client in (there, kit.client()):
        lease = await client.lock("name", ttl=20).acquire()
        tokens.append(lease.token)
        await lease.release()
    expect(tokens == sorted(set(tokens)), f"tokens increase across an expiry: {tokens}")
