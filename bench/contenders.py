"""All measured locks, and their floors, in one table: how each is opened on the servers of a store.

A contender is opened for some members, which share what its library lets threads or tasks share. Libraries are
imported where they are used: some peers must be the first to import redis-py (see `bench.peers.apart`).
"""

import asyncio
import math
import threading
import time
import warnings
from array import array
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from bench import floors
from bench.floors import Handle, Work
from bench.peers import apart, programs
from bench.servers import ETCD, FILES, MEMCACHED, MYSQL, POSTGRESQL, QUORUM, REDIS, ZOOKEEPER
from tenure import AsyncClient, AsyncLease, AsyncLock, Client, Lease, Lock, LockTimeout
from tenure.runtimes.threads import complete

R = TypeVar("R")

NAME = floors.NAME
BUSY = 20.0
"""How long a request may take on a busy machine, in seconds."""
clock = time.monotonic
"""The clock of all measurements; all processes of a machine share it."""


class AsyncHandle(Protocol):
    """The handle of one task to a lock. `acquire` returns False if it gave up."""

    async def acquire(self) -> object:
        """Wait until the lock is held."""
        ...

    async def release(self) -> object:
        """Release the lock."""
        ...


@dataclass(frozen=True, slots=True)
class Want:
    """The lock that a contender opens. Durations are in seconds."""

    members: int = 1
    ttl: float = 30.0
    timeout: float | None = None
    apart: bool = False

    @property
    def names(self) -> list[str]:
        """The name of each member."""
        return [f"{NAME}-{number}" if self.apart else NAME for number in range(self.members)]


Opener = Callable[[str, Want], AbstractContextManager[Sequence[Handle]]]
AsyncOpener = Callable[[str, Want], AbstractAsyncContextManager[Sequence[AsyncHandle]]]

OURS = ("evalsha", "eval", "ping", "subscribe", "info", "hello", "auth", "select", "client|setinfo")
"""The commands that Tenure's clients send to Redis."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One lock or floor: how it is opened, or the program that it is."""

    label: str
    meaning: str
    opens: Opener | None = None
    awaits: AsyncOpener | None = None
    """How it is opened by a task of asyncio."""
    loop: str = "asyncio"
    """The module of its event loop."""
    sent: Sequence[str] = OURS
    """The commands that its clients send. Redis also counts the commands of scripts, which differ."""
    key: str = ""
    """The key of a peer's lock in Redis. The key exists while somebody holds the lock."""
    apart: str = ""
    """The peer whose folder it is imported from."""
    module: str = ""
    """The module that it needs, and that may be missing."""
    lacking: Callable[[], str] = str
    """Returns what this version of Tenure lacks for it."""

    def missing(self) -> str:
        """Return why it cannot be measured here, or nothing."""
        if self.apart and not apart.is_there(self.apart):
            return apart.lacking(self.apart)
        if self.module and find_spec(self.module) is None:
            return f"{self.label} is left out: there is no {self.module} for this Python"
        return self.lacking()


# -- how they are used --------------------------------------------------------------------------------------------


def _times() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Share:
    """The grants and waits of one member."""

    grants: int = 0
    """The grants within the window."""
    failures: int = 0
    """The number of attempts that failed or exceeded the timeout: some peers check the clock only between attempts."""
    waits: "array[float]" = field(default_factory=_times)
    """All waits, in seconds, including failed ones and the last wait, which ended after the window."""
    held: "array[float]" = field(default_factory=_times)
    """The periods in which it certainly held the lock, each as its begin and its end."""


@dataclass(slots=True)
class Blocking:
    """A lock that blocks, for code that awaits: it never suspends."""

    handle: Handle

    async def acquire(self) -> object:
        """Wait until the lock is held."""
        return self.handle.acquire()

    async def release(self) -> object:
        """Release the lock."""
        return self.handle.release()


