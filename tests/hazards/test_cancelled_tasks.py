"""A program cancels all tasks of its loop, those of Tenure too, as handlers of SIGTERM do, and goes on for a while."""

import asyncio
import gc
import select
import time
import warnings
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenure import AsyncClient, AsyncLease, LeaseLost, Outcome, OutcomeUnknown, StoreUnavailable, TenureError
from tenure.contracts.cells import Cell
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.background_releases import BackgroundReleases
from tenure.core.history import Recorder
from tenure.core.release import Releases
from tenure.core.renewer import Renewer
from tenure.runtimes.aio import AsyncioRuntime, LoopTask, retrieve
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure.stores.ordered.caretaker import Caretaker
from tenure.stores.ordered.contenders import ContenderRegistry
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, cancel_all, disturbed, soon
from tests.planting import planted
from tests.servers import EtcdServer, MariaDbServer, NatsServer, RedisServer
from tests.wrong_servers import HOST, silent

if TYPE_CHECKING:
    from tenure.stores.ordered.directory import Directory


def test_a_lease_is_kept() -> None:
    """Whether or not another one follows: somebody works under it still."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.lock("name", ttl=1.5).acquire()
            await cancel_all()
            assert not await lease.lost.wait(6)
            await cancel_all()
            assert not await lease.lost.wait(6)
            assert await lease.release() is Outcome.RELEASED

    virtual.run(main)


def test_a_body_is_cancelled_at_its_deadline() -> None:
    """Though nobody looks at the lease."""
    cut = False

    async def fail(operation: str, _done: bool) -> None:
        if cut and operation == "renew":
            raise StoreUnavailable("the store is away")

    async def main() -> None:
        nonlocal cut
        async with AsyncClient(store=disturbed(virtual.source(), fail)) as client:

            async def work() -> None:
                nonlocal cut
                async with client.lock("name", ttl=2):
                    await cancel_all()
                    cut = True
                    await asyncio.sleep(60)

            with pytest.raises(LeaseLost):
                await work()
            cut = False

    virtual.run(main)


def test_a_release_that_is_repeated_has_an_outcome() -> None:
    """Others have cancelled the task that repeats it, and not its caller. One local waiter asks the store meanwhile."""
    sent = list[str]()

    async def fail(operation: str, done: bool) -> None:
        if done:
            return
        sent.append(operation)
        if operation == "release" and sent.count("release") == 1:
            raise StoreUnavailable("the store is away")
        if operation == "release" and sent.count("release") == 2:
            await asyncio.sleep(60)

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), fail)) as client:
            lock = client.lock("name", ttl=30)
            lease = await lock.acquire()
            waiting = [asyncio.create_task(lock.acquire()) for _ in range(3)]
            for each in waiting:
                each.add_done_callback(retrieve)  # with a planted bug nobody awaits them
            await soon(lambda: len(client.session().local_waiters("name")) == 3, "the local waiters")
            releasing = asyncio.create_task(lease.release())
            await soon(lambda: sent.count("release") == 2, "the repeated release")
            await cancel_all(releasing, *waiting)
            assert await asyncio.wait_for(releasing, TEST_TIMEOUT) is Outcome.RELEASED
            assert sent.count("acquire") == 2
            for each in waiting:
                await (await asyncio.wait_for(each, TEST_TIMEOUT)).release()
            assert not (await client.inspect("name")).holders

    virtual.run(main)


def test_what_was_to_be_released_in_the_background_is() -> None:
    """Its task was about to begin."""

    async def main() -> None:
        runtime, released = AsyncioRuntime(), asyncio.Event()

        async def release() -> None:
            released.set()

        releases = BackgroundReleases(runtime, lambda _: None)
        releases.add(release, "name")
        await cancel_all()
        await asyncio.wait_for(released.wait(), 1)
        await releases.end(runtime.now() + 1)

    virtual.run(main)


def test_what_is_released_in_the_background_is_not_given_up() -> None:
    """Its task was at work, or waited to repeat a request that the store had not answered."""

    async def main() -> None:
        runtime, begun, sent, released = AsyncioRuntime(), asyncio.Event(), list[int](), asyncio.Event()

        async def release() -> None:
            begun.set()
            await asyncio.sleep(0.5)
            released.set()

        async def request() -> None:
            sent.append(1)
            if len(sent) == 1:
                raise StoreUnavailable("the store is away")

        releases, late = (BackgroundReleases(runtime, lambda _: None) for _ in range(2))
        releases.add(release, "name")
        late.repeat(request, "name", runtime.now() + 60)
        await begun.wait()
        await cancel_all()
        await asyncio.wait_for(released.wait(), 2)
        async with asyncio.timeout(5):
            while len(sent) < 2:
                await asyncio.sleep(0.01)
                if sent == [1]:
                    await cancel_all()
        await releases.end(runtime.now() + 1)
        await late.end(runtime.now() + 1)
        assert len(sent) == 2

    virtual.run(main)


class SlowAtFirst(MemoryStore):
    """A store whose first write of a cell takes a minute."""

    writing: asyncio.Event

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell."""
        if not self.writing.is_set():
            self.writing.set()
            await asyncio.sleep(60)
        return await super().write_cell(name, value, version, keep, until)


