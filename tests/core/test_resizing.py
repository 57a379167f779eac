"""A semaphore is resized while others of one client wait for it: they wait in the store, which grants them."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from tenure import AsyncClient, AsyncLease, StoreError, UsageError
from tenure.contracts.cells import Cell
from tenure.contracts.messages import AcquireRequest, Reply
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.primitives.semaphore import _SemaphoreBase
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure.table.state import NameState, Queue
from tenure.table.step import Step
from tests import virtual
from tests.planting import planted

TTL = 3600.0


async def turns(count: int = 20) -> None:
    """Let all tasks that are ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Here:
    """Tasks of one client that acquire a permit, and their leases, in order."""

    client: AsyncClient
    leases: list[AsyncLease] = field(default_factory=list[AsyncLease])
    tasks: list["asyncio.Task[None]"] = field(default_factory=list["asyncio.Task[None]"])

    async def spec(self) -> None:
        """Start one more contender, whose semaphore has one permit."""

        async def work() -> None:
            self.leases.append(await self.client.semaphore("name", 1, ttl=TTL).acquire())

        self.tasks.append(asyncio.create_task(work()))
        await turns()

    async def let_go(self, place: int) -> int:
        """Release one of the leases; return how many were granted until then."""
        await self.leases[place].release()
        await turns()
        return len(self.leases)

    async def end(self) -> None:
        """Cancel the tasks and release the leases."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for lease in self.leases:
            await lease.release()


async def grow_and_shrink(client: AsyncClient, other: AsyncClient, here: Here) -> None:
    """Resize the name, and check the grants and the capacity after each step."""
    for _ in range(6):
        await here.spec()
    assert len(here.leases) == 1
    assert len((await other.inspect("name")).waiters) == 5, "each waiter stands in the store's queue"

    await other.semaphore("name", 1).resize(3)
    await turns()
    assert len(here.leases) == 3, "more permits grant as many waiters at once, without a release"
    with pytest.raises(UsageError, match="3"):
        await other.semaphore("name", 1).try_acquire()
    assert await here.let_go(0) == 4, "a release grants the next waiter"
    assert (await other.inspect("name")).capacity == 3, "a grant does not restore the capacity of its request"

    await other.semaphore("name", 3).resize(1)
    assert await here.let_go(1) == 4, "there is no room while one of more permits is held"
    assert await here.let_go(2) == 4
    assert await here.let_go(3) == 5
    assert await here.let_go(4) == 6
    assert await here.let_go(5) == 6
    assert [lease.token for lease in here.leases] == sorted(lease.token for lease in here.leases)
    async with client.semaphore("name", 1).acquire(timeout=0):
        assert (await other.inspect("name")).capacity == 1


async def play() -> None:
    """Run the steps, and clean up."""
    source = virtual.source()
    async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
        here = Here(client)
        try:
            await grow_and_shrink(client, other, here)
        finally:
            await here.end()


def test_waiters_of_one_client_are_granted_as_the_permits_change() -> None:
    """The waiters are granted at once, in order, within the capacity that the name has now."""
    virtual.run(play)


def queue_here(_original: object, spec: LockSpec) -> tuple[str, int, int, int]:
    """Have contenders wait in the local queue of their client."""
    return spec.name, spec.ttl, spec.lock_delay, spec.fair_after


def let_in_one(original: Callable[..., None], self: Step) -> None:
    """Grant one more in a step, however much room there is."""
    capacity = self.state.capacity
    self.state.capacity = min(capacity, sum(holder.weight for holder in self.state.holders) + 1)
    original(self)
    self.state.capacity = capacity


def bring_the_old_number_back(original: Callable[..., Reply], self: Step, request: AcquireRequest) -> Reply:
    """Have each grant set the capacity of its request."""
    self.state.capacity = request.capacity
    return original(self, request)


def forget_the_room(original: Callable[..., int], self: Step, before: int, after: int) -> int:
    """Grant no waiter in the resize that makes room."""
    waiters = list(self.state.queue)
    self.state.queue = Queue()
    capacity = original(self, before, after)
    self.state.queue = Queue(waiters)
    return capacity


def stay_as_wide(original: Callable[..., bool], self: NameState, weight: int) -> bool:
    """Grant the next waiter after a release, although there are fewer permits than holders now."""
    return original(self, weight) or (self.capacity == 1 and len(self.holders) < 3 and weight == 1)


async def resize_here_only(original: Callable[..., Any], self: Session, name: str, before: int, after: int) -> int:
    """Report success, and send no request."""
    return after


BUGS: list[tuple[type, str, Callable[..., Any]]] = [
    (LockSpec, "key", queue_here),
    (Step, "_serve_queue", let_in_one),
    (Step, "_grant", bring_the_old_number_back),
    (Step, "resize", forget_the_room),
    (NameState, "has_room", stay_as_wide),
    (Session, "resize", resize_here_only),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[2].__name__)
def test_a_wrong_resize_is_found(bug: tuple[type, str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bugs: each is one that the test above must find."""
    owner, method, wrong = bug
    original = getattr(owner, method)

    def planted(self: object, *args: object) -> object:
        return wrong(original, self, *args)

    monkeypatch.setattr(owner, method, property(planted) if isinstance(original, property) else planted)
    with pytest.raises((AssertionError, UsageError, TimeoutError)):
        virtual.run(play)