@dataclass(slots=True)
class Opened:
    """An open contender, of either form."""

    handles: Sequence[Any]
    runner: asyncio.Runner | None = None

    @property
    def locks(self) -> Sequence[AsyncHandle]:
        """The handle of each member."""
        return self.handles if self.runner else [Blocking(each) for each in self.handles]

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine that uses the locks."""
        return self.runner.run(work) if self.runner else complete(work)

    async def pause(self, seconds: float) -> None:
        """Sleep."""
        if self.runner:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - the coroutine of a lock that blocks

    def pair(self, count: int) -> float:
        """Return the seconds of one pair of acquire and release of the first member."""
        handle = self.handles[0]
        if self.runner:
            return self.runner.run(_awaited_pairs(_async_pair(handle), count))
        acquire, release = handle.acquire, handle.release

        def both() -> None:
            acquire()
            release()

        pair: Callable[[], object] = getattr(handle, "pair", both)
        started = time.perf_counter()
        for _ in range(count):
            pair()
        return (time.perf_counter() - started) / count

    def rate(self, seconds: float) -> float:
        """Return the pairs a second of all members at once; a floor has one handle for all of them."""
        if not self.runner:
            until = clock() + seconds
            taken = [self.pair(1)]
            while clock() < until:
                taken.append(self.pair(1))
            return len(taken) / sum(taken)
        return self.runner.run(_rate([_async_pair(handle) for handle in self.handles], seconds))

    def contend(self, start: float, until: float, hold: float, timeout: float | None = None) -> list[Share]:
        """Let all members acquire, hold and release in a loop."""
        works = [contend(lock, self.pause, start, until, hold, timeout) for lock in self.locks]
        if self.runner:
            return self.runner.run(_gather(works))
        if len(works) == 1:
            return [complete(works[0])]
        with ThreadPoolExecutor(len(works)) as threads:
            return list(threads.map(complete, works))

    def acquire(self) -> float:
        """Let the first member wait until the lock is held; return the time of the grant."""
        return self.run(acquire_at(self.locks[0]))

    def release(self) -> float:
        """Let the first member release the lock; return the time just before."""
        return self.run(release_at(self.locks[0]))


async def acquire_at(lock: AsyncHandle) -> float:
    """Wait until the lock is held; return the time of the grant."""
    await lock.acquire()
    return clock()


async def release_at(lock: AsyncHandle) -> float:
    """Release the lock; return the time just before."""
    now = clock()
    await lock.release()
    return now


async def contend(  # noqa: PLR0917
    lock: AsyncHandle,
    pause: Callable[[float], Awaitable[None]],
    start: float,
    until: float,
    hold: float,
    timeout: float | None = None,
) -> Share:
    """Acquire, hold and release in a loop. A negative hold is one turn of the event loop."""
    share = Share()
    await pause(max(0.0, start - clock()))
    while (asked := clock()) < until:
        held = await lock.acquire()
        got = clock()
        share.waits.append(got - asked)
        share.failures += held is False or (timeout is not None and got - asked > timeout)
        if held is False:
            continue
        share.grants += got < until
        if hold:
            await pause(max(0.0, hold))
        share.held.extend((got, clock()))
        await lock.release()
    return share


async def _gather(works: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    return list(await asyncio.gather(*works))


def _async_pair(handle: Any) -> Callable[[], Awaitable[object]]:  # noqa: ANN401 - a lock of some library
    async def pair() -> None:
        await handle.acquire()
        await handle.release()

    return getattr(handle, "pair", pair)


async def _awaited_pairs(pair: Callable[[], Awaitable[object]], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        await pair()
    return (time.perf_counter() - started) / count


async def _rate(pairs: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> float:
    await _gather(_awaited_pairs(pair, 1) for pair in pairs)  # connects
    started = time.perf_counter()

    async def repeat(pair: Callable[[], Awaitable[object]]) -> int:
        count = 0
        while time.perf_counter() < started + seconds:
            await pair()
            count += 1
        return count

    return sum(await _gather(map(repeat, pairs))) / (time.perf_counter() - started)


@contextmanager
def opened(store: str, label: str, url: str, want: Want = Want()) -> Generator[Opened]:
    """Open a contender for some members."""
    contender = CONTENDERS[store][label]
    if contender.opens:
        with contender.opens(url, want) as handles:
            yield Opened(handles)
        return
    assert contender.awaits  # noqa: S101 - else it is a program
    with asyncio.Runner(loop_factory=import_module(contender.loop).new_event_loop) as runner:
        stack = AsyncExitStack()
        awaited = runner.run(stack.enter_async_context(contender.awaits(url, want)))
        try:
            yield Opened(awaited, runner)
        finally:
            runner.run(stack.aclose())


def prepare(folder: str) -> None:
    """Add the folder of a peer to this process's path, before it imports any library."""
    if folder:
        apart.enter(folder)


# -- Tenure's -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Leased:
    """A lock of a Client."""

    lock: Lock
    lease: Lease | None = None

    def acquire(self) -> bool:
        """Wait until the lock is held, or for its timeout."""
        try:
            self.lease = self.lock.acquire()
        except LockTimeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        assert self.lease is not None  # noqa: S101 - a misuse by the benchmark itself
        self.lease.release()

    def pair(self) -> None:
        """Acquire and release the lock."""
        self.lock.acquire().release()


@dataclass(slots=True)
class AsyncLeased:
    """A lock of an AsyncClient."""

    lock: AsyncLock
    lease: AsyncLease | None = None

    async def acquire(self) -> None:
        """Wait until the lock is held."""
        self.lease = await self.lock.acquire()

    async def release(self) -> None:
        """Release the lock."""
        assert self.lease is not None  # noqa: S101 - a misuse by the benchmark itself
        await self.lease.release()

    async def pair(self) -> None:
        """Acquire and release the lock."""
        await (await self.lock.acquire()).release()


