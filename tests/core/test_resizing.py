"""A semaphore is resized while others of one client wait for it: they wait in the store, which grants them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tenure import AsyncClient, AsyncLease, UsageError
from tenure.contracts.messages import AcquireRequest, Reply
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.table.state import NameState, Queue
from tenure.table.step import Step
from tests import virtual

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


def queue_here(original: Callable[..., None], self: LockSpec) -> None:
    """Have contenders wait in the local queue of their client."""
    object.__setattr__(self, "resizable", False)
    original(self)


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
    (LockSpec, "__post_init__", queue_here),
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

    monkeypatch.setattr(owner, method, planted)
    with pytest.raises((AssertionError, UsageError, TimeoutError)):
        virtual.run(play)
