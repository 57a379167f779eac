"""The adapter that gives the sync API the shape of the async one, so that checks are written once."""

import asyncio
import gc
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import tenure.primitives
from tenure import AsyncClient, AsyncLease, Client, Leader, Lease, LeaseLost
from tenure.runtimes.threads import complete
from tenure_testing.conformance.adapter import Adapter, adapt, async_class_of

TTL = 20.0

SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}

SYNC_ONLY = {"stop"}
"""Parameters that only threads need: a task is cancelled."""


def _classes() -> Iterator[type]:
    """Yield the classes of clients, locks and leases, without those that are only bases."""
    names = [each.name for each in pkgutil.iter_modules(tenure.primitives.__path__, "tenure.primitives.")]
    for name in ("tenure.client.threads", "tenure.client.aio", "tenure.lease", *names):
        for kind in vars(importlib.import_module(name)).values():
            base = isinstance(kind, type) and (kind.__name__.endswith("Base") or getattr(kind, "_is_protocol", False))
            if isinstance(kind, type) and kind.__module__ == name and not base:
                yield kind


ASYNC = [kind for kind in _classes() if kind.__name__.startswith("Async")]
SYNC = {async_class_of(kind): kind for kind in _classes() if kind not in ASYNC}
"""The sync class of each async class."""


@pytest.fixture
def client() -> Iterator[Client]:
    """Yield a client."""
    with Client("memory://", namespace="adapter", owner="us") as made:
        yield made


@pytest.mark.parametrize("kind", ASYNC, ids=lambda kind: kind.__name__)
def test_every_public_attribute_has_a_counterpart(kind: type) -> None:
    """A check may use an attribute of an async object only if the sync object has it with the same parameters."""
    sync = SYNC[kind]
    for name in (name for name in dir(kind) if not name.startswith("_") or name in SPECIAL):
        theirs, ours = getattr(kind, name), getattr(sync, SPECIAL.get(name, name))
        assert callable(theirs) == callable(ours), name
        if inspect.isfunction(theirs):
            taken = [each for each in inspect.signature(ours).parameters if each not in SYNC_ONLY]
            assert list(inspect.signature(theirs).parameters) == taken, name


def test_calls_block_in_place(client: Client) -> None:
    """A coroutine of an adapted client never suspends, and does nothing before it is awaited."""

    async def steps(adapted: AsyncClient) -> None:
        acquiring = adapted.lock("name", ttl=TTL).acquire()
        assert not client.inspect("name").holders
        lease = await acquiring
        assert client.inspect("name").holders[0].token == lease.token
        assert await adapted.lock("name", ttl=TTL).try_acquire() is None
        await lease.release()
        async with adapted.rwlock("name", ttl=TTL).write() as writing:
            await writing.downgrade()
            async with adapted.rwlock("name", ttl=TTL).read():
                assert len((await adapted.inspect("name")).holders) == 2
        assert not bool(lease.lost)
        assert not await lease.lost.wait(0)

    complete(steps(adapt(client)))


def test_a_campaign_is_awaited_or_entered(client: Client) -> None:
    """Both ways of campaigning work, and observers see the leaders until the election ends."""

    async def steps(adapted: AsyncClient) -> None:
        election = adapted.election("boss", ttl=TTL)
        term = await election.campaign("one")
        await term.publish("two")
        assert [leader async for leader in election.observe(0)] == [Leader("us", "two", term.token)]
        await term.release()
        async with election.campaign("three") as term:
            assert election.is_leader
            assert term.value == "three"
        assert not election.is_leader

    complete(steps(adapt(client)))


def test_errors_pass_as_they_are(client: Client) -> None:
    """The awaited call raises the error of the sync method."""

    async def steps(adapted: AsyncClient) -> None:
        async with adapted.lock("name", ttl=TTL):
            await adapted.revoke("name", force=True)

    with pytest.raises(LeaseLost):
        complete(steps(adapt(client)))


def test_leases_are_kept_for_both_apis(client: Client) -> None:
    """Each lease that a call returns goes to `keep`, and is a real one."""
    kept: list[object] = []

    async def steps(adapted: AsyncClient) -> None:
        await adapted.lock("one", ttl=TTL).acquire()
        await adapted.semaphore("two", 2, ttl=TTL).try_acquire()
        await adapted.multilock(["three"], ttl=TTL).acquire()
        await adapted.names()

    async def in_a_loop() -> None:
        async with AsyncClient("memory://", namespace="adapter in a loop") as other:
            await steps(adapt(other, kept.append))
            gc.collect()
            assert len(await other.names()) == 3

    complete(steps(adapt(client, kept.append)))
    asyncio.run(in_a_loop())
    client.close()
    assert [isinstance(each, Lease) for each in kept] == [True, True, False, False, False, False]
    assert [isinstance(each, AsyncLease) for each in kept] == [False, False, False, True, True, False]


@pytest.mark.parametrize("name", ["aquire", "__anext__", "_twins"])
def test_a_missing_attribute_is_an_error_that_names_it(client: Client, name: str) -> None:
    """An attribute that the object lacks raises the class's own error, and returns no coroutine that fails later."""
    adapted = adapt(client).rwlock("name", ttl=TTL)
    assert isinstance(adapted, Adapter)
    with pytest.raises(AttributeError, match=f"RWLock.*{SPECIAL.get(name, name)}"):
        adapted.__getattr__(name)


def test_an_attribute_of_the_sync_class_alone_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that used it would fail with an `AsyncClient`."""
    monkeypatch.setattr(Client, "only_here", Client.lock, raising=False)
    with pytest.raises(AttributeError, match=r"AsyncClient.*only_here"):
        adapt(client).__getattr__("only_here")  # type: ignore[attr-defined]