OPENING = "to open the store"


def _on(url: str, name: str) -> str:
    """Return a name for these servers: quorums of other sizes share some nodes."""
    return f"{name}-{len(floors.addresses(url))}" if url.startswith("redlock") else name


@contextmanager
def leased(url: str, want: Want, *, query: str = "", at: str = "", **options: Any) -> Generator[Sequence[Handle]]:  # noqa: ANN401
    """Open a Client, which all members share."""
    with Client((at or url) + query, operation_timeout=BUSY) as client:
        client.lock(OPENING).acquire(timeout=BUSY).release()  # connects, which is not measured
        spec: dict[str, Any] = {"ttl": want.ttl, "timeout": want.timeout, **options}
        yield [Leased(client.lock(_on(url, name), **spec)) for name in want.names]


@asynccontextmanager
async def awaited(url: str, want: Want, *, query: str = "", at: str = "") -> AsyncGenerator[Sequence[AsyncHandle]]:
    """Open an AsyncClient, which all members share."""
    async with AsyncClient((at or url) + query, operation_timeout=BUSY) as client:
        await (await client.lock(OPENING).acquire(timeout=BUSY)).release()
        yield [AsyncLeased(client.lock(_on(url, name), ttl=want.ttl, timeout=want.timeout)) for name in want.names]


@contextmanager
def with_statement(url: str, want: Want, **options: Any) -> Generator[Sequence[Handle]]:  # noqa: ANN401
    """Open a Client whose lock is entered by a `with` statement."""
    with Client(url, operation_timeout=BUSY) as client:
        lock = client.lock(f"{NAME}-with", ttl=want.ttl, **options)

        def entered() -> None:
            with lock:
                pass

        yield [Work(entered)]


@contextmanager
def stocked(url: str, _want: Want, kind: str) -> Generator[Sequence[Handle]]:
    """Open a stock with plenty of units, or a counter."""
    with Client(url, operation_timeout=BUSY) as client:
        stock, counter = client.stock("stock"), client.counter("counter")
        stock.restock(floors.PLENTY)
        yield [Work(stock.take if kind == "stock" else counter.add)]


def _lacks_release() -> str:
    options: dict[str, Any] = {"wait_for_release": False}
    with Client("memory://bench-options") as client:
        try:
            client.lock(NAME, **options)
        except TypeError:
            return f"{UNAWAITED} is left out: this version of Tenure has no `wait_for_release`"
    return ""


# -- the peers' ---------------------------------------------------------------------------------------------------


def each(make: Callable[[str], Handle]) -> Opener:
    """Return what makes a lock for each member."""

    @contextmanager
    def opener(url: str, want: Want) -> Generator[Sequence[Handle]]:
        yield [make(url) for _ in range(want.members)]

    return opener


def _beside(url: str, name: str) -> Path:
    return Path(urlsplit(url).path).parent / name


def _filelock(url: str, **options: float) -> Handle:
    handle: Handle = import_module("filelock").FileLock(_beside(url, "filelock"), **options)
    return handle


@contextmanager
def _fasteners(url: str, want: Want) -> Generator[Sequence[Handle]]:
    """Make an InterProcessLock for each. It excludes no threads; its manual says to add a threading.Lock."""
    make, threads = import_module("fasteners").InterProcessLock, threading.Lock()

    def both(lock: Any) -> Work:  # noqa: ANN401
        def release() -> None:
            lock.release()
            threads.release()

        return Work(lambda: threads.acquire() and lock.acquire(), release)

    locks = [make(_beside(url, "fasteners")) for _ in range(want.members)]
    yield locks if want.members == 1 else [both(lock) for lock in locks]


@contextmanager
def _threading_lock(_url: str, want: Want) -> Generator[Sequence[Handle]]:
    yield [threading.Lock()] * want.members


@asynccontextmanager
async def _asyncio_lock(_url: str, want: Want) -> AsyncGenerator[Sequence[AsyncHandle]]:
    lock = asyncio.Lock()

    class Released:
        acquire = lock.acquire

        @staticmethod
        async def release() -> None:
            lock.release()

    yield [Released()] * want.members


def redis_client(url: str) -> Any:  # noqa: ANN401 - partly untyped
    """Make a client of redis-py without its timeout, which would end a BLPOP early."""
    return import_module("redis").Redis.from_url(url, socket_timeout=None)


def _by_redis_py(make: Callable[[Any, Want], Handle]) -> Opener:
    """Return what makes a lock for each member, all with one client of redis-py."""

    @contextmanager
    def opener(url: str, want: Want) -> Generator[Sequence[Handle]]:
        with closing(redis_client(url)) as client:
            client.ping()
            yield [make(client, want) for _ in range(want.members)]

    return opener


