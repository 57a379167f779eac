"""Who would certainly wait for itself for ever gets SelfDeadlock; who might is told so in the log, and waits."""

import asyncio
import contextlib
import logging
import queue
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

from tenure import AsyncClient, Client, LeaseState, LockTimeout, SelfDeadlock, Stop, Stopped, entering
from tenure.core import self_deadlock
from tenure.core.lease import CoreLease
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually

WAITED = "has waited for 'name' for a second, and has acquired it itself"


def client_in_memory() -> Client:
    """Return a client of a table of its own."""
    return Client(store=memory_source(MemoryTable()))


@pytest.fixture
def client() -> Iterator[Client]:
    """Return a client of a table of its own."""
    with client_in_memory() as client:
        yield client


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as a warning."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def waits_in_queue(client: Client) -> bool:
    """Return whether somebody waits for the name, in the local queue or in the store's."""
    queues = client.session().local_queues._queues.values()
    return any(each.waiters for each in queues) or bool(client.inspect("name").waiters)


# -- semaphores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permits", [1, 2])
def test_a_producer_may_take_permits_that_workers_give_back(permits: int, client: Client) -> None:
    """It waits for the workers, as with threading.Semaphore; in the `with` of one of them, too."""
    semaphore, jobs = client.semaphore("name", permits), queue.Queue[Any]()
    done: list[int] = []

    def work() -> None:
        while (lease := jobs.get()) is not None:
            eventually(lambda: waits_in_queue(client) or jobs.qsize() or len(done) >= 5, "the producer waits")
            done.append(lease.token)
            lease.release()

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(6):
        jobs.put(semaphore.acquire())
    jobs.put(None)
    worker.join(TEST_TIMEOUT)
    assert len(set(done)) == 6


def test_a_task_may_take_permits_that_other_tasks_give_back(caplog: pytest.LogCaptureFixture) -> None:
    """The same in asyncio; a wait of more than a second is told once, each time."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            semaphore = client.semaphore("name", 2)

            async def work(lease: Any) -> None:  # noqa: ANN401
                await asyncio.sleep(10)
                await lease.release()

            async with asyncio.TaskGroup() as workers, semaphore:
                for _ in range(4):
                    workers.create_task(work(await semaphore.acquire()))
                for _ in range(2):
                    await (await semaphore.acquire(weight=1, timeout=30)).release()

    virtual.run(main)
    told = warnings_in(caplog)
    assert len(told) == 3
    assert all(WAITED in each and "release some first, or give a timeout" in each for each in told)


def test_a_semaphore_never_refuses_to_wait(client: Client) -> None:
    """Even if the thread is in the `with` of the only permit: another one may add permits."""
    semaphore = client.semaphore("name", 1)

    def resize() -> None:
        eventually(lambda: waits_in_queue(client), "it waits")
        client.semaphore("name", 1).resize(2)

    with ThreadPoolExecutor(1) as pool, semaphore:
        resizing = pool.submit(resize)
        semaphore.acquire().release()
        resizing.result(TEST_TIMEOUT)


def test_a_waiter_behind_one_that_waits_for_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """There is a permit for it, but an earlier waiter needs those that this task holds."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            semaphore = client.semaphore("name", 3)
            mine = await semaphore.acquire()
            ahead = asyncio.create_task(_take(semaphore.acquire(weight=3)))
            await asyncio.sleep(0.1)
            asyncio.get_running_loop().call_later(5, lambda: released.append(asyncio.create_task(mine.release())))
            asyncio.get_running_loop().call_later(9, ahead.add_done_callback, let_go)
            await (await semaphore.acquire()).release()

    def let_go(ahead: "asyncio.Task[Any]") -> None:
        released.append(asyncio.create_task(ahead.result().release()))

    released: list[asyncio.Task[Any]] = []
    virtual.run(main)
    (told,) = warnings_in(caplog)
    assert "An earlier waiter can only be granted when that lease ends" in told


async def _take(acquiring: Any) -> Any:  # noqa: ANN401
    return await acquiring


# -- locks that others may release -------------------------------------------------------------------------------

HeldBy = Callable[[Client, Callable[[Any], None], Callable[[], None]], None]
"""Holds the name in some way, hands what another thread needs to release it over, and acquires the name again."""


