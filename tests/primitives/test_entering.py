"""Each `with` releases the lease that it entered, whichever thread, task, generator or exit stack leaves it."""

import _thread
import asyncio
import contextlib
import gc
import logging
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import pytest

from tenure import AsyncClient, Client, LeaseLost, LeaseState, UsageError
from tenure.entering import NOWHERE, is_of_with, site
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually

NAMES = ("name", "other")

Kind = Callable[[Any], Any]

EXCLUSIVE: dict[str, Kind] = {
    "lock": lambda client: client.lock("name", timeout=TEST_TIMEOUT),
    "write": lambda client: client.rwlock("name", timeout=TEST_TIMEOUT).write(),
    "multilock": lambda client: client.multilock(NAMES, timeout=TEST_TIMEOUT),
}
SHARED: dict[str, Kind] = {
    "semaphore": lambda client: client.semaphore("name", 9, timeout=TEST_TIMEOUT),
    "read": lambda client: client.rwlock("name", timeout=TEST_TIMEOUT).read(),
}
REENTRANT: dict[str, Kind] = {"reentrant": lambda client: client.lock("name", reentrant=True, timeout=TEST_TIMEOUT)}
KINDS = EXCLUSIVE | SHARED | REENTRANT


@pytest.fixture
def client() -> Iterator[Client]:
    """Return a client of a table of its own."""
    with Client(store=memory_source(MemoryTable())) as client:
        yield client