REDIS_PY_KEY = f"redis-py:{NAME}"


def _redis_py(client: Any, want: Want, sleep: float = 0.1) -> Handle:  # noqa: ANN401
    lock: Handle = client.lock(REDIS_PY_KEY, timeout=want.ttl, sleep=sleep)
    return lock


def _python_redis_lock(client: Any, want: Want) -> Handle:  # noqa: ANN401
    """Make a lock without its renewal. It counts in whole seconds."""
    lock: Handle = import_module("redis_lock").Lock(client, NAME, expire=math.ceil(want.ttl))
    return lock


def _pottery(client: Any, want: Want) -> Handle:  # noqa: ANN401
    lock: Handle = import_module("pottery").Redlock(key=NAME, masters={client}, auto_release_time=want.ttl)
    return lock


@asynccontextmanager
async def _redis_asyncio(url: str, want: Want, sleep: float = 0.1) -> AsyncGenerator[Sequence[AsyncHandle]]:
    options = {} if want.apart else {"socket_timeout": None, "max_connections": want.members}
    client: Any = import_module("redis.asyncio").Redis.from_url(url, **options)
    async with client:
        await asyncio.gather(*(client.ping() for _ in range(want.members)))  # connects, which is not measured
        yield [client.lock(f"redis-py:{name}", timeout=want.ttl, sleep=sleep) for name in want.names]


def _engine(url: str, members: int) -> Any:  # noqa: ANN401
    driver = url.replace("postgresql://", "postgresql+psycopg://").replace("mysql://", "mysql+pymysql://")
    return import_module("sqlalchemy").create_engine(driver, pool_size=members)


@contextmanager
def _pals(url: str, want: Want) -> Generator[Sequence[Handle]]:
    """Make a Locker, whose pool has a connection for each member."""
    locker = import_module("pals").Locker(None, create_engine_callable=partial(_engine, url, want.members))
    try:
        yield [locker.lock(NAME) for _ in range(want.members)]
    finally:
        locker.engine.dispose()


@contextmanager
def _dlock(url: str, want: Want) -> Generator[Sequence[Handle]]:
    """Open a connection for each member. Nothing but the lock is done in its transaction, as in autocommit mode."""
    create: Any = import_module("sqlalchemy_dlock").create_sadlock
    with ExitStack() as stack:
        engine = _engine(url, want.members)
        stack.callback(engine.dispose)
        locks = [create(stack.enter_context(engine.connect()), NAME) for _ in range(want.members)]
        # With a timeout, for MariaDB has no endless GET_LOCK, which MySQL has.
        yield [Work(partial(lock.acquire, timeout=BUSY), lock.release) for lock in locks]


@contextmanager
def _tooz(url: str, want: Want) -> Generator[Sequence[Handle]]:
    """Start a coordinator for each member."""
    coordination: Any = import_module("tooz.coordination")
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())  # it uses drivers in deprecated ways
        warnings.simplefilter("ignore", DeprecationWarning)
        handles: list[Handle] = []
        for member in range(want.members):
            coordinator = coordination.get_coordinator(url, f"member-{id(stack)}-{member}".encode())
            coordinator.start()
            stack.callback(coordinator.stop)
            handles.append(coordinator.get_lock(NAME.encode()))
        yield handles


def _sherlock(url: str) -> Handle:
    """Open a client of pylibmc, because threads cannot share it."""
    client = import_module("pylibmc").Client([urlsplit(url).netloc], binary=True)
    lock: Handle = import_module("sherlock").MCLock(f"sherlock-{NAME}", client=client, expire=30, timeout=60)
    return lock


WAKES: list[None] = []
"""One item for each event of a watch that the clients of this process received."""


@contextmanager
def kazoo_client(url: str) -> Generator[Any]:
    """Connect a KazooClient of the usual kind."""
    client = import_module("kazoo.client").KazooClient(urlsplit(url).netloc, timeout=BUSY)
    client.start(BUSY)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def _kazoo(url: str, _want: Want, *, new: bool = False) -> Generator[Sequence[Handle]]:
    """Open a lock of kazoo, which counts the events of its watch; `new` makes one for each acquisition."""
    recipe: Any = import_module("kazoo.recipe.lock").Lock

    class Counting(recipe):  # type: ignore[misc]
        def _watch_predecessor(self, event: object) -> None:
            WAKES.append(None)
            recipe._watch_predecessor(self, event)  # noqa: SLF001

    with kazoo_client(url) as client:
        client.ensure_path(f"/{NAME}")
        lock = Counting(client, f"/{NAME}")

        def pair() -> None:
            made = client.Lock(f"/{NAME}")
            made.acquire()
            made.release()

        yield [Work(pair) if new else lock]


