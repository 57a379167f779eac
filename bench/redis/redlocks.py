"""The adapters of all measured locks on a majority of Redis servers.

Each library is imported only when it is used, for some peers must be the first to import redis-py: see `apart`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import urlsplit

from bench.contenders import NAME, clock
from bench.redis import apart
from bench.redis.apart import AIOREDLOCK, REDLOCK_NG
from bench.redis.usage import OURS
from bench.timing import Measure, blocking, time_awaited
from tenure import AsyncClient, Client, Lease, Lock, LockTimeout

TTL = 10.0
TEST_TIMEOUT = 30.0
"""How long an uncontended acquire may take, in seconds: longer than the keys that a peer leaves behind last."""
BUSY = 10.0
"""How long a request may take on a busy machine, in seconds."""

THREADS = "tenure threads"
ASYNCIO = "tenure asyncio"
REDLOCK_PY = "redlock-py"
POTTERY = "pottery"
REDLOCK_NG_ASYNCIO = "redlock-ng asyncio"
POTTERY_ASYNCIO = "pottery asyncio"
OWN = "bare sockets, own scripts"
LEAST = "bare sockets, least scripts"

MEANINGS = {
    THREADS: "tenure.Client",
    ASYNCIO: "tenure.AsyncClient",
    REDLOCK_NG: "redlock.Redlock of redlock-ng, sends its requests to one node after another",
    REDLOCK_PY: "redlock.Redlock of redlock-py, sends its requests to one node after another",
    POTTERY: "pottery.Redlock, a thread for each node",
    REDLOCK_NG_ASYNCIO: "redlock.AsyncRedlock of redlock-ng",
    POTTERY_ASYNCIO: "pottery.AIORedlock",
    AIOREDLOCK: "aioredlock.Aioredlock on aioredis",
    OWN: "floor: the two EVALSHA of one node, sent to all at once, all replies awaited",
    LEAST: "floor: SET NX PX, then EVALSHA of compare-and-delete, to all at once; goes on when a majority has replied",
}

KEYS = {
    REDLOCK_NG: f"redlock-ng:{NAME}",
    REDLOCK_PY: f"redlock-py:{NAME}",
    POTTERY: f"redlock:{NAME}",
    REDLOCK_NG_ASYNCIO: f"redlock-ng-asyncio:{NAME}",
    POTTERY_ASYNCIO: f"redlock:{NAME}-asyncio",
    AIOREDLOCK: f"aioredlock:{NAME}",
}
"""The key of a peer's lock, on each node. Nodes have no such key while nobody holds the lock."""

FOLDERS = {REDLOCK_NG: REDLOCK_NG, REDLOCK_NG_ASYNCIO: REDLOCK_NG, AIOREDLOCK: AIOREDLOCK}
"""The folder of a contender that is installed apart."""

SENT = {
    REDLOCK_NG: ("set", "eval"),
    REDLOCK_PY: ("set", "eval"),
    POTTERY: ("set", "evalsha"),
    REDLOCK_NG_ASYNCIO: ("set", "eval"),
    POTTERY_ASYNCIO: ("set", "evalsha"),
    AIOREDLOCK: ("evalsha",),
    LEAST: ("set", "evalsha"),
    THREADS: OURS,
    ASYNCIO: OURS,
    OWN: OURS,
}
"""The commands that a contender's clients send. The server also counts the commands of scripts, which differ."""


class Contender(Protocol):
    """The handle of one process to a blocking lock."""

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock for so many seconds; tell whether it is held."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


Pair = Callable[[], Awaitable[object]]


def prepare(label: str) -> None:
    """Add the folder of a contender to this process's path, before it imports any library."""
    if label in FOLDERS:
        apart.enter(FOLDERS[label])


def url_of(nodes: Sequence[str]) -> str:
    """Return the URL of the store on these nodes: a quorum, or the URL of the only node."""
    if len(nodes) == 1:
        return nodes[0]
    return "redlock://" + ",".join(urlsplit(node).netloc for node in nodes) + "?guard=observed"  # they are new


def name_on(nodes: Sequence[str]) -> str:
    """Return the name that Tenure locks on these nodes. Each number of nodes has a name of its own."""
    return f"{NAME}-{len(nodes)}"


# -- those that block -------------------------------------------------------------------------------------------


class Leased:
    """A lock of Tenure."""

    def __init__(self, lock: Lock) -> None:
        """Use a lock."""
        self._lock = lock
        self._lease: Lease | None = None

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock for so many seconds; tell whether it is held."""
        try:
            self._lease = self._lock.acquire(timeout=timeout)
        except LockTimeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        assert self._lease is not None  # noqa: S101 - a misuse by the benchmark itself
        self._lease.release()


class Insistent:
    """A lock manager that gives up after some attempts and pauses; it is called again until the timeout."""

    def __init__(self, attempt: Callable[[], Any], release: Callable[[Any], object]) -> None:
        """Use two functions: one makes a few attempts and returns a lock or None, the other releases a lock."""
        self._attempt = attempt
        self._let_go = release
        self._held: Any = None

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock for so many seconds, or until the last attempt has ended; tell whether it is held."""
        until = clock() + timeout
        while not (held := self._attempt()) and clock() < until:
            pass
        self._held = held
        return bool(held)

    def release(self) -> None:
        """Release the lock."""
        self._let_go(self._held)


