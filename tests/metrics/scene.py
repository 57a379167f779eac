"""A scene in which waits and leases end in all their ways, and what must be true of its events and metrics."""

import asyncio
import re
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tenure import AsyncClient, EventKind, LeaseLost, LockEvent, LockTimeout
from tenure.metrics import prometheus
from tests import virtual

WAIT_ENDS = {EventKind.ACQUIRED, EventKind.GAVE_UP, EventKind.UNITS_TAKEN, EventKind.UNITS_REFUSED}
LEASE_ENDS = {EventKind.RELEASED, EventKind.HANDED_ON, EventKind.LOST, EventKind.DROPPED}


def scraped(registry: CollectorRegistry) -> dict[str, dict[str, float]]:
    """Return the samples by their names, and by the text of their labels."""
    found: dict[str, dict[str, float]] = {}
    for line in generate_latest(registry).decode().splitlines():
        if not line.startswith("#"):
            sample, value = line.rsplit(" ", 1)
            name, _, labels = sample.partition("{")
            found.setdefault(name, {})[labels.rstrip("}")] = float(value)
    return found


def check_events(told: list[LockEvent]) -> None:
    """Check that each wait and each lease has ended exactly once, the wait before its lease."""
    begun = Counter(each.id for each in told if each.event is EventKind.CONTENDED)
    waits = Counter(each.id for each in told if each.event in WAIT_ENDS and each.waited is not None)
    granted = Counter(each.id for each in told if each.event is EventKind.ACQUIRED)
    ended = Counter(each.id for each in told if each.event in LEASE_ENDS)
    assert set(begun.values()) <= {1}, "a wait begins once"
    assert set(waits.values()) <= {1}, "a wait ends once"
    assert set(begun) <= set(waits), "each wait has ended"
    assert granted == ended, "each lease has ended, once"
    at = {(each.event in LEASE_ENDS, each.id): place for place, each in enumerate(told)}
    assert all(at[False, use] < at[True, use] for use in granted if (False, use) in at)


def check_metrics(registry: CollectorRegistry) -> None:
    """Check that nothing is held and nobody waits at the end, and that no label is a name."""
    samples = scraped(registry)
    for level in ("tenure_held", "tenure_waiting", "tenure_runs_running"):
        assert samples[level], f"{level} is there"
        assert set(samples[level].values()) == {0.0}, samples[level]
    labels = "\n".join(text for of_name in samples.values() for text in of_name)
    assert not re.search(r"invoice-\d", labels), "no label is the name of a lock"


async def use_everything(client: AsyncClient, other: AsyncClient) -> None:
    """Let waits and leases end in all their ways. Takes some virtual seconds."""

    async def enter(n: int) -> None:
        async with client.lock("invoice-1", template="invoice-{n}"):
            await asyncio.sleep(0.1 * n)

    await asyncio.gather(
        *(enter(n) for n in range(4))
    )  # the first is released in the store, which reserves tokens for two hand-offs
    async with other.lock("busy"):
        assert await client.lock("busy").try_acquire() is None
        waiting = [asyncio.create_task(client.lock("busy", timeout=2).acquire()) for _ in range(3)]
        await asyncio.sleep(1)
        waiting[0].cancel()  # the leader
        waiting[2].cancel()
        assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [
            asyncio.CancelledError,
            LockTimeout,
            asyncio.CancelledError,
        ]
        with pytest.raises(LockTimeout):
            await client.multilock(["a", "busy"], timeout=1).acquire()
        granted = asyncio.create_task(client.lock("busy", max_waiters=5).acquire())
        await asyncio.sleep(1)
    await (await granted).release()
    for name in ("invoice-7", "invoice-8"):
        revoked = await client.lock(name).acquire()
        await other.revoke(name, force=True)
        await asyncio.sleep(1)
        with pytest.raises(LeaseLost):
            revoked.check()
        await revoked.release()
    overheld = await client.semaphore("permits", 3, max_hold=1).acquire(weight=2)
    await asyncio.sleep(2)
    await overheld.release()
    await client.lock("dropped").acquire()
    async with client.multilock(["a", "b"]), client.rwlock("rw").read(), client.rwlock("rw2").write():
        pass
    for _ in range(2):
        async with client.lock("kept", linger=5):
            pass
    async with client.lock("again", reentrant=True) as lease, client.lock("again", reentrant=True):
        await lease.extend()
    limit = client.limit("limit", 1, 1.0)
    await limit.acquire()
    wait = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0.1)
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    assert not await limit.try_acquire() or await limit.try_acquire()
    job = client.once("job", window="hourly")
    await job.run(asyncio.sleep, 0.1)
    await job.run(asyncio.sleep, 0.1)


def play() -> tuple[list[LockEvent], CollectorRegistry]:
    """Play the scene in virtual time; return the events and the metrics."""
    told: list[LockEvent] = []
    registry = CollectorRegistry()

    async def main() -> None:
        source = virtual.source()
        client = AsyncClient(store=source, on_event=told.append)
        prometheus(client, registry)
        async with AsyncClient(store=source) as other, client:
            await use_everything(client, other)

    virtual.run(main)
    return told, registry


def check_scene() -> None:
    """Play the scene, and check all that must be true of it."""
    told, registry = play()
    check_events(told)
    check_metrics(registry)
    ends = Counter(each.event.value for each in told if each.event in LEASE_ENDS)
    assert ends["handed on"] == 2
    assert (ends["lost"], ends["dropped"]) == (3, 1)
    causes = Counter(each.cause for each in told if each.event is EventKind.GAVE_UP)
    assert causes == {"busy": 1, "timeout": 2, "cancelled": 3}
    lost = Counter(each.cause for each in told if each.event is EventKind.LOST)
    assert lost == {"revoked": 2, "max_hold": 1}
    assert all(each.held == 0.0 for each in told if each.cause == "revoked"), "told at once, not with the release"
    samples = scraped(registry)
    assert samples["tenure_leases_lost_total"] == {
        'cause="revoked",kind="lock",template="lock"': 2.0,
        'cause="max_hold",kind="semaphore",template="semaphore"': 1.0,
    }
    assert samples["tenure_leases_ended_total"]['cause="handed on",kind="lock",template="invoice-{n}"'] == 2.0
    assert samples["tenure_wait_seconds_count"]['kind="lock",result="timeout",template="lock"'] == 1.0
