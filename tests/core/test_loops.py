"""One AsyncClient in several event loops: one after another, side by side in threads, and closed in any of them."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure import AsyncClient, ForkedLeaseError, Outcome, Stopped, UsageError
from tenure.client import aio as clients
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.core.session import Session
from tenure.entering import Entered
from tenure.runtimes import aio
from tenure.runtimes.aio import LoopClose
from tenure.stores.memory import MemoryTable, memory_source
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually, soon
from tests.planting import planted

ROUNDS = 200


def memory() -> StoreSource:
    """Make a store that the test has alone."""
    return memory_source(MemoryTable())


@contextmanager
def loop_of_a_thread() -> Generator[asyncio.AbstractEventLoop]:
    """Run an event loop in another thread, as a worker does, and end it as asyncio.run() does."""
    started: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        started.append(asyncio.get_running_loop())
        await over.wait()

    over = asyncio.Event()
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    eventually(lambda: started, "the loop runs")
    try:
        yield started[0]
    finally:
        started[0].call_soon_threadsafe(over.set)
        thread.join(TEST_TIMEOUT)
        assert not thread.is_alive()


def within(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - whatever it returns
    """Run a coroutine in the loop of another thread."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(TEST_TIMEOUT)


async def used(client: AsyncClient) -> list[str]:
    """Return the names that are held or waited for."""
    async with client:
        return await client.names()


def one_after_another(make: Callable[[], AsyncClient]) -> None:
    """Each loop serves locks and functions made before it, and leaves no lease, waiter or warning behind."""
    client, tokens = make(), list[int]()
    lock, semaphore = client.lock("name"), client.semaphore("slots", 2)

    @client.lock("call:{number}")
    async def call(number: int) -> int:
        async with lock as lease, semaphore:
            tokens.append(lease.token)
        return number

    async def main(number: int) -> Any:  # noqa: ANN401 - a lease of one of two forms
        assert await call(number) == number
        left = await client.lock("left", ttl=30).acquire(timeout=5)
        waiting.append(asyncio.create_task(lock_and_leave()))
        while not (await client.inspect("left")).waiters:  # noqa: ASYNC110 - it is in the store
            await asyncio.sleep(0.002)
        return left

    async def lock_and_leave() -> None:
        async with client.lock("left", ttl=30):
            raise AssertionError

    waiting = list[asyncio.Task[None]]()
    leases = [asyncio.run(main(number)) for number in range(3)]
    assert tokens == sorted(set(tokens))
    assert all(each.cancelled() for each in waiting)
    assert asyncio.run(used(make())) == []

    async def look_back() -> list[Outcome]:
        return [await each.release() for each in leases]

    assert asyncio.run(look_back()) == [Outcome.RELEASED] * 3
    by_hand = asyncio.new_event_loop()
    leases.append(by_hand.run_until_complete(client.lock("left", ttl=30).acquire(timeout=5)))
    by_hand.close()
    by_hand.close()
    assert asyncio.run(used(make())) == []