class Threads:
    """Threads by name; each does one thing after another, and ends when it is told to."""

    def __init__(self) -> None:
        """Start without threads."""
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def do(self, name: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the work
        """Return what the thread returns."""
        pool = self._pools.setdefault(name, ThreadPoolExecutor(1))
        return pool.submit(work).result(TEST_TIMEOUT)

    def end(self, name: str) -> None:
        """End a thread."""
        self._pools.pop(name).shutdown()

    def end_all(self) -> None:
        """End all threads."""
        for name in list(self._pools):
            self.end(name)


@contextlib.contextmanager
def threads() -> Generator[Threads]:
    """Return threads that end with the block."""
    made = Threads()
    try:
        yield made
    finally:
        made.end_all()


def body(lock: Any) -> Generator[Any]:  # noqa: ANN401 - any kind
    """Hold a lock in a generator, as dependencies and fixtures do."""
    with lock as lease:
        yield lease


def close(generator: Generator[Any]) -> None:
    """End it as its caller does."""
    next(generator, None)


def held(*leases: Any) -> list[bool]:  # noqa: ANN401 - leases of any kind
    """Return which leases are held."""
    return [lease.state is LeaseState.HELD for lease in leases]


def all_left(lock: Any) -> bool:  # noqa: ANN401
    """Return whether a lock object remembers no lease."""
    entered = lock._entered
    return not entered._entries and not entered._latest


# -- one lease, left anywhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_with_may_be_left_in_another_thread(kind: str, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """By a generator, an exit stack, or a call; the thread that entered it lives on or has ended."""
    lock = KINDS[kind](client)
    with threads() as on:
        generator = body(lock)
        lease = on.do("one", partial(next, generator))
        on.do("two", partial(close, generator))
        assert held(lease) == [False]
        for ending in (False, True):
            stack = ExitStack()
            lease = on.do("one", partial(stack.enter_context, lock))
            if ending:
                on.end("one")
            on.do("two", stack.close)
            assert held(lease) == [False]
        lease = on.do("one", lock.__enter__)
        on.do("two", partial(lock.__exit__, None, None, None))
        assert held(lease) == [False]
    assert not client.names()
    assert all_left(lock)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", KINDS)
def test_an_async_with_may_be_left_in_another_task(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """By an async generator, an exit stack, or a call; the task that entered it lives on or has ended."""

    async def body(lock: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        async with lock as lease:
            yield lease

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lock = KINDS[kind](client)
            generator = body(lock)
            lease = await asyncio.create_task(anext(generator))  # type: ignore[arg-type, var-annotated]
            await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
            assert held(lease) == [False]
            for _ in range(2):
                stack = AsyncExitStack()
                lease = await asyncio.create_task(stack.enter_async_context(lock))
                await asyncio.create_task(stack.aclose())
                assert held(lease) == [False]
            stack = AsyncExitStack()
            lease = await stack.enter_async_context(lock)  # this task lives on
            await asyncio.create_task(stack.aclose())
            lease = await asyncio.create_task(lock.__aenter__())
            await asyncio.create_task(lock.__aexit__(None, None, None))
            assert held(lease) == [False]
            assert not await client.names()
            assert all_left(lock)

    virtual.run(main)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_dependencies_of_a_pool_of_threads_overlap_nowhere_and_stay_nowhere(client: Client) -> None:
    """A web framework enters each dependency in one thread of its pool, and leaves it in another."""
    shared = client.lock("shared", timeout=TEST_TIMEOUT)
    permits = client.semaphore("permits", 4, timeout=TEST_TIMEOUT)
    inside: list[int] = []

    def dependency(number: int) -> Generator[None]:
        with client.lock(f"customer:{number}"), permits, shared:
            inside.append(number)
            yield
            assert inside == [number]
            inside.clear()

    def request(number: int) -> None:
        generator = dependency(number)
        pools[number % 8].submit(next, generator).result(TEST_TIMEOUT)
        pools[(number + 3) % 8 + 8].submit(close, generator).result(TEST_TIMEOUT)

    pools = [ThreadPoolExecutor(1) for _ in range(16)]
    with ThreadPoolExecutor(4) as requests:
        list(requests.map(request, range(100)))
    for pool in pools:
        pool.shutdown()
    assert not client.names()
    assert all_left(shared)
    assert all_left(permits)


def test_fixtures_of_many_tests_are_left_in_tasks_of_their_own() -> None:
    """Each fixture is set up in a task that ends, and torn down in another one, in any order."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            semaphore = client.semaphore("name", 20)

            async def fixture() -> AsyncIterator[Any]:
                async with semaphore as lease:
                    yield lease

            generators = [fixture() for _ in range(20)]
            leases: list[Any] = [await asyncio.create_task(anext(each)) for each in generators]  # type: ignore[arg-type]
            for place in (7, 0, 19, 3, 12):
                await asyncio.create_task(generators[place].aclose())  # type: ignore[attr-defined]
                assert held(leases[place]) == [False]
            assert sum(held(*leases)) == 15
            await asyncio.gather(*(each.aclose() for each in generators))  # type: ignore[attr-defined]
            assert not any(held(*leases))
            assert all_left(semaphore)

    virtual.run(main)


# -- several leases of one object --------------------------------------------------------------------------------


def bodies_out_of_order(make: Kind, client: Client, _on: Threads) -> None:
    """End two generators of one thread in the order in which they began."""
    lock = make(client)
    one, two = body(lock), body(lock)
    leases = next(one), next(two)
    close(one)
    assert held(*leases) == [False, True]
    close(two)
    assert held(*leases) == [False, False]
    assert all_left(lock)


def bodies_in_each_others_threads(make: Kind, client: Client, on: Threads) -> None:
    """Leave each in the thread that entered the other."""
    lock = make(client)
    one, two = body(lock), body(lock)
    leases = on.do("one", partial(next, one)), on.do("two", partial(next, two))
    on.do("two", partial(close, one))
    assert held(*leases) == [False, True]
    on.do("one", partial(close, two))
    assert held(*leases) == [False, False]


def nested(make: Kind, client: Client, _on: Threads) -> None:
    """Enter the object in one function twice, and then again."""
    lock = make(client)
    with lock as outer:
        with lock as inner:
            assert held(outer, inner) == [True, True]
        assert held(outer, inner) == [True, False]
        with lock as inner:
            pass
        assert held(outer, inner) == [True, False]
    assert held(outer) == [False]
    assert all_left(lock)


def stack_inside_a_with(make: Kind, client: Client, _on: Threads) -> None:
    """Close an exit stack of the same thread inside a `with`, which goes on."""
    lock, stack = make(client), ExitStack()
    first = stack.enter_context(lock)
    second = stack.enter_context(lock)
    with lock as lease:
        stack.close()
        assert held(first, second, lease) == [False, False, True]
    assert held(lease) == [False]


def stack_of_a_thread_inside_a_with(make: Kind, client: Client, on: Threads) -> None:
    """Close a stack that another thread has filled, which lives on."""
    lock, stack = make(client), ExitStack()
    first = on.do("one", partial(stack.enter_context, lock))
    with lock as lease:
        stack.close()
        assert held(first, lease) == [False, True]


def stacks_one_after_another(make: Kind, client: Client, _on: Threads) -> None:
    """Close first the stack of the thread that was filled last."""
    lock, one, two = make(client), ExitStack(), ExitStack()
    leases = one.enter_context(lock), two.enter_context(lock)
    two.close()
    assert held(*leases) == [True, False]
    one.close()
    assert held(*leases) == [False, False]


def stacks_of_threads(make: Kind, client: Client, on: Threads) -> None:
    """Close each in the thread that filled it."""
    lock, one, two = make(client), ExitStack(), ExitStack()
    leases = on.do("one", partial(one.enter_context, lock)), on.do("two", partial(two.enter_context, lock))
    on.do("one", one.close)
    assert held(*leases) == [False, True]
    on.do("two", two.close)
    assert held(*leases) == [False, False]


def nobody_leaves_what_others_entered(make: Kind, client: Client, on: Threads) -> None:
    """Leave too often: that releases nobody's lease."""
    lock = make(client)
    generator = body(lock)
    lease = on.do("one", partial(next, generator))
    for name in ("one", "two"):
        with pytest.raises(UsageError, match="not entered here, or was left before"):
            on.do(name, partial(lock.__exit__, None, None, None))
    with lock as mine, pytest.raises(UsageError, match="not entered here"):
        on.do("two", partial(lock.__exit__, None, None, None))
    assert held(lease, mine) == [True, False]
    on.do("one", partial(close, generator))
    assert held(lease) == [False]


def one_of_many_names(_make: Kind, client: Client, on: Threads) -> None:
    """Decorate with one object of many names."""
    leases: list[Any] = []
    inside, go_on = threading.Barrier(3), threading.Event()

    @client.lock("user:{number}")
    def work(number: int) -> None:
        leases.append(number)
        inside.wait(TEST_TIMEOUT)
        go_on.wait(TEST_TIMEOUT)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(work, number) for number in range(2)]
        inside.wait(TEST_TIMEOUT)
        assert client.names() == ["user:0", "user:1"]
        go_on.set()
        for job in jobs:
            job.result(TEST_TIMEOUT)
    assert not client.names()


def oldest_that_has_ended(make: Kind, client: Client, on: Threads) -> None:
    """Leave what nobody can tell: the oldest lease whose thread has ended; if none has, none."""
    lock = make(client)
    stacks = [ExitStack() for _ in range(3)]
    leases = [on.do(f"{number}", partial(stack.enter_context, lock)) for number, stack in enumerate(stacks)]
    with pytest.raises(UsageError, match="entered 3 times, by other threads or tasks"):
        lock.__exit__(None, None, None)
    assert held(*leases) == [True, True, True]
    on.end("2")
    on.end("1")
    lock.__exit__(None, None, None)
    assert held(*leases) == [True, False, True]
    for lease in leases:
        lease.release()


SCENES = {
    scene.__name__: scene
    for scene in (
        bodies_out_of_order,
        bodies_in_each_others_threads,
        nested,
        stack_inside_a_with,
        stack_of_a_thread_inside_a_with,
        stacks_one_after_another,
        stacks_of_threads,
        nobody_leaves_what_others_entered,
        one_of_many_names,
        oldest_that_has_ended,
    )
}
OF_ONE_THREAD = ("bodies_out_of_order", "nested", "stack_inside_a_with", "stacks_one_after_another")


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("scene", SCENES)
def test_each_with_releases_its_own_lease(scene: str, kind: str, client: Client) -> None:
    """One object was entered several times, by one thread or by many."""
    with threads() as on:
        SCENES[scene](SHARED[kind], client, on)
    assert not client.names()


@pytest.mark.parametrize("scene", OF_ONE_THREAD)
def test_each_with_of_a_reentrant_lock_releases_its_own_lease(scene: str, client: Client) -> None:
    """One thread entered it several times."""
    with threads() as on:
        SCENES[scene](REENTRANT["reentrant"], client, on)
    assert not client.names()


def test_to_release_a_lease_for_want_of_a_better_one_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says how to be sure."""
    with threads() as on:
        oldest_that_has_ended(SHARED["semaphore"], client, on)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "keep the lease that acquire() returns" in record.getMessage()


@pytest.mark.parametrize("kind", SHARED | REENTRANT)
def test_each_async_with_releases_its_own_lease(kind: str) -> None:
    """The same in asyncio, with generators, exit stacks and calls."""

    async def body(lock: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        async with lock as lease:
            yield lease

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lock = KINDS[kind](client)
            one, two = body(lock), body(lock)
            leases = await anext(one), await anext(two)
            await one.aclose()  # type: ignore[attr-defined]
            assert held(*leases) == [False, True]
            stack = AsyncExitStack()
            first, second = await stack.enter_async_context(lock), await stack.enter_async_context(lock)
            async with lock as lease, lock as inner:
                await stack.aclose()
                assert held(leases[1], first, second, lease, inner) == [True, False, False, True, True]
            assert held(leases[1], lease, inner) == [True, False, False]
            await asyncio.create_task(two.aclose())  # type: ignore[attr-defined]
            assert not await client.names()
            assert all_left(lock)

    virtual.run(main)


def test_nobody_can_tell_in_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    """A task that lives on keeps its lease; that of a task that has ended is released, and logged."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            semaphore = client.semaphore("name", 9)
            go_on = asyncio.Event()

            async def enter(*, stay: bool) -> Any:  # noqa: ANN401
                lease = await semaphore.__aenter__()
                leases.append(lease)
                if stay:
                    await go_on.wait()

            leases: list[Any] = []
            tasks = [asyncio.create_task(enter(stay=True)) for _ in range(2)]
            await asyncio.sleep(1)
            with pytest.raises(UsageError, match="entered 2 times"):
                await semaphore.__aexit__(None, None, None)
            ended = asyncio.create_task(enter(stay=False))
            await ended
            await semaphore.__aexit__(None, None, None)
            assert held(*leases) == [True, True, False]
            go_on.set()
            await asyncio.gather(*tasks)
            for _ in tasks:
                await semaphore.__aexit__(None, None, None)
            assert not any(held(*leases))

    virtual.run(main)
    assert [record.levelno for record in caplog.records if record.name == "tenure"] == [logging.WARNING] * 2


def test_a_task_that_leaves_for_another_keeps_its_own_cancellation() -> None:
    """A loss cancels the task that entered the body; whoever leaves it is cancelled by others only."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            stack = AsyncExitStack()

            async def enter() -> None:
                await stack.enter_async_context(client.lock("name"))
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)

            async def use() -> None:
                async with stack:
                    await asyncio.sleep(1000)

            entering = asyncio.create_task(enter())
            await asyncio.sleep(1)
            using = asyncio.create_task(use())
            await asyncio.sleep(1)
            await client.revoke("name", force=True)
            await asyncio.wait_for(entering, 60)
            using.cancel()
            with pytest.raises(asyncio.CancelledError):
                await using
            assert using.cancelled()

    virtual.run(main)


def test_a_loss_is_raised_in_whichever_thread_leaves(client: Client) -> None:
    """A lease that was lost meanwhile is no reason to release another one."""
    semaphore = client.semaphore("name", 3)
    with threads() as on:
        one, two = body(semaphore), body(semaphore)
        leases = on.do("one", partial(next, one)), on.do("two", partial(next, two))
        client.revoke("name", force=True, token=leases[0].token)
        with pytest.raises(LeaseLost):
            on.do("two", partial(next, one, None))
        assert held(*leases) == [False, True]
        on.do("one", partial(close, two))


# -- how a `with` is recognised ----------------------------------------------------------------------------------


class Recorder:
    """Notes the sites at which it is entered and left."""

    def __enter__(self) -> None:
        self.entered = site(1)

    def __exit__(self, *error: object) -> None:
        self.left = site(1)

    async def __aenter__(self) -> None:
        await asyncio.sleep(0)
        self.entered = site(1)

    async def __aexit__(self, *error: object) -> None:
        self.left = site(1)


def test_a_with_statement_is_told_from_a_call() -> None:
    """In a function, a generator, a coroutine, an async generator and a module; with or without a target."""
    made: list[Recorder] = []

    def new() -> Recorder:
        made.append(Recorder())
        return made[-1]

    def generator() -> Iterator[None]:
        with new() as _:
            yield

    async def agenerator() -> AsyncIterator[None]:
        async with new():
            yield

    async def coroutine() -> None:
        async with new(), new() as _:
            await asyncio.sleep(0)
        async for _ in agenerator():
            pass

    with new(), new() as _, ExitStack() as stack:
        stack.enter_context(each := Recorder())
        assert not is_of_with(each.entered)
    list(generator())
    asyncio.run(coroutine())
    exec("with new():\n    pass", {"new": new})  # noqa: S102 - a module
    assert len(made) == 7
    for each in made:
        assert is_of_with(each.entered)
        assert each.entered[:2] == each.left[:2]

    async def by_call() -> Recorder:
        recorder = Recorder()
        await recorder.__aenter__()
        assert not is_of_with(recorder.entered)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(recorder)
            assert not is_of_with(recorder.entered)
        return recorder

    asyncio.run(by_call())
    recorder = Recorder()
    recorder.__enter__()
    assert not is_of_with(recorder.entered)
    assert not is_of_with(NOWHERE)


def test_a_lock_may_be_entered_and_left_without_a_caller(client: Client) -> None:
    """C calls it, as atexit does: there is no frame above."""
    semaphore = client.semaphore("name", 3)
    _thread.start_new_thread(semaphore.__enter__, ())
    eventually(lambda: semaphore._entered._entries, "it is entered")  # a little later than it is granted
    with semaphore:
        _thread.start_new_thread(semaphore.__exit__, (None, None, None))
        eventually(lambda: len(client.inspect("name").holders) == 1, "it is left")
    assert not client.names()


def test_no_frame_is_kept_alive(client: Client) -> None:
    """What a function had that entered a lock by a stack goes with the function."""

    class Local:
        pass

    def enter() -> "weakref.ref[Local]":
        local = Local()
        semaphore.__enter__()
        return weakref.ref(local)

    semaphore = client.semaphore("name", 3)
    gc.disable()
    try:
        locals_ = [enter() for _ in range(3)]
        assert [each() for each in locals_] == [None] * 3
    finally:
        gc.enable()
    for _ in locals_:
        semaphore.__exit__(None, None, None)
    assert all_left(semaphore)


def test_a_frame_is_not_taken_for_an_ended_one_at_its_address(client: Client) -> None:
    """Frames come to stand where others stood; each thread still leaves its own lease."""
    semaphore = client.semaphore("name", 9)

    def toggle(*, on: bool) -> Any:  # noqa: ANN401
        return semaphore.__enter__() if on else semaphore.__exit__(None, None, None)

    with threads() as other:
        theirs = other.do("one", partial(toggle, on=True))
        mine = [toggle(on=True) for _ in range(2)]
        for _ in mine:
            toggle(on=False)
        assert held(theirs, *mine) == [True, False, False]
        other.do("one", partial(toggle, on=False))
    assert not client.names()


def test_threads_that_share_an_object_leave_nothing_behind(client: Client) -> None:
    """They enter and leave it in all ways at once, with and without a GIL."""
    semaphore = client.semaphore("name", 100)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:

            def work(_number: int) -> None:
                generator, stack = body(semaphore), ExitStack()
                lease = next(generator)
                with semaphore, semaphore as inner:
                    first = stack.enter_context(semaphore)
                    pool_of_one.submit(close, generator).result(TEST_TIMEOUT)
                    assert held(lease, first, inner) == [False, True, True]
                    stack.close()
                    assert held(first, inner) == [False, True]

            with ThreadPoolExecutor(1) as pool_of_one:
                list(pool.map(work, range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert all_left(semaphore)
    assert not client.names()


# -- planted bugs ------------------------------------------------------------------------------------------------


def by_thread_alone(entered: Any, name: str) -> Any:  # noqa: ANN401 - stands for a method
    """Leave what this thread entered last, as if a `with` could not change its thread."""
    here = entered._here()
    for entry in reversed(entered._entries.copy().values()):
        if entry[1] == name and entry[3] is here:
            return entry[0]
    raise UsageError("not entered here, or was left before")


def the_last_one(entered: Any, name: str) -> Any:  # noqa: ANN401
    """Leave what anybody entered last."""
    for entry in reversed(entered._entries.copy().values()):
        if entry[1] == name:
            return entry[0]
    raise UsageError("not entered here, or was left before")


def whichever_name(entered: Any, _name: str) -> Any:  # noqa: ANN401
    """Leave what this frame entered, under any name."""
    return next(iter(entered._entries.copy().values()))[0]


def always(value: object) -> Callable[..., object]:
    """Return a function that returns `value` whatever it is given."""

    def returning(*_: object) -> object:
        return value

    return returning


PLANTED: dict[str, tuple[str, object]] = {
    "by thread alone": ("tenure.entering.Entered.find", by_thread_alone),
    "the last one": ("tenure.entering.Entered.find", the_last_one),
    "whichever name": ("tenure.entering.Entered.find", whichever_name),
    "a `with` is left by anybody": ("tenure.entering.is_of_with", always(False)),
    "every call is taken for a `with`": ("tenure.entering.is_of_with", always(True)),
    "no thread has ever ended": ("tenure.runtimes.threads.ended", always(False)),
    "every thread has ended": ("tenure.runtimes.threads.ended", always(True)),
    "all threads are one": ("tenure.runtimes.threads.mark", lambda: PLANTED),
    "frames are not compared": ("tenure.entering.Entered._is_of", always(False)),
    "every frame is the right one": ("tenure.entering.Entered._is_of", always(True)),
    "what is left stays known": ("tenure.entering.Entered.forget", always(True)),
}


@pytest.mark.filterwarnings("ignore:.*dropped without release", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one scene notices it."""
    monkeypatch.setattr(*PLANTED[bug])
    noticed = 0
    for scene in SCENES.values():
        with Client(store=memory_source(MemoryTable())) as client, threads() as on:
            try:
                scene(SHARED["semaphore"], client, on)
            except (AssertionError, UsageError, pytest.fail.Exception):
                noticed += 1
    assert noticed