# -- the number that the store keeps -------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """A store whose requests to acquire are under way for a second, and whose writes of cells may fail."""

    fails = 0

    def __init__(self, runtime: Runtime, table: MemoryTable) -> None:
        """Use a table."""
        super().__init__(runtime, table)
        self._world = runtime

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Acquire, later."""
        await self._world.sleep(0.5)
        return await super().acquire(request, until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell, or fail for good."""
        if SlowStore.fails:
            SlowStore.fails -= 1
            raise StoreError("no room")
        return await super().write_cell(name, value, version, keep, until)


def client_of(table: MemoryTable) -> AsyncClient:
    """Return a client of a slow store, of which no write fails yet."""
    SlowStore.fails = 0
    return AsyncClient(store=StoreSource("slow://", SlowStore.capabilities, lambda runtime: SlowStore(runtime, table)))


async def a_request_under_way() -> None:
    """Send a request again that was under way while its own object resized."""
    async with client_of(virtual.table()) as client:
        semaphore = client.semaphore("name", 1, ttl=TTL)
        first = await semaphore.acquire()
        late = asyncio.create_task(semaphore.acquire(timeout=10))
        await asyncio.sleep(0.1)
        await semaphore.resize(2)
        for lease in (first, await late):
            lease.check()


async def a_request_from_before() -> None:
    """Set the number again if a request with the number from before a resize has taken a free name."""
    async with client_of(virtual.table()) as client:
        semaphore = client.semaphore("name", 1, ttl=TTL)
        late = asyncio.create_task(semaphore.acquire(timeout=10))
        await asyncio.sleep(0.1)
        await semaphore.resize(2)  # nobody uses the name yet
        leases = [await late, await semaphore.acquire(timeout=10)]
        await semaphore.resize(3)
        leases.append(await semaphore.acquire(timeout=10))
        for lease in leases:
            lease.check()


async def a_fleet() -> None:
    """Give every node the number of the last resize, also while the name is in use by an older one."""
    table = virtual.table()
    async with client_of(table) as one, client_of(table) as other:
        fleet, old = one.semaphore("name", None, ttl=TTL), other.semaphore("name", 1, ttl=TTL)
        with pytest.raises(UsageError, match="no number of permits"):
            await fleet.acquire(timeout=0)
        await fleet.resize(2)
        leases = [await old.acquire(), await fleet.acquire(timeout=10)]
        assert await other.semaphore("name", None, ttl=TTL).locked()
        for lease in leases:
            await lease.release()


async def an_interrupted_resize() -> None:
    """Leave nothing behind that keeps others from acquiring if the last request of a resize fails; it is repeated."""
    table = virtual.table()
    async with client_of(table) as one, client_of(table) as other:
        fleet = one.semaphore("name", None, ttl=TTL)
        await fleet.resize(2)
        leases = [await fleet.acquire()]
        SlowStore.fails = 1
        with pytest.raises(StoreError):
            await fleet.resize(3)
        await (await other.semaphore("name", None, ttl=TTL).acquire(timeout=10)).release()
        assert (await one.inspect("name")).capacity == 2, "the number that the store keeps"
        await fleet.resize(3)
        leases += [await other.semaphore("name", None, ttl=TTL).acquire(timeout=10) for _ in range(2)]
        for lease in leases:
            await lease.release()


SCENES = (a_request_under_way, a_request_from_before, a_fleet, an_interrupted_resize)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_number_of_permits(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Each scene says what it shows."""
    virtual.run(scene)


WRONG = {
    "a request is not sent again": ("_with_number", "if not tries or not await", "if True or not await"),
    "earlier numbers are not known": ("_resize", "self._earlier.append(before)", "pass"),
    "an older number is not replaced": ("_correct", "if number != in_use:", "if False:"),
    "the number is not kept": ("_resize", "changed=kept != permits", "changed=False"),
    "the kept number is not read": ("_kept_number", "if kept := await", "if kept := 0 * await"),
    "the number of a free name is made up": ("_kept_number", "if view.holders or view.waiters:", "if True:"),
}


@pytest.mark.filterwarnings("ignore:.*dropped without release", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", WRONG)
def test_a_wrong_number_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of the scenes."""
    method, right, wrong = WRONG[bug]
    monkeypatch.setattr(_SemaphoreBase, method, planted(_SemaphoreBase, method, right, wrong))
    noticed = 0
    for scene in SCENES:
        try:
            virtual.run(scene)
        except (AssertionError, UsageError, StoreError, TimeoutError, pytest.fail.Exception):
            noticed += 1
    assert noticed