def not_in_a_with(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Keep the lease in a variable."""
    lease = client.lock("name").acquire()
    hand_over(lease)
    again()


def by_a_call(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Enter the lock by a call, which another thread undoes."""

    class Leaving:
        @staticmethod
        def close() -> None:
            lock.__exit__(None, None, None)

    lock = client.lock("name")
    lock.__enter__()
    hand_over(Leaving)
    again()


def by_a_stack(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Enter it by an exit stack, which another thread closes."""
    with ExitStack() as stack:
        stack.enter_context(client.lock("name"))
        hand_over(stack.pop_all())
        again()


def by_a_generator(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Enter it in a generator, which another thread closes."""

    def body() -> Iterator[None]:
        with client.lock("name"):
            yield

    generator = body()
    next(generator)
    hand_over(generator)
    again()


def handed_to_a_worker(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Hand the lease over from inside the `with`."""
    with client.lock("name") as lease:
        hand_over(lease)
        again()


def handed_over_alone(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Hand it over from a `with` of the lease itself, and keep no variable."""
    with client.lock("name").acquire() as lease:
        hand_over(lease)
        del lease
        again()


class Place:
    """Where a lease can be found."""

    lease: Any


def in_an_attribute(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Keep it where other threads can see it."""
    place = Place()
    with client.lock("name") as place.lease:
        hand_over(place)
        again()


def in_a_closure(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Keep it in a variable of an inner function."""
    with client.lock("name") as lease:

        class Releasing:
            @staticmethod
            def release() -> None:
                lease.release()

        hand_over(Releasing)
        again()


def of_a_side(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Hold the name as a reader."""
    with client.rwlock("name").read() as lease:
        hand_over(lease)
        again()


def of_several_names(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Hold several names, as one lease."""
    with client.multilock(["name", "other"]) as lease:
        hand_over(lease)
        again()


def of_a_leader(client: Client, hand_over: Callable[[Any], None], again: Callable[[], None]) -> None:
    """Lead; the election object can resign."""
    election = client.election("name")
    election.campaign()
    hand_over(Place())
    thread = threading.Timer(0.05, election.resign)
    thread.start()
    again()
    thread.join()


FREE: dict[str, HeldBy] = {
    each.__name__: each
    for each in (
        not_in_a_with,
        by_a_call,
        by_a_stack,
        by_a_generator,
        handed_to_a_worker,
        handed_over_alone,
        in_an_attribute,
        in_a_closure,
        of_a_side,
        of_several_names,
        of_a_leader,
    )
}


def released_meanwhile(held_by: HeldBy) -> None:
    """Acquire again while another thread releases the lease as soon as the first one waits."""
    box: queue.Queue[Any] = queue.Queue()

    def release() -> None:
        what = box.get(timeout=TEST_TIMEOUT)
        eventually(lambda: waits_in_queue(client) or over.is_set(), "it waits")
        what = getattr(what, "lease", what)
        for end in ("release", "close"):
            if hasattr(what, end):
                getattr(what, end)()

    def again() -> None:
        lock: Any = client.lock("name") if held_by is not of_a_side else client.rwlock("name").write()
        try:
            lock.acquire().release()
        finally:
            over.set()

    over = threading.Event()
    with client_in_memory() as client, ThreadPoolExecutor(1) as pool:
        releasing = pool.submit(release)
        held_by(client, box.put, again)
        releasing.result(TEST_TIMEOUT)


@pytest.mark.parametrize("held_by", FREE)
def test_a_lease_that_another_thread_can_release_is_waited_for(held_by: str) -> None:
    """SelfDeadlock would be wrong: the wait ends."""
    released_meanwhile(FREE[held_by])


def test_a_lease_that_is_released_during_the_look_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that could release the lease has done so, and has forgotten it, when the look comes to who could."""
    handed: list[Any] = []

    def look(lease: CoreLease) -> bool:
        with ThreadPoolExecutor(1) as pool:
            while handed:
                pool.submit(lambda: handed.pop().release()).result(TEST_TIMEOUT)
        return is_bound(lease)

    is_bound = self_deadlock._is_bound
    monkeypatch.setattr(self_deadlock, "_is_bound", look)
    with client_in_memory() as client, client.lock("name") as lease:
        handed.append(lease)
        client.lock("name").acquire().release()
        assert not handed


def test_who_may_wait_for_itself_is_told_once(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """After a second, in the local queue and in the store's; who releases the lease in time is not told."""
    for ttl in (20.0, 10.0):
        caplog.clear()
        lease = client.lock("name", ttl=20).acquire()
        timer = threading.Timer(2.5, lease.release)
        timer.start()
        client.lock("name", ttl=ttl).acquire().release()
        timer.join()
        (told,) = warnings_in(caplog)
        assert WAITED in told
        assert f"token {lease.token}" in told
        assert "reentrant=True" in told
    caplog.clear()
    lease = client.lock("name").acquire()
    timer = threading.Timer(0.05, lease.release)
    timer.start()
    client.lock("name").acquire().release()
    timer.join()
    lease = client.lock("name").acquire()
    with pytest.raises(LockTimeout):
        client.lock("name").acquire(timeout=1.2)
    lease.release()
    assert not warnings_in(caplog)


def test_who_waits_for_others_is_told_nothing(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Another thread holds the lock, or the other permits."""
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(client.lock("name").acquire).result()
        permits = pool.submit(client.semaphore("permits", 2).acquire).result()
    mine = client.semaphore("permits", 3 - 1).acquire(timeout=0)
    timer = threading.Timer(1.5, theirs.release)
    timer.start()
    client.lock("name").acquire().release()
    timer.join()
    mine.release()
    permits.release()
    assert not warnings_in(caplog)


# -- locks that nobody else can release --------------------------------------------------------------------------

Again = Callable[[], None]


def in_a_with(client: Client, again: Again) -> None:
    """Hold the lock, without a variable."""
    with client.lock("name"):
        again()


def with_a_variable(client: Client, again: Again) -> None:
    """Hold it, with a variable that nobody else has."""
    with client.lock("name") as lease:
        again()
        lease.check()


def with_two_variables(client: Client, again: Again) -> None:
    """Hold the lease itself."""
    lease = client.lock("name").acquire()
    with lease as also:
        again()
        also.check()


def with_a_lease(client: Client, again: Again) -> None:
    """Hold the lease itself, without a variable."""
    with client.lock("name").acquire():
        again()


def decorated(client: Client, again: Again) -> None:
    """Run under the lock."""
    client.lock("name")(again)()


def reentrant(client: Client, again: Again) -> None:
    """Hold it as a reentrant lock, twice."""
    lock = client.lock("name", reentrant=True)
    with lock as _outer, lock:
        again()


def several_names(client: Client, again: Again) -> None:
    """Hold several names."""
    with client.multilock(["name", "other"]) as leases:
        again()
        leases.check()


def reading(client: Client, again: Again) -> None:
    """Read."""
    with client.rwlock("name").read() as lease:
        again()
        lease.check()


def leading(client: Client, again: Again) -> None:
    """Lead."""
    with client.election("name").campaign("me"):
        again()


def in_a_generator_that_runs(client: Client, again: Again) -> None:
    """Hold it in a generator that runs now."""

    def body() -> Iterator[None]:
        with client.lock("name"):
            again()
            yield

    list(body())


BOUND = {
    each.__name__: each
    for each in (
        in_a_with,
        with_a_variable,
        with_two_variables,
        with_a_lease,
        decorated,
        reentrant,
        several_names,
        reading,
        leading,
        in_a_generator_that_runs,
    )
}


def refused(hold: Callable[[Client, Again], None], client: Client, stop: Stop | None = None) -> None:
    """Acquire again, several times; `stop` would end a wait."""
    seen: list[int] = []

    def again() -> None:
        locks: list[Any] = [client.rwlock("name").write()]
        if hold is not reading:
            locks = [client.lock("name"), client.lock("name", ttl=7), client.multilock(["name", "free"])]
        for lock in locks * 2:
            with pytest.raises(SelfDeadlock, match="already holds 'name'"):
                lock.acquire(stop=stop)
            seen.append(1)

    hold(client, again)
    assert seen
    assert not client.names()


@pytest.mark.parametrize("hold", BOUND)
def test_who_would_wait_for_itself_for_ever_is_refused(hold: str, client: Client) -> None:
    """As often as it tries; it keeps its lease, and joins no queue."""
    refused(BOUND[hold], client)


def test_a_task_that_would_wait_for_itself_is_refused_and_one_that_might_is_not() -> None:
    """The same in asyncio: coroutines that await each other are one stack, and another task may have the lease."""

    @contextlib.asynccontextmanager
    async def held_in_a_generator(lock: Any) -> AsyncGenerator[None]:  # noqa: ANN401
        async with lock:
            yield

    async def again(client: AsyncClient) -> None:
        await asyncio.sleep(0)
        for lock in (client.lock("name"), client.lock("name", ttl=7), client.multilock(["name", "free"])) * 2:
            with pytest.raises(SelfDeadlock):
                await lock.acquire()
            with pytest.raises(SelfDeadlock):
                async with lock:
                    pass

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            async with client.lock("name"):
                await again(client)
            async with client.lock("name") as lease:
                await again(client)
                lease.check()
            async with client.lock("name").acquire() as lease:
                await again(client)
                lease.check()
            async with await client.lock("name").acquire():
                await again(client)
            async with client.multilock(["name", "other"]), client.lock("third"):
                await again(client)
            await client.lock("name")(again)(client)

            async def release(lease: Any) -> None:  # noqa: ANN401
                await asyncio.sleep(1)
                await lease.release()

            async with client.lock("name") as lease:
                releasing = asyncio.create_task(release(lease))
                await (await client.lock("name").acquire()).release()
            await releasing
            entered = held_in_a_generator(client.lock("name"))
            await entered.__aenter__()
            leaving = asyncio.get_running_loop().call_later(1, lambda: left.append(asyncio.create_task(leave(entered))))
            await (await client.lock("name").acquire()).release()
            assert leaving.when() <= asyncio.get_running_loop().time()
            assert not await client.names()

    async def leave(entered: Any) -> None:  # noqa: ANN401
        await entered.__aexit__(None, None, None)

    left: list[asyncio.Task[None]] = []
    virtual.run(main)


def test_a_variable_of_a_module_is_everybodys(client: Client) -> None:
    """A thread may find the lease there; without a variable nobody can."""
    code = "with lock{}:\n    again()\n"

    def refuse() -> None:
        with pytest.raises(SelfDeadlock):
            client.lock("name").acquire()

    def wait() -> None:
        threading.Timer(0.05, variables["lease"].release).start()
        client.lock("name").acquire().release()

    exec(code.format(""), {"lock": client.lock("name"), "again": refuse})  # noqa: S102 - a module
    variables: dict[str, Any] = {"lock": client.lock("name"), "again": wait}
    exec(code.format(" as lease"), variables)  # noqa: S102
    assert variables["lease"].state is LeaseState.RELEASED


# -- planted bugs ------------------------------------------------------------------------------------------------


def one_reference(lease_of: Callable[[], object], _frame: object) -> bool:
    """Take any one reference for a variable."""
    return entering._references(lease_of) <= entering._ALONE + 1


def any_variable(lease_of: Callable[[], object], frame: FrameType) -> bool:
    """Take the variables of inner functions and of modules for one's own."""
    mine = sum(value is lease_of() for value in frame.f_locals.values())
    return entering._references(lease_of) <= entering._ALONE + 2 * mine


def any_frame(_where: object) -> FrameType:
    """Take a frame that runs for that of the `with`."""
    return sys._getframe(1)


def always(value: object) -> Callable[..., object]:
    """Return a function that returns `value` whatever it is given."""

    def returning(*_: object) -> object:
        return value

    return returning


PLANTED: dict[str, tuple[str, object]] = {
    "whoever holds a lease is bound to it": ("tenure.core.self_deadlock._is_bound", always(True)),
    "nobody is bound": ("tenure.core.self_deadlock._is_bound", always(False)),
    "a lease object has one owner": ("tenure.core.self_deadlock.is_alone", always(True)),
    "a lease object has many owners": ("tenure.core.self_deadlock.is_alone", always(False)),
    "one reference is a variable": ("tenure.core.self_deadlock.is_alone", one_reference),
    "every variable is one's own": ("tenure.core.self_deadlock.is_alone", any_variable),
    "no variable is one's own": ("tenure.entering.CO_OPTIMIZED", 0),
    "a call is a `with`": ("tenure.core.self_deadlock.is_of_with", always(True)),
    "a `with` is a call": ("tenure.core.self_deadlock.is_of_with", always(False)),
    "every frame runs": ("tenure.core.self_deadlock.running_frame", any_frame),
    "no frame runs": ("tenure.core.self_deadlock.running_frame", always(None)),
    "no thread acquires": ("tenure.core.self_deadlock.held_by_caller", always([])),
}


@pytest.mark.filterwarnings("ignore:.*dropped without release", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong refusal raises; a missing one lets the thread wait until it is stopped."""
    monkeypatch.setattr(*PLANTED[bug])
    noticed = 0
    for held_by in FREE.values():
        try:
            released_meanwhile(held_by)
        except SelfDeadlock:
            noticed += 1
    for hold in BOUND.values():
        with client_in_memory() as client, ThreadPoolExecutor(1) as pool:
            over, stop = threading.Event(), Stop()

            def end_a_wait(client: Client = client, over: threading.Event = over, stop: Stop = stop) -> None:
                eventually(lambda: waits_in_queue(client) or over.is_set(), "it waits, or all is over")
                stop.set()

            stopping = pool.submit(end_a_wait)
            try:
                refused(hold, client, stop)
            except Stopped:
                noticed += 1
            finally:
                over.set()
            stopping.result(TEST_TIMEOUT)
    assert noticed
