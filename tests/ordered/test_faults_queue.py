"""Many who wait: who is woken by a release, and in which order they come."""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self, cast

from tenure import AsyncClient, AsyncLease, Client, StoreUnavailable
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.runtimes.clocks import steady
from tenure.stores.etcd.directory import EtcdDirectory
from tenure.stores.ordered.store import OrderedStore
from tenure.stores.urls import store_source
from tenure.stores.zookeeper.directory import ZooKeeperDirectory
from tests.faults.children import API_FORMS
from tests.hazards.helpers import Script, eventually
from tests.ordered.ensembles import Ensemble

if TYPE_CHECKING:
    from tenure.core.attempt import Attempt

LONG = 60.0
"""A session, and a ttl, that outlive every test."""

AMPLE = 10.0
"""How long a request may take, in seconds, for a busy machine does not matter here."""

MANY = 30
READERS = 10
PERMITS = 3
RELEASES = 5

SETTLED = "that was all"
"""A message to each client. It comes after whatever woke the client before: all that one hears is in one order."""

TEST_TIMEOUT = 60.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""


@dataclass(slots=True)
class Counter:
    """Notes which waiters of some stores are woken."""

    woken: list[str] = field(default_factory=list[str])
    """Their requests. One that has just asked may be there twice: it does not know which event its reply has seen."""
    stores: list["Counting"] = field(default_factory=list["Counting"])

    def disturbances(self) -> int:
        """Return how often a connection was lost, by whatever: then who watched by it is woken too."""
        return sum(map(_drops, self.stores))


class Counting(OrderedStore):
    """A store that counts before it goes on."""

    counter: Counter
    settled = 0

    def woken(self, request_id: str) -> None:
        """Note it."""
        self.counter.woken.append(request_id)
        super().woken(request_id)

    def told(self, message: str) -> None:
        """Note that all was heard."""
        if message == SETTLED:
            self.settled += 1
        else:
            super().told(message)


def _drops(store: OrderedStore) -> int:
    if isinstance(store.directory, ZooKeeperDirectory):
        return store.directory._session.link._drops
    assert isinstance(store.directory, EtcdDirectory)
    return store.directory._gateway._place


def counting(url: str) -> tuple[StoreSource, Counter]:
    """Return a source of stores that count together."""
    source, counter = store_source(url), Counter()

    def make(runtime: Runtime) -> Store:
        store = source.make(runtime)
        assert isinstance(store, OrderedStore)
        counter.stores.append(Counting(runtime, store.directory))
        counter.stores[-1].counter = counter
        return counter.stores[-1]

    return StoreSource(source.title, source.capabilities, make), counter


async def _opened(client: AsyncClient) -> None:
    """Have a client open its session; on a busy machine so many at once lose a connection now and then."""
    for _ in range(3):
        with suppress(StoreUnavailable):
            await client.names()
            return
    await client.names()


@asynccontextmanager
async def clients_at(source: StoreSource, count: int) -> AsyncGenerator[list[AsyncClient], None]:
    """Have so many clients, each with a session."""
    clients = [AsyncClient(store=source, operation_timeout=AMPLE) for _ in range(count)]
    pieces = [clients[first : first + 10] for first in range(0, count, 10)]
    try:
        for piece in pieces:
            await asyncio.gather(*map(_opened, piece))
        yield clients
    finally:
        for piece in pieces:
            await asyncio.gather(*(client.close() for client in piece))


class Crowd:
    """Clients that each wait for the same, one after another, and hold what they get until told to release."""

    def __init__(self, acquire: Callable[[AsyncClient], Awaitable[AsyncLease]]) -> None:
        self.granted: list[int] = []
        """Who got it, in the order of the grants."""
        self.leases: dict[int, AsyncLease] = {}
        self._acquire = acquire
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, number: int, client: AsyncClient) -> None:
        """Have a client acquire, and return when it holds, or stands in the queue and watches who is before it."""
        self._tasks.add(asyncio.create_task(self._wait(number, client)))
        await soon(lambda: number in self.leases or stands(client), "a waiter")

    async def _wait(self, number: int, client: AsyncClient) -> None:
        self.leases[number] = await self._acquire(client)
        self.granted.append(number)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Let those go who still wait, and release what is held."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lease in self.leases.values():
            await lease.release()


