"""Checks of closed clients: they hold nothing, wait for nothing, and refuse operations."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from tenure import AsyncClient
from tenure.errors import UsageError
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import Kit, expect

TTL = 20.0


@check(exercises="store")
async def close_releases_every_lease(kit: Kit) -> None:
    """Closing a client releases its leases at once, and waiters are granted their names."""
    here, there = kit.client(), kit.client()
    leases = [await here.lock(name, ttl=TTL).acquire() for name in ("name", "other")]
    waiting = kit.start(lambda: there.lock("name", ttl=TTL).acquire())
    if kit.capabilities.queue:
        await kit.waiters(there, "name", 1)
    await here.close()
    theirs = await waiting.result()
    theirs.check()
    expect(await there.lock("other", ttl=TTL).try_acquire() is not None, "every lease is released")
    expect(leases[0].remaining() == 0, "a released lease is no longer held")


@check(exercises="store")
async def close_ends_every_wait(kit: Kit) -> None:
    """Waiters of a client that closes get UsageError, and leave the queue."""
    here, there = kit.client(), kit.client()
    lease = await here.lock("name", ttl=TTL).acquire()
    waiting = kit.start(lambda: _refused(there))
    if kit.capabilities.queue:
        await kit.waiters(here, "name", 1)
    await there.close()
    expect(await waiting.result(), "the waiter gets UsageError")
    expect(not (await here.inspect("name")).waiters, "the waiter left the queue")
    lease.check()


async def _refused(client: AsyncClient) -> bool:
    try:
        await client.lock("name", ttl=TTL).acquire()
    except UsageError:
        return True
    return False


@check(exercises="store")
async def closed_client_refuses_operations(kit: Kit) -> None:
    """A closed client can be closed again, and refuses every other operation with UsageError."""
    client, other = kit.client(), kit.client()
    lock = client.lock("name", ttl=TTL)
    lease = await lock.acquire()
    await lease.release()
    await client.close()
    await client.close()
    expect(await _refused(client), "a closed client acquires nothing")
    expect(await other.lock("name", ttl=TTL).try_acquire() is not None, "the name is free")