@contextmanager
def _create_delete(url: str, _want: Want) -> Generator[Sequence[Handle]]:
    with kazoo_client(url) as client:
        client.ensure_path("/floor")
        create = partial(client.create, "/floor/node-", b"0123456789abcdef", ephemeral=True, sequence=True)
        yield [Work(lambda: client.delete(create()))]


@asynccontextmanager
async def _aetcd(url: str, want: Want) -> AsyncGenerator[Sequence[AsyncHandle]]:
    """Open a lock of aetcd, which counts the events of its watch."""
    aetcd: Any = import_module("aetcd")
    recipe: Any = aetcd.locks.Lock

    class Counting(recipe):  # type: ignore[misc]
        async def _wait_for_delete_event(self, timeout: float | None) -> None:
            await recipe._wait_for_delete_event(self, timeout)  # noqa: SLF001
            WAKES.append(None)

        async def acquire(self) -> object:
            held = await recipe.acquire(self, timeout=None)
            assert held  # noqa: S101 - else there is nothing to measure
            return held

    where = urlsplit(url)
    async with aetcd.Client(where.hostname, where.port) as client:
        yield [Counting(client, NAME.encode(), round(want.ttl))]


# -- those on a majority of nodes ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Insistent:
    """A lock manager that gives up after some attempts and pauses; it is called again until the timeout."""

    attempt: Callable[[], Any]
    """Makes a few attempts and returns a lock or None."""
    let_go: Callable[[Any], object]
    timeout: float
    held: Any = None

    def acquire(self) -> bool:
        """Wait for the lock for so many seconds, or until the last attempt has ended; tell whether it is held."""
        until = clock() + self.timeout
        while not (held := self.attempt()) and clock() < until:
            pass
        self.held = held
        return bool(held)

    def release(self) -> None:
        """Release the lock."""
        self.let_go(self.held)


@contextmanager
def _redlock(url: str, want: Want, label: str, acquire: str, release: str) -> Generator[Sequence[Handle]]:
    """Open redlock-py (three attempts, 200 ms apart) or redlock-ng (four, 100 to 300 ms apart) with its defaults."""
    manager = import_module("redlock").Redlock(floors.nodes(url))
    attempt = partial(getattr(manager, acquire), f"{label}:{NAME}", round(want.ttl * 1000))
    yield [Insistent(attempt, getattr(manager, release), want.timeout or BUSY)]


@contextmanager
def _pottery_redlock(url: str, want: Want) -> Generator[Sequence[Handle]]:
    """Open pottery with its defaults: attempts without end, up to 200 ms apart."""
    pottery: Any = import_module("pottery")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(closing(import_module("redis").Redis.from_url(node))) for node in floors.nodes(url)
        ]
        lock = pottery.Redlock(key=NAME, masters=set(clients), auto_release_time=want.ttl)

        def release() -> None:
            with suppress(pottery.ReleaseUnlockedLock):  # if it has expired
                lock.release()

        yield [Work(partial(lock.acquire, timeout=want.timeout or BUSY), release)]


@dataclass(slots=True)
class Managed:
    """An async lock manager: one function returns a lock, another releases it."""

    attempt: Callable[[], Awaitable[Any]]
    let_go: Callable[[Any], Awaitable[object]]
    held: Any = None

    async def acquire(self) -> None:
        """Acquire the lock."""
        self.held = await self.attempt()
        assert self.held  # noqa: S101 - else there is nothing to measure

    async def release(self) -> None:
        """Release the lock."""
        await self.let_go(self.held)


@asynccontextmanager
async def _redlock_ng_asyncio(url: str, want: Want) -> AsyncGenerator[Sequence[AsyncHandle]]:
    manager = import_module("redlock").AsyncRedlock(floors.nodes(url))
    try:
        attempt = partial(manager.acquire, f"{REDLOCK_NG_ASYNCIO}:{NAME}", round(want.ttl * 1000))
        yield [Managed(attempt, manager.release)]
    finally:
        for instance in manager.client.instances:
            await instance.aclose()


@asynccontextmanager
async def _pottery_asyncio(url: str, want: Want) -> AsyncGenerator[Sequence[AsyncHandle]]:
    pottery: Any = import_module("pottery")
    async with AsyncExitStack() as stack:
        made = [import_module("redis.asyncio").Redis.from_url(node) for node in floors.nodes(url)]
        clients = {await stack.enter_async_context(client) for client in made}
        lock = pottery.AIORedlock(key=f"{NAME}-asyncio", masters=clients, auto_release_time=want.ttl)
        yield [Managed(partial(lock.acquire, timeout=BUSY), lambda _held: lock.release())]


@asynccontextmanager
async def _aioredlock(url: str, want: Want) -> AsyncGenerator[Sequence[AsyncHandle]]:
    """Open aioredlock, without its renewal."""
    manager = import_module("aioredlock").Aioredlock(floors.nodes(url))
    try:
        yield [Managed(partial(manager.lock, f"{AIOREDLOCK}:{NAME}", lock_timeout=want.ttl), manager.unlock)]
    finally:
        await manager.destroy()