def test_a_history_is_not_given_up() -> None:
    """Its task had taken the events of a lease, and was writing them."""

    async def main() -> None:
        writing = asyncio.Event()

        def make(runtime: Runtime) -> MemoryStore:
            store = SlowAtFirst(runtime, MemoryTable(virtual.micros, virtual.micros))
            store.writing = writing
            return store

        source = StoreSource("slow", MemoryStore.capabilities, make)
        async with AsyncClient(store=source, record=True, operation_timeout=90) as client:
            async with client.lock("name") as lease:
                pass
            await asyncio.wait_for(writing.wait(), 10)
            await cancel_all()
            async with client.lock("name") as later:
                pass
            await asyncio.sleep(5)
            assert [each.token for each in await client.history("name")] == [lease.token, later.token]

    virtual.run(main)


def test_a_session_is_kept_alive() -> None:
    """Without that, all leases at ZooKeeper and etcd end with it."""

    async def main() -> None:
        kept = asyncio.Semaphore(0)

        async def keep_alive(_until: float) -> None:
            kept.release()

        directory = cast("Directory", SimpleNamespace(trust=3.0, keep_alive=keep_alive))
        runtime = AsyncioRuntime()
        tender = Caretaker(runtime, directory, ContenderRegistry(runtime.mutex(), runtime.now), _nothing)
        tender.start()
        for _ in range(3):
            await asyncio.wait_for(kept.acquire(), 1.5)
            await cancel_all()
        await tender.stop()
        await asyncio.sleep(3)
        assert kept.locked(), "it was stopped"

    virtual.run(main)


async def _nothing(_contender: object, _until: float) -> None: ...