class Pottery:
    """A lock of pottery. Its release fails if the lock has expired."""

    def __init__(self, clients: Iterable[Any]) -> None:
        """Use clients of redis-py, one a node."""
        import pottery

        self._lock = pottery.Redlock(key=NAME, masters=set(clients), auto_release_time=TTL)
        self._gone = pottery.ReleaseUnlockedLock

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock for so many seconds; tell whether it is held."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock."""
        with suppress(self._gone):
            self._lock.release()


@contextmanager
def tenure_threads(nodes: Sequence[str]) -> Generator[Contender]:
    """Open a Client."""
    with Client(url_of(nodes), operation_timeout=BUSY) as client:
        name = name_on(nodes)
        client.inspect(name)  # connects, which is not measured
        yield Leased(client.lock(name, TTL))


@contextmanager
def redlock_py(nodes: Sequence[str]) -> Generator[Contender]:
    """Open redlock-py with its defaults: three attempts, 200 ms apart."""
    manager = import_module("redlock").Redlock(list(nodes))
    yield Insistent(partial(manager.lock, KEYS[REDLOCK_PY], round(TTL * 1000)), manager.unlock)


@contextmanager
def redlock_ng(nodes: Sequence[str]) -> Generator[Contender]:
    """Open redlock-ng with its defaults: four attempts, 100 to 300 ms apart."""
    manager = import_module("redlock").Redlock(list(nodes))
    yield Insistent(partial(manager.acquire, KEYS[REDLOCK_NG], round(TTL * 1000)), manager.release)


@contextmanager
def pottery_redlock(nodes: Sequence[str]) -> Generator[Contender]:
    """Open pottery with its defaults: attempts without end, up to 200 ms apart."""
    clients = [import_module("redis").Redis.from_url(node) for node in nodes]
    try:
        yield Pottery(clients)
    finally:
        for client in clients:
            client.close()


BLOCKING: dict[str, Callable[[Sequence[str]], AbstractContextManager[Contender]]] = {
    THREADS: tenure_threads,
    REDLOCK_NG: redlock_ng,
    REDLOCK_PY: redlock_py,
    POTTERY: pottery_redlock,
}

# -- those that are awaited -------------------------------------------------------------------------------------


@asynccontextmanager
async def tenure_asyncio(nodes: Sequence[str]) -> AsyncGenerator[Pair]:
    """Open an AsyncClient."""
    async with AsyncClient(url_of(nodes), operation_timeout=BUSY) as client:
        lock = client.lock(name_on(nodes), TTL)

        async def pair() -> None:
            await (await lock.acquire()).release()

        yield pair


@asynccontextmanager
async def redlock_ng_asyncio(nodes: Sequence[str]) -> AsyncGenerator[Pair]:
    """Open the async lock of redlock-ng."""
    manager = import_module("redlock").AsyncRedlock(list(nodes))

    async def pair() -> None:
        held = await manager.acquire(KEYS[REDLOCK_NG_ASYNCIO], round(TTL * 1000))
        assert held  # noqa: S101 - else there is nothing to measure
        await manager.release(held)

    try:
        yield pair
    finally:
        for instance in manager.client.instances:
            await instance.aclose()


@asynccontextmanager
async def pottery_asyncio(nodes: Sequence[str]) -> AsyncGenerator[Pair]:
    """Open the async lock of pottery."""
    import pottery

    async with AsyncExitStack() as stack:
        clients = [import_module("redis.asyncio").Redis.from_url(node) for node in nodes]
        for client in clients:
            await stack.enter_async_context(client)
        lock = pottery.AIORedlock(key=f"{NAME}-asyncio", masters=set(clients), auto_release_time=TTL)

        async def pair() -> None:
            held = await lock.acquire(timeout=TEST_TIMEOUT)
            assert held  # noqa: S101
            await lock.release()

        yield pair


@asynccontextmanager
async def aioredlock_asyncio(nodes: Sequence[str]) -> AsyncGenerator[Pair]:
    """Open aioredlock, without its renewal."""
    manager = import_module("aioredlock").Aioredlock(list(nodes))

    async def pair() -> None:
        await manager.unlock(await manager.lock(KEYS[AIOREDLOCK], lock_timeout=TTL))

    try:
        yield pair
    finally:
        await manager.destroy()


AWAITED: dict[str, Callable[[Sequence[str]], AbstractAsyncContextManager[Pair]]] = {
    ASYNCIO: tenure_asyncio,
    REDLOCK_NG_ASYNCIO: redlock_ng_asyncio,
    POTTERY_ASYNCIO: pottery_asyncio,
    AIOREDLOCK: aioredlock_asyncio,
}


# -- what a pair takes ------------------------------------------------------------------------------------------


@contextmanager
def measuring(label: str, nodes: Sequence[str]) -> Generator[Measure]:
    """Open a contender to measure its uncontended pair of acquire and release."""
    if label in AWAITED:
        with _awaiting(AWAITED[label], nodes) as measure:
            yield measure
    elif label in BLOCKING:
        with BLOCKING[label](nodes) as contender:
            yield blocking(partial(_pair, contender))
    else:
        from bench.redis import quorum_floor

        with quorum_floor.PAIRS[label](nodes) as pair:
            yield blocking(pair)


def _pair(contender: Contender) -> None:
    held = contender.acquire(TEST_TIMEOUT)
    assert held  # noqa: S101
    contender.release()


@contextmanager
def _awaiting(
    opener: Callable[[Sequence[str]], AbstractAsyncContextManager[Pair]], nodes: Sequence[str]
) -> Generator[Measure]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        pair = runner.run(stack.enter_async_context(opener(nodes)))
        try:
            yield lambda count: runner.run(time_awaited(pair, count))
        finally:
            runner.run(stack.aclose())