# -- all of them --------------------------------------------------------------------------------------------------

THREADS, ASYNCIO, UVLOOP = "tenure threads", "tenure asyncio", "tenure uvloop"
BARGING, UNAWAITED = "tenure, fair=False", "tenure, wait_for_release=False"
LINGER, LINGER_WITH = "linger", "linger, with"
SQLITE_THREADS, SQLITE_ASYNCIO = "sqlite threads", "sqlite asyncio"
MEMORY_THREADS, MEMORY_ASYNCIO = "memory threads", "memory asyncio"
ADVISORY, ADVISORY_ASYNCIO = "tenure advisory", "tenure advisory, asyncio"
GET_LOCK, GET_LOCK_ASYNCIO = "tenure get_lock", "tenure get_lock, asyncio"
POLLING = "tenure threads, polling"
HOT, AGAIN = "tenure 16 threads", "tenure 1 thread, linger"

FILELOCK, FILELOCK_QUICK, FASTENERS, PIPE = "filelock", "filelock, poll 0", "fasteners", "named pipe"
THREADING_LOCK, ASYNCIO_LOCK = "threading.Lock", "asyncio.Lock"
REDIS_PY, REDIS_PY_QUICK, REDIS_LOCK, POTTERY = "redis-py", "redis-py, 1 ms", "python-redis-lock", "pottery"
REDIS_ASYNC, REDIS_ASYNC_QUICK, REDIS_ASYNC_UVLOOP = "redis.asyncio", "redis.asyncio, 1 ms", "redis.asyncio uvloop"
REDLOCK_PY, REDLOCK_NG, REDLOCK_NG_ASYNCIO = "redlock-py", apart.REDLOCK_NG, "redlock-ng asyncio"
POTTERY_ASYNCIO, AIOREDLOCK = "pottery asyncio", apart.AIOREDLOCK
PALS, DLOCK, TOOZ, SHERLOCK = "PALs", "sqlalchemy-dlock", "tooz", "sherlock"
KAZOO, KAZOO_AGAIN, KAZOO_QUEUE, AETCD = "kazoo Lock, new", "kazoo Lock, reused", "kazoo Lock", "aetcd Lock"
TAKE, ADD, HAND, PLAIN = "stock.take", "counter.add", "hand-written Lua", "redis-py DECR"

PEER_PROGRAMS = {REDIS: (programs.RUEIDISLOCK, programs.REDISSON), ZOOKEEPER: (programs.CURATOR,), ETCD: (programs.GO,)}
"""The peers in other languages."""

# fmt: off
_CLIENTS = (
    Contender(THREADS, "tenure.Client, one a process", opens=leased),
    Contender(ASYNCIO, "tenure.AsyncClient, one a process", awaits=awaited),
)

_FILES = (
    Contender(SQLITE_THREADS, "tenure.Client, one client a process, the embedded file", opens=leased),
    Contender(floors.SQLITE, floors.MEANINGS[floors.SQLITE], opens=floors.sqlite),
    Contender(SQLITE_ASYNCIO, "tenure.AsyncClient, the same file", awaits=awaited),
    Contender(MEMORY_THREADS, "tenure.Client, memory:// (the protocol without a store)",
        opens=partial(leased, at="memory://bench")),
    Contender(MEMORY_ASYNCIO, "tenure.AsyncClient, memory://", awaits=partial(awaited, at="memory://bench")),
    Contender(THREADING_LOCK, "floor: one process, no ttl, no fencing token, no order", opens=_threading_lock),
    Contender(ASYNCIO_LOCK, "floor: no ttl, no fencing token", awaits=_asyncio_lock),
    Contender(FILELOCK, "filelock.FileLock, polls every 50 ms (its default)", opens=each(_filelock)),
    Contender(FILELOCK_QUICK, "filelock.FileLock, polls without a pause and keeps a core busy",
        opens=each(partial(_filelock, poll_interval=0.0))),
    Contender(FASTENERS, "fasteners.InterProcessLock, polls after 10, 20, ... 100 ms (its default)", opens=_fasteners),
    Contender(PIPE, "floor: a byte in a pipe, no ttl, no fencing token, lost with its holder", opens=floors.pipe),
)