def _forever(begun: list[int]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def work() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    return work


@pytest.mark.parametrize("when", ["at once", "in between"])
def test_work_that_is_ended_does_not_begin_again(when: str) -> None:
    """Its owner joins it, before or after it would begin again."""

    async def main() -> None:
        begun = list[int]()
        task = AsyncioRuntime().spawn(_forever(begun), "work", again=True)
        await asyncio.sleep(0)
        await cancel_all()
        assert not task.ended()
        if when == "in between":
            await asyncio.sleep(1)
            assert len(begun) == 2
            task.cancel()
        await task.join(None)
        assert task.ended()
        await asyncio.sleep(1)
        assert len(begun) == 1 + (when == "in between")

    virtual.run(main)


def test_a_loop_ends_without_it() -> None:
    """asyncio.run() cancels all tasks, and nothing of them is left to be told of."""
    begun = list[int]()
    kept = list[LoopTask]()

    async def main() -> None:
        kept.append(AsyncioRuntime().spawn(_forever(begun), "work", again=True))
        await asyncio.sleep(0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
    assert len(begun) == 1


def deadline(lease: AsyncLease) -> float:
    """Return when the lease ends unless it is renewed."""
    return time.monotonic() + lease.remaining()


@pytest.mark.parametrize("server", ["redis_server", "etcd_server", "nats_server"])
def test_a_client_goes_on(server: str, request: pytest.FixtureRequest) -> None:
    """It renews, waits, is woken and is closed as before."""
    running: RedisServer | EtcdServer | NatsServer = request.getfixturevalue(server)

    async def main() -> None:
        async with AsyncClient(running.url) as client, AsyncClient(running.url) as other:
            lease = await client.lock(f"cancelled-{server}", ttl=6).acquire()
            waiting = asyncio.create_task(other.lock(f"cancelled-{server}", ttl=6).acquire())
            async with asyncio.timeout(TEST_TIMEOUT):
                while not (await client.inspect(f"cancelled-{server}")).waiters:  # noqa: ASYNC110 - it is in the store
                    await asyncio.sleep(0.01)
            for _ in range(2):
                await cancel_all(waiting)
                before = lease.remaining()
                await soon(lambda: lease.remaining() > before, "a renewal")  # noqa: B023 - awaited at once
            assert not waiting.done()
            assert await lease.release() is Outcome.RELEASED
            assert await (await asyncio.wait_for(waiting, TEST_TIMEOUT)).release() is Outcome.RELEASED

    asyncio.run(main())


UNREACHED = {
    "redis": "redis://{}",
    "a quorum": "redlock://{},127.0.0.1:1,127.0.0.1:2",
    "etcd": "etcd://{}",
    "zookeeper": "zookeeper://{}",
    "postgresql": "postgresql://user@{}/db",
    "mysql": "mysql://user@{}/db",
    "memcached": "memcached://{}",
    "nats": "nats://{}",
    "nats that greets": "nats://{}",
    "s3": "s3://bucket?region=a&endpoint=http://{}&allow_http=true",
    "dynamodb": "dynamodb://table?region=a&endpoint=http://{}",
}

GREETING = b'INFO {"server_id":"a","version":"2.15.0","max_payload":1048576}\r\n'


@pytest.mark.parametrize("store", UNREACHED)
def test_who_waits_for_a_connection_is_not_cancelled_with_it(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that connects is, when the server has said nothing, or only who it is; no socket is left open."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with silent() as server:
            server.setblocking(False)
            where = UNREACHED[store].format(f"{HOST}:{server.getsockname()[1]}")
            async with AsyncClient(where, operation_timeout=1) as client:
                waiting = asyncio.create_task(client.lock("cancelled").acquire(timeout=1))
                taken, _ = await asyncio.wait_for(loop.sock_accept(server), TEST_TIMEOUT)
                with taken:
                    if store == "nats that greets":
                        await loop.sock_sendall(taken, GREETING)
                    await loop.run_in_executor(None, lambda: select.select((taken,), (), (), 0.2))
                    await cancel_all(waiting)
                    await asyncio.wait({waiting}, timeout=TEST_TIMEOUT)
                    assert waiting.done()
                    assert not waiting.cancelled()
                    assert isinstance(waiting.exception(), TenureError)

    asyncio.run(main())
    gc.collect()  # which warns of sockets


def test_a_planted_bug_that_cancels_who_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the task in which its work is finished."""
    raised = "raise OutcomeUnknown(CANCELLED)"
    monkeypatch.setattr(AsyncioRuntime, "finish", planted(AsyncioRuntime, "finish", raised, "pass"))
    with pytest.raises(AssertionError):
        test_who_waits_for_a_connection_is_not_cancelled_with_it("redis", monkeypatch)


def test_a_channel_of_mysql_listens_again(mariadb_server: MariaDbServer) -> None:
    """Else its waiters would poll for as long as the client lives."""

    def listening() -> int:
        return len(mariadb_server.execute("SELECT 1 FROM information_schema.processlist WHERE state = 'User sleep'"))

    async def main() -> None:
        before = listening()
        async with AsyncClient(mariadb_server.url) as client:
            async with client.lock("cancelled"):
                pass
            await soon(lambda: listening() == before + 1, "the session of the channel")
            await cancel_all()
            await soon(lambda: listening() == before, "the end of that session")
            await soon(lambda: listening() == before + 1, "another session")

    asyncio.run(main())


PLANTED = [
    (LoopTask, "_after", "self._again and task.cancelled()", "False"),
    (LoopTask, "ended", "self._timer is None and ", ""),
    (LoopTask, "_end", "self._again = False", "pass"),
    (LoopTask, "_end", "self._timer.cancel()", "pass"),
    (LoopTask, "_run", "if self._again:", "if False:"),
    (Renewer, "_wake", ', "renewer", again=True', ', "renewer"'),
    (Releases, "release", "except OutcomeUnknown as error:", "except ZeroDivisionError as error:"),
    (Releases, "release", "complete, lease, error, left_queue=left_queue", "complete, lease, error"),
    (BackgroundReleases, "_start_worker", ', "release", again=True', ', "release"'),
    (BackgroundReleases, "_work", "self._works.appendleft(todo)", "pass"),
    (Recorder, "_write", "except BaseException as", "except Exception as"),
    (Caretaker, "start", ', "session", again=True', ', "session"'),
]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: f"{bug[1]}: {bug[2]}")
def test_a_planted_bug_is_found(bug: tuple[type, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of the tests above that need no server."""
    monkeypatch.setattr(bug[0], bug[1], planted(*bug))
    with pytest.raises((AssertionError, TimeoutError, OutcomeUnknown)):
        _check_all()


def _check_all() -> None:
    test_a_lease_is_kept()
    test_a_release_that_is_repeated_has_an_outcome()
    test_what_was_to_be_released_in_the_background_is()
    test_what_is_released_in_the_background_is_not_given_up()
    test_a_history_is_not_given_up()
    test_a_session_is_kept_alive()
    test_work_that_is_ended_does_not_begin_again("at once")
    test_work_that_is_ended_does_not_begin_again("in between")
