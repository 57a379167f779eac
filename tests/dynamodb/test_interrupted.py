"""A cancellation or an interrupt may come while a write is under way: before it arrives, or before its reply."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure import AsyncClient, Client, LockTimeout
from tenure.runtimes.threads import complete
from tenure.stores.tabled import TabledStore
from tenure.table.step import Step
from tenure_testing.conformance.adapter import adapt
from tests.dynamodb.gateway import Gateway, Held, gateway_to
from tests.faults.scenes import API_FORMS
from tests.planting import planted
from tests.servers import DynamoServer

TTL = 600.0
"""Far longer than a test: what is free again was given back."""

LONG = 30.0

pytestmark = pytest.mark.filterwarnings("ignore:the lease of .* was dropped:ResourceWarning")


class InterruptError(BaseException):
    """What a signal handler raises."""


Act = Callable[[AsyncClient, Callable[[], None]], Coroutine[object, object, None]]


async def acquire(client: AsyncClient, arm: Callable[[], None]) -> None:
    """Acquire a lock whose first write is interrupted."""
    arm()
    await client.lock("a", ttl=TTL).acquire()


async def release(client: AsyncClient, arm: Callable[[], None]) -> None:
    """Release one."""
    lease = await client.lock("a", ttl=TTL).acquire()
    arm()
    await lease.release()


async def enter(client: AsyncClient, arm: Callable[[], None]) -> None:
    """Release one at the end of a `with`."""
    async with client.lock("a", ttl=TTL):
        arm()


async def wait(client: AsyncClient, arm: Callable[[], None]) -> None:
    """Join the queue of another lease."""
    arm()
    await client.lock("a", ttl=TTL).acquire()


ACTS: tuple[Act, ...] = (acquire, release, enter, wait)


async def cancel(url: str, act: Act, held: Held, gateway: Gateway) -> None:
    """Cancel an act of an AsyncClient at its write."""
    loop = asyncio.get_running_loop()

    async def work() -> None:
        async with AsyncClient(url) as client:
            await (await client.lock("warm").acquire()).release()
            await act(client, lambda: setattr(gateway, "held", held))

    task = asyncio.create_task(work())
    held.met = lambda: loop.call_soon_threadsafe(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, LONG)


def interrupt(url: str, act: Act, held: Held, gateway: Gateway) -> None:
    """Interrupt an act of a Client at its write by a signal."""
    interrupted, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def handle(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise InterruptError

    def met() -> None:
        while not interrupted.is_set():  # Python may look at signals just before it blocks in a call
            signal.pthread_kill(main, signal.SIGUSR1)
            interrupted.wait(0.05)

    held.met, before = met, signal.signal(signal.SIGUSR1, handle)
    try:
        with Client(url) as client:
            client.lock("warm").acquire().release()
            with pytest.raises(InterruptError):
                complete(act(adapt(client), lambda: setattr(gateway, "held", held)))
    finally:
        signal.signal(signal.SIGUSR1, before)


@dataclass(slots=True)
class World:
    """A table of a test alone, and a way to it on which writes are held."""

    url: str
    held_url: str
    gateway: Gateway


@pytest.fixture
def world(dynamodb_server: DynamoServer, tmp_path: Path) -> Iterator[World]:
    """Make a table, and run a proxy."""
    dynamodb_server.make_table(tmp_path.name)
    with gateway_to(dynamodb_server) as gateway:
        url, held_url = (
            dynamodb_server.url_behind(each, tmp_path.name) for each in (dynamodb_server.port, gateway.port)
        )
        yield World(url, held_url, gateway)


def nothing_is_left(world: World, form: str, act: Act, *, done: bool, late: bool, within: float = LONG) -> None:
    """Whoever comes next has the name at once, and alone, whenever the write arrives."""
    held = Held(lambda: None, done)
    # botocore may need more than a second for its first request, and who does not wait asks once
    with Client(world.url, operation_timeout=LONG) as others, Client(world.url, operation_timeout=LONG) as third:
        others.lock("warm").acquire().release()
        blocking = others.lock("a", ttl=TTL).acquire() if act is wait else None
        try:
            if form == "threads":
                interrupt(world.held_url, act, held, world.gateway)
            else:
                asyncio.run(cancel(world.held_url, act, held, world.gateway))
            if not late:
                held.goes_on.set()
                assert held.over.wait(LONG)
            if blocking is not None:
                blocking.release()
            lease = others.lock("a", ttl=TTL, timeout=within).acquire()
            held.goes_on.set()
            assert held.over.wait(LONG)
            assert third.lock("a", ttl=TTL).try_acquire() is None
            lease.check()
            view = third.inspect("a")
            assert [each.token for each in view.holders] == [lease.token]
            assert not view.waiters
            lease.release()
            with third.lock("a", ttl=TTL, timeout=LONG) as after:
                assert after.token > lease.token
        finally:
            held.goes_on.set()


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
@pytest.mark.parametrize("done", [False, True], ids=["before it arrives", "before its reply"])
def test_nothing_is_left_of_an_interrupted_write(*, form: str, act: Act, done: bool, late: bool, world: World) -> None:
    """The lease or the place in the queue is given back, and a write that comes late grants nothing."""
    nothing_is_left(world, form, act, done=done, late=late)


PLANTED: dict[str, tuple[type, str, str, bool]] = {
    "a lease that nobody has stays": (TabledStore, "return await self", "return NotGranted() or self", True),
    "a write that comes late grants": (Step, "if withdraw.unsure:", "if False:", False),
}


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(form: str, bug: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not given back is seen."""
    owner, right, wrong, done = PLANTED[bug]
    monkeypatch.setattr(owner, "withdraw", planted(owner, "withdraw", right, wrong))
    with pytest.raises(LockTimeout):
        nothing_is_left(world, form, acquire, done=done, late=False, within=3.0)