_BY_SET = ("set", "evalsha")
_REDIS = (
    *_CLIENTS,
    Contender(UVLOOP, "tenure.AsyncClient on uvloop", awaits=awaited, loop="uvloop"),
    Contender(BARGING, "tenure.Client, one a process, lock(..., fair=False)", opens=partial(leased, fair=False)),
    Contender(UNAWAITED, "tenure.Client, `with client.lock(..., wait_for_release=False)`",
        opens=partial(with_statement, wait_for_release=False), lacking=_lacks_release),
    Contender(LINGER, "tenure.Client, lock(..., linger=1), acquire().release()", opens=partial(leased, linger=1.0)),
    Contender(LINGER_WITH, "the same by a with statement", opens=partial(with_statement, linger=1.0)),
    Contender(floors.OWN, floors.MEANINGS[floors.OWN], opens=floors.own_scripts),
    Contender(floors.LEAST, floors.MEANINGS[floors.LEAST], opens=floors.least_scripts, sent=("evalsha",)),
    Contender(floors.ALL_AT_ONCE, floors.MEANINGS[floors.ALL_AT_ONCE], opens=floors.all_at_once),
    Contender(floors.PING, floors.MEANINGS[floors.PING], opens=floors.pings),
    Contender(REDIS_PY, "redis.lock.Lock, polls every 100 ms (its default)", opens=_by_redis_py(_redis_py),
        sent=_BY_SET, key=REDIS_PY_KEY),
    Contender(REDIS_PY_QUICK, "redis.lock.Lock, polls every millisecond",
        opens=_by_redis_py(partial(_redis_py, sleep=0.001)), sent=_BY_SET),
    Contender(
        REDIS_LOCK,
        "redis_lock.Lock, woken by BLPOP",
        opens=_by_redis_py(_python_redis_lock),
        sent=("set", "blpop", "get"),  # the GET of its script stands for its EVALSHA
        key=f"lock:{NAME}",
    ),
    Contender(POTTERY, "pottery.Redlock on this one server, polls after 0..200 ms (its default)",
        opens=_by_redis_py(_pottery), sent=_BY_SET),
    Contender(REDIS_ASYNC, "redis.asyncio.lock.Lock, one for each task, polls every 100 ms (its default)",
        awaits=_redis_asyncio, sent=_BY_SET),
    Contender(REDIS_ASYNC_QUICK, "redis.asyncio.lock.Lock, one for each task, polls every millisecond",
        awaits=partial(_redis_asyncio, sleep=0.001), sent=_BY_SET),
    Contender(REDIS_ASYNC_UVLOOP, "the same on uvloop", awaits=_redis_asyncio, loop="uvloop", sent=_BY_SET),
    Contender(TAKE, "tenure.Client, exact if a reply is lost", opens=partial(stocked, kind="stock")),
    Contender(ADD, "tenure.Client, exact if a reply is lost", opens=partial(stocked, kind="counter")),
    Contender(HAND, "redis-py, a script with a request id: exact for a minute, if the caller repeats it",
        opens=_by_redis_py(floors.decrement)),
    Contender(PLAIN, "redis-py, counted twice if a reply is lost and the command repeated",
        opens=_by_redis_py(floors.plain_decrement), sent=("decr",)),
)

_REDLOCKS = (
    *_CLIENTS,
    Contender(REDLOCK_NG, "redlock.Redlock of redlock-ng, sends its requests to one node after another",
        opens=partial(_redlock, label=REDLOCK_NG, acquire="acquire", release="release"), sent=("set", "eval"),
        key=f"{REDLOCK_NG}:{NAME}", apart=apart.REDLOCK_NG),
    Contender(REDLOCK_PY, "redlock.Redlock of redlock-py, sends its requests to one node after another",
        opens=partial(_redlock, label=REDLOCK_PY, acquire="lock", release="unlock"), sent=("set", "eval"),
        key=f"{REDLOCK_PY}:{NAME}"),
    Contender(POTTERY, "pottery.Redlock, a thread for each node", opens=_pottery_redlock, sent=_BY_SET,
        key=f"redlock:{NAME}"),
    Contender(REDLOCK_NG_ASYNCIO, "redlock.AsyncRedlock of redlock-ng", awaits=_redlock_ng_asyncio,
        sent=("set", "eval"), key=f"{REDLOCK_NG_ASYNCIO}:{NAME}", apart=apart.REDLOCK_NG),
    Contender(POTTERY_ASYNCIO, "pottery.AIORedlock", awaits=_pottery_asyncio, sent=_BY_SET,
        key=f"redlock:{NAME}-asyncio"),
    Contender(AIOREDLOCK, "aioredlock.Aioredlock on aioredis", awaits=_aioredlock, sent=("evalsha",),
        key=f"{AIOREDLOCK}:{NAME}", apart=apart.AIOREDLOCK),
    Contender(floors.NODES_OWN, floors.MEANINGS[floors.NODES_OWN], opens=floors.own_scripts_of_all),
    Contender(floors.NODES_LEAST, floors.MEANINGS[floors.NODES_LEAST], opens=floors.least_scripts_of_all, sent=_BY_SET),
)

