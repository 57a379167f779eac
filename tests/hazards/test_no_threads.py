"""The system starts no thread for a while: the process, its user or its container has as many as it may."""

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from tenure import AsyncClient, Client, StoreUnavailable
from tenure.reentry import start_thread
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores.memory import MemoryTable, memory_source
from tenure.stores.rows import Row
from tenure.stores.rows.in_loop import InLoop
from tests.etcd.scenes import member
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually
from tests.postgresql.test_faults_sessions import listeners
from tests.rows.tables import AsyncDictTable, Rows
from tests.servers import EtcdServer, PostgresServer, RedisServer


class Refusals:
    """Refuses to start threads, as the system does."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        """How many starts of the threads whose name begins so are still refused."""
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        """Start a thread, or refuse to."""
        for name, left in self.left.items():
            if thread.name.startswith(name) and left:
                self.left[name] -= 1
                raise RuntimeError("can't start new thread")
        self._start(thread)

    def of(self, name: str, count: int = 1) -> None:
        """Refuse the next threads whose name begins so."""
        self.left[name] = count

    def over(self) -> bool:
        """Tell whether all were refused that were to be."""
        return not any(self.left.values())


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusals]:
    """Refuse threads that the test names."""
    refused = Refusals()

    def start(thread: threading.Thread) -> None:
        refused.start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    yield refused
    assert refused.over(), refused.left


def test_an_interrupted_start_is_not_taken_for_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may run: an interrupt left CPython's Condition while it waited for the thread to say so."""

    def interrupted(thread: threading.Thread) -> None:
        raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(RuntimeError, match="release unlocked lock") as caught:
        start_thread(lambda: None, "test")
    assert not isinstance(caught.value, StoreUnavailable)


def test_a_lease_is_renewed_without_a_thread_for_that(refusals: Refusals) -> None:
    """The renewer renews it: another thread would only have told of a loss sooner."""
    renewed = threading.Semaphore(0)

    async def count(operation: str, done: bool) -> None:
        if operation == "renew" and done:
            renewed.release()

    with Client(store=disturbed(memory_source(MemoryTable()), count)) as client:
        refusals.of("tenure-renewal", 3)
        with client.lock("name", ttl=2) as lease:
            for _ in range(3):
                assert renewed.acquire(timeout=TEST_TIMEOUT)
            eventually(refusals.over, "three renewals without a thread")
            lease.check()


@pytest.mark.parametrize("times", [1, 3])
def test_a_lease_that_lingered_is_released_later(times: int, refusals: Refusals) -> None:
    """It has no holder who could release it, and would be renewed for as long as the client lives."""
    with Client("memory://lingers-without-threads") as client, Client("memory://lingers-without-threads") as other:
        refusals.of("tenure-release", times)
        with client.lock("name", ttl=30, linger=0.01):
            pass
        eventually(refusals.over, "a release that no thread was started for")
        with other.lock("name", ttl=30, timeout=TEST_TIMEOUT):
            pass


def test_a_history_is_written_later(refusals: Refusals) -> None:
    """With the next event."""
    with Client("memory://history-without-threads", record=True) as client:
        refusals.of("tenure-history")
        for _ in range(2):
            with client.lock("name"):
                pass
        eventually(lambda: len(client.history("name")) == 2, "the history is written")


def test_without_a_renewer_nothing_is_held(refusals: Refusals) -> None:
    """The caller gets an error of the usual kind, and the name is free."""
    with Client("memory://no-renewer") as client, Client("memory://no-renewer") as other:
        refusals.of("tenure-renewer")
        with pytest.raises(StoreUnavailable, match="could start no thread"):
            client.lock("name").acquire()
        assert other.inspect("name").holders == []
        with client.lock("name", timeout=0):
            pass


def test_a_store_is_opened_later(refusals: Refusals, redis_server: RedisServer) -> None:
    """An acquisition tries again, as if the store had not answered."""
    with Client(redis_server.url) as client:
        refusals.of("tenure-redis-channel", 2)
        with client.lock("opened-later", timeout=TEST_TIMEOUT):
            pass


def test_an_awaited_table_goes_on_with_its_next_call(refusals: Refusals) -> None:
    """The loop of a thread that was not started would answer no call."""
    table = InLoop(AsyncDictTable(Rows()))
    refusals.of("tenure-loop")
    with pytest.raises(StoreUnavailable, match="no thread could be started"):
        table.read("lock.a", 10)
    assert table.read("lock.a", 10) == Row()
    table.close()


def test_a_table_that_was_never_read_is_closed(refusals: Refusals) -> None:
    """Nothing has begun that could be ended."""
    table = InLoop(AsyncDictTable(Rows()))
    refusals.of("tenure-loop")
    with pytest.raises(StoreUnavailable):
        table.read("lock.a", 10)
    table.close()


def test_a_channel_of_postgresql_comes_back(refusals: Refusals, postgres_server: PostgresServer) -> None:
    """The thread that has listened connects again itself, and again if none can be started to listen then."""
    mine = "listens-without-threads"
    sessions = partial(listeners, postgres_server, mine)
    with Client(f"{postgres_server.url}?application_name={mine}") as client:
        with client.lock("name"):
            pass
        (before,) = sessions()
        refusals.of("tenure-postgresql-channel")
        refusals.of("tenure-channel")
        postgres_server.terminate(before)
        eventually(
            lambda: refusals.over() and len(sessions()) == 1 and sessions() != [before], "one session that listens"
        )


def test_a_channel_of_etcd_is_heard_again(refusals: Refusals, etcd_server: EtcdServer) -> None:
    """The next proof of the session starts what watches it again."""

    async def scene() -> None:
        runtime = ThreadsRuntime()
        async with member(runtime, etcd_server.url) as a:
            sessions = a.directory._sessions
            session = sessions.current
            assert session is not None
            watch = session.watch
            assert watch is not None
            refusals.of("tenure-etcd-channel")
            watch.lose("the connection was cut")
            assert refusals.over()
            assert session.watch is watch
            await a.directory.keep_alive(a.soon())
            await a.directory.tell(session.name, "still here", a.soon())
            await a.heard.wait_for("told still here")

    complete(scene())


@pytest.mark.parametrize("server", ["redis_server", "etcd_server", "postgres_server", "mariadb_server"])
def test_a_host_is_looked_up_later(server: str, refusals: Refusals, request: pytest.FixtureRequest) -> None:
    """An event loop starts a thread for that."""
    url = request.getfixturevalue(server).url.replace("127.0.0.1", "localhost")

    async def main() -> None:
        async with AsyncClient(url) as client:
            refusals.of("asyncio")
            async with client.lock("looked-up-later", timeout=TEST_TIMEOUT):
                pass

    asyncio.run(main())


def test_no_socket_is_left_of_a_thread_that_was_to_listen(refusals: Refusals) -> None:
    """A ResourceWarning would fail this test."""
    source, far = socket.socketpair()
    with source, far:
        refusals.of("tenure-channel")
        with pytest.raises(StoreUnavailable):
            ThreadsRuntime().listen(source, lambda _: None)
        gc.collect()
