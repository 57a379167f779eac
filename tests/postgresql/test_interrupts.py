"""Interrupts and cancellations in the connections of a client: none is lost, and none is used by two callers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import count
from urllib.parse import urlsplit

import pytest

from tenure import AsyncClient, Client
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.postgresql.aio import PgAsyncLink
from tenure.stores.postgresql.connection import PgStatement
from tenure.stores.postgresql.options import deployment_of
from tenure.stores.postgresql.threads import PgThreadLink
from tests.hazards.helpers import eventually
from tests.hazards.interrupting import sweep
from tests.hazards.test_cancellations import AGAIN, LATE, WAITING, cancelled
from tests.postgresql.servers import proxy_for, url_at
from tests.servers import PostgresServer

TTL = 30.0
"""Far longer than a test: what is free again was given back."""

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::ResourceWarning")


@pytest.fixture
def thread_link(postgres_server: PostgresServer) -> Iterator[PgThreadLink]:
    """Return a link of at most two connections."""
    url = f"{postgres_server.url}?connections=2&application_name=interrupted"
    link = PgThreadLink(ThreadsRuntime(), deployment_of(urlsplit(url)))
    yield link
    drive(link.close())
    eventually(lambda: not postgres_server.clients("interrupted"), "the end of all sessions")


@pytest.mark.parametrize("anew", [False, True], ids=["on a connection", "while connecting"])
def test_an_interrupt_anywhere_loses_no_connection(thread_link: PgThreadLink, *, anew: bool) -> None:
    """After an interrupt at any place the next statement gets a connection, and its own reply."""

    def execute(number: int) -> Callable[[], object]:
        if anew:
            thread_link._pool.drop_idle()
        statement = PgStatement(f"s{number}", f"SELECT {number}")
        return lambda: drive(thread_link.execute(statement, (), ThreadsRuntime().now() + 10))

    for number, where in sweep(execute, stride=2 if anew else 1):
        assert execute(-number)() == [(b"%d" % -number,)], where


def test_two_threads_never_share_the_last_connection(thread_link: PgThreadLink) -> None:
    """Threads that ask for a connection at once open no more than there may be."""
    most: list[int] = []
    started = threading.Barrier(8)
    dial = thread_link.dial

    async def slow_dial(until: float) -> object:
        most.append(len(thread_link._pool.all) + 1)
        return await dial(until)

    thread_link.dial = slow_dial  # type: ignore[method-assign, assignment]

    def work() -> None:
        started.wait()
        for _ in range(20):
            drive(thread_link.execute(PgStatement("one", "SELECT 1"), (), ThreadsRuntime().now() + 10))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) <= 2


@pytest.mark.parametrize("how", [WAITING, LATE, AGAIN])
def test_a_cancellation_at_any_await_loses_no_connection(postgres_server: PostgresServer, how: str) -> None:
    """After a cancellation at any await the next statement gets a connection, and its own reply."""

    async def main() -> None:
        runtime = AsyncioRuntime()
        link = PgAsyncLink(runtime, deployment_of(urlsplit(f"{postgres_server.url}?connections=2")))
        at = 0
        while True:
            at += 1
            link._pool.drop_idle()
            work = link.execute(PgStatement(f"s{at}", f"SELECT {at}"), (), runtime.now() + 10)

            async def run(work: object = work, at: int = at) -> bool:
                return await cancelled(work, at, how)  # type: ignore[arg-type]

            (ended,) = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
            assert await link.execute(PgStatement("zero", "SELECT 0"), (), runtime.now() + 10) == [(b"0",)]
            if ended is False:
                break
        assert at > 4
        await link.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", [WAITING, LATE])
def test_a_cancelled_acquisition_leaves_nothing(postgres_server: PostgresServer, how: str) -> None:
    """A lock that is waited for, held and released: a cancellation at any await leaves no holder and no waiter."""

    async def main() -> None:
        url = f"{postgres_server.url}?connections=2"
        async with AsyncClient(url, namespace=f"c{how}") as ours, AsyncClient(url, namespace=f"c{how}") as theirs:
            for at in count(1):
                name = f"name {at}"
                lease = await theirs.lock(name, ttl=TTL).acquire()

                async def work(name: str = name) -> None:
                    async with ours.lock(name, ttl=TTL):
                        pass

                async def run(at: int = at, work: Callable[..., object] = work) -> bool:
                    return await cancelled(work(), at, how)  # type: ignore[arg-type]

                task = asyncio.create_task(run())
                await asyncio.sleep(0.02)
                await lease.release()
                (ended,) = await asyncio.gather(task, return_exceptions=True)
                async with theirs.lock(name, ttl=TTL, timeout=10):
                    pass
                if ended is False:
                    return

    asyncio.run(main())


def test_an_interrupted_client_keeps_its_channel(postgres_server: PostgresServer) -> None:
    """After an interrupt anywhere in an acquisition, and cut connections, the client locks and is notified again."""
    with proxy_for(postgres_server) as proxy, Client(url_at(proxy.address), namespace="channel") as client:
        client.names()
        for number, _ in sweep(
            lambda at: lambda: client.lock(f"n{at}", ttl=TTL, timeout=5).acquire().release(), stride=29
        ):
            if number % 5 == 0:
                proxy.cut()
        with Client(postgres_server.url, namespace="channel") as other:
            lease = other.lock("last", ttl=TTL).acquire()
            done = threading.Thread(target=lambda: client.lock("last", ttl=TTL).acquire().release(), daemon=True)
            done.start()
            eventually(lambda: other.inspect("last").waiters, "it waits")
            lease.release()
            done.join(10)
            assert not done.is_alive()