_A_SESSION = "without a table, a lease is a lock of its session"
_SQL_PEERS = (
    Contender(DLOCK, "sqlalchemy_dlock.create_sadlock on a connection of SQLAlchemy: a session lock, no lease",
        opens=_dlock),
    Contender(TOOZ, "a lock of tooz.coordination; its PostgreSQL and MySQL locks connect anew for each acquisition",
        opens=_tooz),
)
_POSTGRESQL = (
    *_CLIENTS,
    Contender(ADVISORY, f"tenure.Client, ?mode=advisory: {_A_SESSION}", opens=partial(leased, query="?mode=advisory")),
    Contender(ADVISORY_ASYNCIO, "tenure.AsyncClient, ?mode=advisory", awaits=partial(awaited, query="?mode=advisory")),
    Contender(PALS, "pals.Locker on a pool of SQLAlchemy and psycopg: a session lock, no lease", opens=_pals),
    *_SQL_PEERS,
    Contender(floors.ADVISORY, floors.MEANINGS[floors.ADVISORY], opens=floors.advisory),
    Contender(floors.CALLS, floors.MEANINGS[floors.CALLS], opens=floors.calls),
    Contender(floors.TRIPS, floors.MEANINGS[floors.TRIPS], opens=floors.trips),
)
_MYSQL = (
    *_CLIENTS,
    Contender(GET_LOCK, f"tenure.Client, ?mode=get_lock: {_A_SESSION}", opens=partial(leased, query="?mode=get_lock")),
    Contender(GET_LOCK_ASYNCIO, "tenure.AsyncClient, ?mode=get_lock", awaits=partial(awaited, query="?mode=get_lock")),
    Contender(POLLING, "tenure.Client, ?notify=off: its waiters poll", opens=partial(leased, query="?notify=off")),
    *_SQL_PEERS,
    Contender(floors.GET_LOCK, floors.MEANINGS[floors.GET_LOCK], opens=floors.get_lock),
)
_MEMCACHED = (
    *_CLIENTS,
    *_SQL_PEERS[1:],
    Contender(SHERLOCK,
        "sherlock.MCLock on pylibmc: an item that is added and deleted, polls every 100 ms (its default)",
        opens=each(_sherlock), module="pylibmc"),
    Contender(floors.ADD_DELETE, floors.MEANINGS[floors.ADD_DELETE], opens=floors.add_delete),
    Contender(floors.OWN_SWAPS, floors.MEANINGS[floors.OWN_SWAPS], opens=floors.own_swaps),
)
_ORDERED = (
    *_CLIENTS,
    Contender(HOT, "tenure.Client, one for all threads", opens=leased),
    Contender(AGAIN, "tenure.Client, a lease that lingers", opens=partial(leased, linger=5.0)),
)
_ZOOKEEPER = (
    *_ORDERED,
    Contender(KAZOO, "kazoo.recipe.lock.Lock, a new object for each acquisition", opens=partial(_kazoo, new=True)),
    Contender(KAZOO_AGAIN, "kazoo.recipe.lock.Lock, the same object again and again", opens=_kazoo),
    Contender(KAZOO_QUEUE, "kazoo.recipe.lock.Lock, each waiter has a KazooClient", opens=_kazoo),
    Contender(floors.CREATE_DELETE, "floor: an ephemeral sequence node made, then removed", opens=_create_delete),
)
_ETCD = (
    *_ORDERED,
    Contender(AETCD, "aetcd's Lock over gRPC, asyncio: no queue, the first attempt after a release is granted",
        awaits=_aetcd),
    Contender(floors.PUT_DELETE, floors.MEANINGS[floors.PUT_DELETE], opens=floors.put_delete),
)

# fmt: on


def _programs(store: str) -> Sequence[Contender]:
    sent = {
        programs.RUEIDISLOCK: ("evalsha", "eval"),
        programs.REDISSON: ("evalsha", "eval", "subscribe", "unsubscribe"),
    }
    labels = PEER_PROGRAMS.get(store, ())
    return [Contender(label, programs.RECIPES[label].meaning, sent=sent.get(label, ())) for label in labels]


CONTENDERS: Mapping[str, Mapping[str, Contender]] = {
    store: {contender.label: contender for contender in (*contenders, *_programs(store))}
    for store, contenders in {
        FILES: _FILES, REDIS: _REDIS, QUORUM: _REDLOCKS, POSTGRESQL: _POSTGRESQL, MYSQL: _MYSQL,
        MEMCACHED: _MEMCACHED, ZOOKEEPER: _ZOOKEEPER, ETCD: _ETCD,
    }.items()
}  # fmt: skip
"""The contenders of each store, by their labels."""


def able(store: str, labels: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the contenders that can be measured here, and notes of why the others cannot."""
    missing = {label: CONTENDERS[store][label].missing() for label in labels}
    return [label for label, note in missing.items() if not note], list(dict.fromkeys(filter(None, missing.values())))
