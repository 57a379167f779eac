"""Callers get the few connections of a client in the order in which they came."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tenure import StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.mysql.aio import MySqlAsyncLink
from tenure.stores.mysql.options import deployment_of as mysql_deployment
from tenure.stores.mysql.threads import MySqlThreadLink
from tenure.stores.postgresql.aio import PgAsyncLink
from tenure.stores.postgresql.options import deployment_of as postgresql_deployment
from tenure.stores.postgresql.threads import PgThreadLink
from tenure.transport.caller_queue import CallerQueue
from tests.hazards.interrupting import sweep

CALLERS, ROUNDS = 20, 10
LONG = 30.0

AsyncLink = PgAsyncLink | MySqlAsyncLink
ThreadLink = PgThreadLink | MySqlThreadLink


@pytest.fixture(params=["postgresql", "mysql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of a database."""
    kind: str = request.param
    return kind


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str) -> str:
    """Return the URL of a client with one connection."""
    server = request.getfixturevalue("postgres_server" if kind == "postgresql" else "mariadb_server")
    return f"{server.url}?connections=1"


def async_link(kind: str, url: str) -> AsyncLink:
    """Make a link for asyncio."""
    if kind == "postgresql":
        return PgAsyncLink(AsyncioRuntime(), postgresql_deployment(urlsplit(url)))
    return MySqlAsyncLink(AsyncioRuntime(), mysql_deployment(urlsplit(url)))


def thread_link(kind: str, url: str) -> ThreadLink:
    """Make a link for threads."""
    if kind == "postgresql":
        return PgThreadLink(ThreadsRuntime(), postgresql_deployment(urlsplit(url)))
    return MySqlThreadLink(ThreadsRuntime(), mysql_deployment(urlsplit(url)))


def test_nobody_is_overtaken(kind: str, url: str) -> None:
    """Each of many callers that come again and again gets the only connection as often as any other."""

    async def main() -> None:
        link = async_link(kind, url)
        served: Counter[int] = Counter()

        async def call(number: int) -> None:
            for _ in range(ROUNDS):
                connection = await link.take(asyncio.get_running_loop().time() + LONG)
                served[number] += 1
                assert max(served.values()) - min(served[each] for each in range(CALLERS)) <= 1
                await asyncio.sleep(0)
                link.put_back(connection)  # type: ignore[arg-type]

        first = await link.take(asyncio.get_running_loop().time() + LONG)
        callers = [asyncio.create_task(call(number)) for number in range(CALLERS)]
        await asyncio.sleep(0.01)
        link.put_back(first)  # type: ignore[arg-type]
        await asyncio.gather(*callers)
        assert served == dict.fromkeys(range(CALLERS), ROUNDS)
        await link.close()

    asyncio.run(main())


def test_who_gives_up_holds_nobody_up(kind: str, url: str) -> None:
    """A caller that is cancelled, or whose time is over, leaves the queue; the one behind it is next."""

    async def main() -> None:
        link, now = async_link(kind, url), asyncio.get_running_loop().time
        first = await link.take(now() + LONG)
        cancelled = asyncio.create_task(link.take(now() + LONG))
        late = asyncio.create_task(link.take(now() + 0.05))
        last = asyncio.create_task(link.take(now() + LONG))
        with pytest.raises(StoreUnavailable, match="timed out before it was sent"):
            await late
        cancelled.cancel()
        link.put_back(first)  # type: ignore[arg-type]
        assert await last is first
        link.put_back(first)  # type: ignore[arg-type]
        await link.close()
        with pytest.raises(StoreUnavailable, match="is closed"):
            await link.take(now() + LONG)

    asyncio.run(main())


def test_closing_ends_every_wait(kind: str, url: str) -> None:
    """In threads, too, long before their time is over."""
    link = thread_link(kind, url)
    now = ThreadsRuntime().now
    connection = drive(link.take(now() + LONG))
    errors: list[str] = []

    def wait() -> None:
        try:
            drive(link.take(now() + 600.0))
        except StoreUnavailable as error:
            errors.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for each in threads:
        each.start()
    drive(link.close())
    for each in threads:
        each.join(LONG)
    assert [error.rpartition(" is ")[2] for error in errors] == ["closed: make a new client"] * 5
    link.put_back(connection)  # type: ignore[arg-type] # which closes it


def test_threads_share_one_connection(kind: str, url: str) -> None:
    """Each gets it in the end, and no two at once."""
    link, now, inside = thread_link(kind, url), ThreadsRuntime().now, threading.Lock()
    served: Counter[int] = Counter()

    def call(number: int) -> None:
        for _ in range(ROUNDS):
            connection = drive(link.take(now() + LONG))
            assert inside.acquire(blocking=False)
            served[number] += 1
            inside.release()
            link.put_back(connection)  # type: ignore[arg-type]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LONG)
    assert served == dict.fromkeys(range(CALLERS), ROUNDS)
    drive(link.close())


@pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited",
    "ignore::pytest.PytestUnraisableExceptionWarning",  # Python swallows an interrupt in a finalizer
)
def test_an_interrupt_anywhere_leaves_no_place_behind() -> None:
    """Whoever comes after the interrupted caller is served at once; else nobody would be served any more."""
    runtime = ThreadsRuntime()
    queues: list[CallerQueue] = []

    def prepare(_: int) -> Callable[[], object]:
        callers = CallerQueue(runtime)
        queues.append(callers)
        found = iter([None, None, "a connection"])  # at once, in the queue, and after a wait
        until = runtime.now() + LONG
        return lambda: drive(callers.first_result(lambda _: next(found), until))

    for _, where in sweep(prepare):
        assert drive(queues[-1].first_result(lambda _: "served", runtime.now() + 5.0)) == "served", where
    assert len(queues) > 10


def test_a_missed_wake_up_costs_a_second_at_most() -> None:
    """An interrupt may come between the end of one wait and the wake-up of the next caller."""
    runtime = ThreadsRuntime()
    callers = CallerQueue(runtime)
    callers.wake = lambda: None  # type: ignore[method-assign]
    free = threading.Event()
    served: list[str | None] = []

    def call() -> None:
        served.append(drive(callers.first_result(lambda _: "served" if free.is_set() else None, runtime.now() + LONG)))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for each in threads:
        each.start()
    free.set()
    for each in threads:
        each.join(LONG / 2)
    assert served == ["served"] * 3