def stands(client: AsyncClient) -> bool:
    """Tell whether a client waits to be woken."""
    return any(cast("Attempt", each)._signal is not None for each in client.session().attempts.values())


async def soon(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    give_up_at = steady() + TEST_TIMEOUT
    while not condition():
        assert steady() < give_up_at, what
        await asyncio.sleep(0.002)


async def settled(counter: Counter) -> int:
    """Return how often any was woken, once all have heard what there was to hear."""
    before = [store.settled for store in counter.stores]
    directories = [store.directory for store in counter.stores]
    await asyncio.gather(*(each.tell(each.session(), SETTLED, steady() + AMPLE) for each in directories))
    await soon(
        lambda: all(store.settled > count for store, count in zip(counter.stores, before, strict=True)), "all is heard"
    )
    return len(counter.woken)


async def woken_by(lease: AsyncLease, counter: Counter, done: Callable[[], object]) -> int | None:
    """Release, and return how many that woke; None if connections were lost meanwhile, which wakes others too."""
    before, lost = await settled(counter), counter.disturbances()
    await lease.release()
    await soon(done, "what was released is granted")
    await settled(counter)
    return len({*counter.woken[before:]}) if counter.disturbances() == lost else None


def test_a_release_wakes_no_more_than_two_of_many(ensemble: Ensemble, space: str) -> None:
    """Of many waiters, each with a session of its own, it wakes the first, and the second if it knew of its place."""

    async def main() -> None:
        source, counter = counting(ensemble.url(space, LONG))
        began = steady()
        async with (
            clients_at(source, MANY + 1) as (look, *clients),
            Crowd(lambda client: client.lock("name", ttl=LONG).acquire()) as crowd,
        ):
            opened = steady()
            await crowd.join(-1, look)
            await soon(lambda: -1 in crowd.leases, "the first lease")
            for number, client in enumerate(clients):
                await crowd.join(number, client)
            joined = steady()
            woken: list[int | None] = []
            for number in range(RELEASES):
                lease = crowd.leases[number - 1]
                woken.append(await woken_by(lease, counter, lambda number=number: number in crowd.leases))  # type: ignore[misc]
                assert crowd.granted == [*range(-1, number + 1)]
            sys.stdout.write(
                f"{ensemble.kind}: {MANY} sessions in {opened - began:.2f} s, joined in {joined - opened:.2f} s, woken "
                f"by each release: {woken}\n"
            )
            assert set(woken) <= {1, 2, None}
            assert woken.count(None) <= RELEASES / 2

    asyncio.run(main())
    assert ensemble.left(space) == []


def test_a_writer_wakes_all_readers_behind_it(ensemble: Ensemble, space: str) -> None:
    """Each once, and the one that stands right behind them, which counts from then on; and nobody else."""

    async def main() -> None:
        source, counter = counting(ensemble.url(space, LONG))
        async with (
            clients_at(source, READERS + 2) as (look, last, *readers),
            Crowd(lambda client: client.rwlock("name", ttl=LONG).write().acquire()) as writers,
            Crowd(lambda client: client.rwlock("name", ttl=LONG).read().acquire()) as crowd,
        ):
            await writers.join(0, look)
            await soon(lambda: writers.granted, "the first lease")
            for number, client in enumerate(readers):
                await crowd.join(number, client)
            await writers.join(1, last)
            woken = await woken_by(writers.leases[0], counter, lambda: len(crowd.granted) == READERS)
            assert 1 not in writers.leases
            for lease in crowd.leases.values():
                await lease.release()
            await soon(lambda: 1 in writers.leases, "the writer")
            sys.stdout.write(f"{ensemble.kind}: woken by a writer before {READERS} readers and a writer: {woken}\n")
            assert woken in {READERS + 1, None}

    asyncio.run(main())
    assert ensemble.left(space) == []


def test_a_permit_wakes_no_more_than_there_are(ensemble: Ensemble, space: str) -> None:
    """Each release of a permit grants the next one in the queue, and wakes at most as many as there are permits."""

    async def main() -> None:
        source, counter = counting(ensemble.url(space, LONG))
        async with (
            clients_at(source, PERMITS + READERS) as others,
            Crowd(lambda client: client.semaphore("name", PERMITS, ttl=LONG).acquire()) as crowd,
        ):
            for number, client in enumerate(others):
                await crowd.join(number, client)
            woken: list[int | None] = []
            chance = random.Random(1)
            for count in range(PERMITS + 1, PERMITS + 1 + RELEASES):
                lease = crowd.leases.pop(chance.choice([*crowd.leases]))
                woken.append(await woken_by(lease, counter, lambda count=count: len(crowd.granted) == count))  # type: ignore[misc]
                assert crowd.granted == [*range(count)]
            sys.stdout.write(f"{ensemble.kind}: woken by each release of one of {PERMITS} permits: {woken}\n")
            assert set(woken) <= {*range(1, PERMITS + 1), None}
            assert woken.count(None) <= RELEASES / 2

    asyncio.run(main())
    assert ensemble.left(space) == []


QUEUE = """
import asyncio, sys, threading, tenure
from tenure.runtimes.clocks import steady
url, form = sys.argv[1:]
mutex = threading.Lock()

def tell(number, token):
    with mutex:
        print(number, token, steady(), flush=True)

def block():
    def wait(client, number):
        with client, client.lock("name", ttl=60) as lease:
            tell(number, lease.token)
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=wait, args=(tenure.Client(url, operation_timeout=10), int(line))))
        threads[-1].start()
    for thread in threads:
        thread.join()

async def loop():
    async def wait(number):
        async with tenure.AsyncClient(url, operation_timeout=10) as client, client.lock("name", ttl=60) as lease:
            tell(number, lease.token)
    tasks = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        tasks.append(asyncio.create_task(wait(int(line))))
    await asyncio.gather(*tasks)

block() if form == "threads" else asyncio.run(loop())
"""


def so_many(client: Client, waiters: int) -> bool:
    """Tell whether so many wait."""
    return len(client.inspect("name").waiters) == waiters


def test_who_came_first_is_served_first_across_processes(ensemble: Ensemble, space: str) -> None:
    """Waiters in four processes, of both forms of the API, are granted in exactly the order in which they joined."""
    url, waiters = ensemble.url(space, LONG), 12
    chance = random.Random(2)
    scripts = [Script(QUEUE, url, API_FORMS[number % 2]) for number in range(4)]
    try:
        with Client(url, operation_timeout=AMPLE) as client:
            lease = client.lock("name", ttl=LONG).acquire()
            for number in range(waiters):
                chance.choice(scripts).say(str(number))
                eventually(partial(so_many, client, number + 1), "a waiter", TEST_TIMEOUT)
            released = steady()
            lease.release()
            ended = [script.end() for script in scripts]
    finally:
        for script in scripts:
            script.kill()
    assert [errors for _, errors in ended] == [""] * 4
    told = [line.split() for said, _ in ended for line in said.splitlines()]
    by_time = sorted((float(instant), int(number)) for number, _, instant in told)
    by_token = sorted((int(token), int(number)) for number, token, _ in told)
    assert [number for _, number in by_time] == [number for _, number in by_token] == [*range(waiters)]
    each = (by_time[-1][0] - released) / waiters
    sys.stdout.write(f"{ensemble.kind}: {waiters} waiters in 4 processes in their order, {each * 1000:.1f} ms each\n")
    assert ensemble.left(space) == []