def side_by_side(make: Callable[[], AsyncClient]) -> None:
    """Loops of two threads contend for one name, by one lock object: they are never inside at once."""
    client = make()
    lock, inside, overlaps, tokens = client.lock("name"), list[int](), list[int](), list[int]()

    async def main(me: int) -> None:
        for _ in range(ROUNDS):
            async with lock as lease:
                inside.append(me)
                await asyncio.sleep(0)
                overlaps.extend(each for each in inside if each != me)
                tokens.append(lease.token)
                inside.remove(me)

    def run(me: int) -> None:
        asyncio.run(main(me))

    threads = [threading.Thread(target=run, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TEST_TIMEOUT)
    assert len(tokens) == 2 * ROUNDS
    assert not overlaps
    assert tokens == sorted(set(tokens))


SCENES = [one_after_another, side_by_side]
STORES = ["memory", "sqlite", "redis"]


def url_of(store: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a store that the test has alone."""
    if store == "redis":
        return str(request.getfixturevalue("redis_server").url)
    return f"memory://{folder}" if store == "memory" else f"sqlite://{folder}/locks.db"


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("scene", SCENES)
def test_one_client_in_several_loops(
    scene: Callable[[Callable[[], AsyncClient]], None], store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Python's warnings are errors, also those of a socket, coroutine or client that was left."""
    before = threading.active_count()
    url = url_of(store, tmp_path, request)
    scene(lambda: AsyncClient(url, namespace=tmp_path.name))
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize("store", STORES)
def test_nothing_is_said_in_development_mode(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """No warning and no complaint of asyncio, at the end of the process either."""
    text = (
        "from tenure import AsyncClient; from tests.core import test_loops as t; import functools\n"
        f"make = functools.partial(AsyncClient, {url_of(store, tmp_path, request)!r}, namespace={tmp_path.name!r})\n"
        "t.ROUNDS = 10\nfor scene in t.SCENES: scene(make)\n"
    )
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", text]
    quiet = {**os.environ, "PYTHONASYNCIODEBUG": ""}  # debug mode logs each step that is slow
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TEST_TIMEOUT, check=False, env=quiet)
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, said) == (0, [])


def test_a_lease_is_left_in_its_own_loop() -> None:
    """Exit stacks of two loops enter one semaphore object, and each leaves the lease of its loop, from another task."""
    client = AsyncClient(store=memory())
    semaphore = client.semaphore("slots", 2)

    async def enter(stack: AsyncExitStack) -> Any:  # noqa: ANN401 - a lease
        return await asyncio.create_task(stack.enter_async_context(semaphore))

    async def main() -> None:
        here, there = AsyncExitStack(), AsyncExitStack()
        with loop_of_a_thread() as other:
            mine = await enter(here)
            theirs = await asyncio.to_thread(within, other, enter(there))
            await asyncio.to_thread(within, other, there.aclose())
            assert (theirs.remaining(), mine.remaining() > 0) == (0.0, True)
            await here.aclose()
            assert mine.remaining() == 0.0

    asyncio.run(main())


def test_many_clients_of_one_loop_end_with_it() -> None:
    """All are closed with the loop, whose close is replaced once, however many clients there were."""
    source = memory()

    async def main() -> list[Any]:
        leases = [await AsyncClient(store=source).lock(f"name {number}").acquire() for number in range(3)]
        close: Any = asyncio.get_running_loop().close
        assert isinstance(close, LoopClose)
        assert not isinstance(close._close, LoopClose)
        return leases

    leases = asyncio.run(main())
    assert asyncio.run(used(AsyncClient(store=source))) == []
    assert [each.remaining() for each in leases] == [0.0] * 3


def test_a_close_closes_the_sessions_of_other_loops() -> None:
    """When close() returns, the leases of a loop that runs in another thread are released, and it acquires no more."""
    client = AsyncClient(store=(source := memory()))
    with loop_of_a_thread() as other:
        lease = within(other, client.lock("name", ttl=600).acquire())
        asyncio.run(client.close())
        assert lease.remaining() == 0.0
        with pytest.raises(UsageError, match="closed"):
            within(other, client.lock("name").try_acquire())
        assert asyncio.run(used(AsyncClient(store=source))) == []


def test_a_close_waits_for_no_loop_that_stands_still() -> None:
    """A blocked loop closes its part of the client when it goes on; one that runs no more, when it is closed."""
    client = AsyncClient(store=(source := memory()))
    idle, go_on, said = asyncio.new_event_loop(), threading.Event(), list[str]()

    def say(text: str, *values: object) -> None:
        said.append(text % values)

    kept = idle.run_until_complete(client.lock("idle").acquire())
    with loop_of_a_thread() as blocked:
        lease = within(blocked, client.lock("blocked").acquire())
        blocked.call_soon_threadsafe(go_on.wait)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(clients, "CLOSING", 0.05)
                patch.setattr(aio.log, "warning", say)
                asyncio.run(client.close())
            assert [each[:13] for each in said] == ["1 event loops"]
            assert asyncio.run(used(AsyncClient(store=source))) == ["blocked", "idle"]
        finally:
            go_on.set()  # also where a planted bug is found: the loop's thread ends
        eventually(lambda: lease.remaining() == 0.0, "the blocked loop closes its part")
    idle.close()
    assert kept.remaining() == 0.0
    assert asyncio.run(used(AsyncClient(store=source))) == []


def test_a_drain_waits_for_the_holders_of_other_loops() -> None:
    """A holder in another thread's loop is asked to let go, and has its time; then nothing is acquired there."""
    client, asked = AsyncClient(store=memory()), threading.Event()

    async def hold() -> bool:
        release = asyncio.Event()

        def let_go(_lease: object) -> None:
            asked.set()
            release.set()

        async with client.lock("name", on_revoke=let_go):
            held.set()
            await release.wait()
        with pytest.raises(Stopped):
            await client.lock("name").try_acquire()
        return True

    held = threading.Event()
    with loop_of_a_thread() as other:
        holding = asyncio.run_coroutine_threadsafe(hold(), other)
        assert held.wait(TEST_TIMEOUT)
        assert asyncio.run(client.drain(TEST_TIMEOUT))
        assert asked.is_set()
        assert holding.result(TEST_TIMEOUT)


def test_a_session_that_begins_while_the_client_is_closed_is_refused() -> None:
    """The close in another thread may not have seen the session, so nothing is acquired in it."""
    source = memory()

    def make(runtime: Runtime) -> Store:
        closing = threading.Thread(target=lambda: asyncio.run(client.close()))
        closing.start()
        closing.join(TEST_TIMEOUT)
        return source.make(runtime)

    client = AsyncClient(store=StoreSource(source.title, source.capabilities, make))

    async def main() -> None:
        with pytest.raises(UsageError, match="closed"):
            await client.lock("name").acquire(timeout=0)

    asyncio.run(main())
    assert asyncio.run(used(AsyncClient(store=source))) == []


def test_a_close_that_ends_with_its_loop_is_completed() -> None:
    """asyncio.run() cancels a close that is under way; then the end of the loop closes the session."""
    closes = list[bool]()

    async def hang_once(operation: str, done: bool) -> None:
        if operation == "close":
            closes.append(done)
            if len(closes) == 1:
                await asyncio.sleep(600)

    client = AsyncClient(store=disturbed(memory(), hang_once, local=False))

    async def main() -> asyncio.Task[None]:
        await (await client.lock("name").acquire()).release()
        closing = asyncio.create_task(client.close())
        await soon(lambda: closes, "the store is being closed")
        return closing

    assert asyncio.run(main()).cancelled()
    assert closes == [False, False, True]


class Sealed(asyncio.SelectorEventLoop):
    """A loop whose methods cannot be replaced, as those of one that is written in C."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "close":
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_loop_whose_close_cannot_be_replaced_is_served() -> None:
    """The client is closed by its user there."""

    async def work() -> None:
        async with AsyncClient(store=memory()) as client, client.lock("name"):
            pass

    with asyncio.Runner(loop_factory=Sealed) as runner:
        runner.run(work())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_no_lease_of_any_loop(tmp_path: Path) -> None:
    """In the child the leases of all loops are inert, and the end of an inherited loop ends nothing of the parent's."""
    client = AsyncClient(url := f"sqlite://{tmp_path}/locks.db")
    loops = [asyncio.new_event_loop() for _ in range(2)]
    leases = [loop.run_until_complete(client.lock(f"{n}").acquire()) for n, loop in enumerate(loops)]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for lease in leases:
                with pytest.raises(ForkedLeaseError):
                    lease.check()
            for loop in loops:
                loop.close()
            status = 0
        finally:
            os._exit(status)
    try:
        assert os.waitpid(pid, 0)[1] == 0
        assert asyncio.run(used(AsyncClient(url))) == ["0", "1"]
        for loop, lease in zip(loops, leases, strict=True):
            lease.check()
            assert loop.run_until_complete(lease.release()) is Outcome.RELEASED
    finally:
        for loop in loops:
            loop.close()


# -- planted bugs ------------------------------------------------------------------------------------------


def in_memory(scene: Callable[[Callable[[], AsyncClient]], None]) -> None:
    """Run a scene on a store that it has alone."""
    scene(partial(AsyncClient, store=memory()))


def fork_in_a_folder() -> None:
    """Run the test of forks."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        test_a_forked_child_has_no_lease_of_any_loop(Path(folder))


Planted = tuple[Any, str, str, str, Callable[[], None]]

FUNCTIONS = SimpleNamespace(__module__=aio.__name__, _begin=aio._begin, run_in_each=aio.run_in_each)

BUGS: dict[str, Planted] = {
    "a loop gets the session of another": (
        AsyncClient,
        "session",
        "self._sessions.get(loop)",
        "next(iter(self._sessions.values()), None)",
        partial(in_memory, one_after_another),
    ),
    "sessions stay when their loop is closed": (
        AsyncClient,
        "_begin",
        "runtime.before_loop_closes(session.close)",
        "pass",
        partial(in_memory, one_after_another),
    ),
    "each client stands in the place of the loop's close": (
        aio.AsyncioRuntime,
        "before_loop_closes",
        "not isinstance(close, LoopClose)",
        "True",
        test_many_clients_of_one_loop_end_with_it,
    ),
    "only the session of the running loop is closed": (
        AsyncClient,
        "close",
        "self._begun().items()}",
        "self._begun().items() if loop is self._running_loop()}",
        test_a_close_closes_the_sessions_of_other_loops,
    ),
    "a loop that is idle is not woken": (
        FUNCTIONS,
        "_begin",
        "loop.call_soon_threadsafe(begin)",
        "loop.call_soon(begin)",
        test_a_close_closes_the_sessions_of_other_loops,
    ),
    "a close waits for a loop that does not run": (
        FUNCTIONS,
        "run_in_each",
        " if loop.is_running()]",
        "]",
        test_a_close_waits_for_no_loop_that_stands_still,
    ),
    "only the holders of the running loop are drained": (
        AsyncClient,
        "drain",
        "self._begun().items()}",
        "self._begun().items() if loop is self._running_loop()}",
        test_a_drain_waits_for_the_holders_of_other_loops,
    ),
    "a session begins while the client is closed": (
        AsyncClient,
        "_begin",
        "if self._closed or self._drained:",
        "if False:",
        test_a_session_that_begins_while_the_client_is_closed_is_refused,
    ),
    "a close that was cancelled is not completed": (
        Session,
        "close",
        "self._closing = False\n        raise",
        "raise",
        test_a_close_that_ends_with_its_loop_is_completed,
    ),
    "a lease of another loop is left": (
        Entered,
        "_search",
        "and self._reachable(entry[0])",
        "",
        test_a_lease_is_left_in_its_own_loop,
    ),
    "a forked child takes leases for its own": (
        AsyncClient,
        "_take_sessions",
        "list(sessions.values())",
        "list(sessions.values())[:1]",
        fork_in_a_folder,
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning", "ignore::pytest.PytestWarning")
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that confuses its loops fails a test."""
    owner, method, right, wrong, test = BUGS[bug]
    monkeypatch.setattr(clients, "CLOSING", 2.0)
    monkeypatch.setattr(aio if owner is FUNCTIONS else owner, method, planted(owner, method, right, wrong))
    with pytest.raises(BaseException) as failure:  # noqa: PT011 - pytest's own failures are no Exception
        test()
    kind = failure.type
    del failure  # and with it the clients that were not closed, while their warnings are ignored
    gc.collect()
    assert not issubclass(kind, (TypeError, AttributeError, NameError))
