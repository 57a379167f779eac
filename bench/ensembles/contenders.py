"""All measured locks in ZooKeeper and etcd, and their floors.

kazoo and aetcd are imported only in the process of the contender that uses them.
"""

import asyncio
import base64
import http.client
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Protocol
from unittest import mock

from bench.contenders import NAME, Handle, LeaseHandle, Plain, PlainHandle, clock
from bench.ensembles.servers import ETCD, ZOOKEEPER, Address, url_of
from bench.peers.programs import CURATOR, GO
from bench.timing import Measure, blocking, plain_pair, time_awaited
from tenure import AsyncClient, AsyncLease, AsyncLock, Client
from tenure.stores.ordered.store import OrderedStore

BUSY = 20.0
"""How long a request may take on a busy machine, in seconds."""

TTL = 30.0

THREADS = "tenure threads"
ASYNCIO = "tenure asyncio"
KAZOO = "kazoo Lock, new"
KAZOO_AGAIN = "kazoo Lock, reused"
KAZOO_QUEUE = "kazoo Lock"
AETCD = "aetcd Lock"
CREATE_DELETE = "kazoo create + delete"
PUT_DELETE = "bare put + delete"

MEANINGS = {
    THREADS: "tenure.Client",
    ASYNCIO: "tenure.AsyncClient",
    KAZOO: "kazoo.recipe.lock.Lock, a new object for each acquisition",
    KAZOO_AGAIN: "kazoo.recipe.lock.Lock, the same object again and again",
    KAZOO_QUEUE: "kazoo.recipe.lock.Lock, each waiter has a KazooClient",
    AETCD: "aetcd's Lock over gRPC, asyncio: no queue, the first attempt after a release is granted",
    CREATE_DELETE: "floor: an ephemeral sequence node made, then removed",
    PUT_DELETE: "floor: a transaction that puts a key, then its removal, over one connection of http.client",
}

PAIRS = {
    ZOOKEEPER: (THREADS, ASYNCIO, KAZOO, KAZOO_AGAIN, CREATE_DELETE),
    ETCD: (THREADS, ASYNCIO, AETCD, PUT_DELETE),
}
PEERS = {ZOOKEEPER: (KAZOO, KAZOO_AGAIN), ETCD: (AETCD,)}
FLOORS = {ZOOKEEPER: CREATE_DELETE, ETCD: PUT_DELETE}
PROGRAMS = {ZOOKEEPER: CURATOR, ETCD: GO}
"""The peers in other languages."""
QUEUES = {ZOOKEEPER: (THREADS, ASYNCIO, KAZOO_QUEUE), ETCD: (THREADS, ASYNCIO, AETCD)}


class AsyncHandle(Protocol):
    """One lock as one task uses it. It reads the clock itself, so that no adapter is timed."""

    async def acquire(self) -> float:
        """Wait until the lock is held; return the time of the grant."""
        ...

    async def release(self) -> float:
        """Release the lock; return the time just before the release."""
        ...


Wakes = list[None]
"""One item for each event of a watch that a client received."""


# -- Tenure's -------------------------------------------------------------------------------------------------


class AsyncLeased:
    """A lock of an AsyncClient."""

    def __init__(self, lock: AsyncLock) -> None:
        self._lock = lock
        self._lease: AsyncLease | None = None

    async def acquire(self) -> float:
        """Wait until the lock is held."""
        self._lease = await self._lock.acquire()
        return clock()

    async def release(self) -> float:
        """Release the lock."""
        assert self._lease is not None  # noqa: S101 - a misuse by the benchmark itself
        now = clock()
        await self._lease.release()
        return now


@contextmanager
def leased(kind: str, address: Address, _wakes: Wakes) -> Generator[Handle]:
    """Open a Client."""
    with Client(url_of(kind, address), operation_timeout=BUSY) as client:
        client.inspect(NAME)  # connects, which is not measured
        yield LeaseHandle(client.lock(NAME, TTL))


@asynccontextmanager
async def async_leased(kind: str, address: Address, _wakes: Wakes) -> AsyncGenerator[AsyncHandle]:
    """Open an AsyncClient."""
    async with AsyncClient(url_of(kind, address), operation_timeout=BUSY) as client:
        await client.inspect(NAME)
        yield AsyncLeased(client.lock(NAME, TTL))


@contextmanager
def counting_wakes(wakes: Wakes) -> Generator[None]:
    """Count the events that Tenure's stores of this process receive."""
    original = OrderedStore.woken

    def woken(store: OrderedStore, request_id: str) -> None:
        wakes.append(None)
        original(store, request_id)

    with mock.patch.object(OrderedStore, "woken", woken):
        yield


# -- kazoo's ----------------------------------------------------------------------------------------------------


@contextmanager
def kazoo_client(address: Address) -> Generator[Any]:
    """Connect a KazooClient of the usual kind."""
    client = import_module("kazoo.client").KazooClient(f"{address[0]}:{address[1]}", timeout=BUSY)
    client.start(BUSY)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def kazoo_handle(_kind: str, address: Address, wakes: Wakes) -> Generator[Handle]:
    """Open a lock of kazoo, which counts the events of its watch."""
    recipe: Any = import_module("kazoo.recipe.lock").Lock

    class Counting(recipe):  # type: ignore[misc]
        def _watch_predecessor(self, event: object) -> None:
            wakes.append(None)
            recipe._watch_predecessor(self, event)  # noqa: SLF001

    with kazoo_client(address) as client:
        client.ensure_path(f"/{NAME}")
        yield PlainHandle(Counting(client, f"/{NAME}"))


def _new_pair(client: Any) -> Callable[[], object]:  # noqa: ANN401
    def pair() -> None:
        lock = client.Lock(f"/{NAME}")
        lock.acquire()
        lock.release()

    return pair


def _same_pair(client: Any) -> Callable[[], object]:  # noqa: ANN401
    lock: Plain = client.Lock(f"/{NAME}")
    return plain_pair(lock)


def _create_delete(client: Any) -> Callable[[], object]:  # noqa: ANN401
    client.ensure_path("/floor")

    def pair() -> None:
        client.delete(client.create("/floor/node-", b"0123456789abcdef", ephemeral=True, sequence=True))

    return pair


@contextmanager
def _by_kazoo(make: Callable[[Any], Callable[[], object]], address: Address) -> Generator[Measure]:
    with kazoo_client(address) as client:
        yield blocking(make(client))


# -- etcd's -----------------------------------------------------------------------------------------------------


class AsyncPlain:
    """A lock of aetcd."""

    def __init__(self, lock: Any) -> None:  # noqa: ANN401
        self._lock = lock

    async def acquire(self) -> float:
        """Wait until the lock is held."""
        held = await self._lock.acquire(timeout=None)
        assert held  # noqa: S101 - else there is nothing to measure
        return clock()

    async def release(self) -> float:
        """Release the lock."""
        now = clock()
        await self._lock.release()
        return now


@asynccontextmanager
async def aetcd_handle(_kind: str, address: Address, wakes: Wakes) -> AsyncGenerator[AsyncHandle]:
    """Open a lock of aetcd, which counts the events of its watch."""
    aetcd: Any = import_module("aetcd")
    recipe: Any = aetcd.locks.Lock

    class Counting(recipe):  # type: ignore[misc]
        async def _wait_for_delete_event(self, timeout: float | None) -> None:
            await recipe._wait_for_delete_event(self, timeout)  # noqa: SLF001
            wakes.append(None)

    async with aetcd.Client(*address) as client:
        yield AsyncPlain(Counting(client, NAME.encode(), round(TTL)))


@contextmanager
def _put_delete(address: Address) -> Generator[Measure]:
    key, value = (base64.b64encode(each).decode() for each in (b"floor/bench", b"0123456789abcdef"))
    put = {"compare": [], "success": [{"request_put": {"key": key, "value": value}}]}
    with closing(http.client.HTTPConnection(*address)) as connection:

        def post(path: str, body: object) -> None:
            connection.request("POST", f"/v3/kv/{path}", json.dumps(body))
            reply = json.loads(connection.getresponse().read())
            assert "header" in reply, reply  # noqa: S101 - else this is no floor

        def pair() -> None:
            post("txn", put)
            post("deleterange", {"key": key})

        yield blocking(pair)


# -- all of them ------------------------------------------------------------------------------------------------

HANDLES: Mapping[str, Callable[[str, Address, Wakes], AbstractContextManager[Handle]]] = {
    THREADS: leased,
    KAZOO_QUEUE: kazoo_handle,
}
ASYNC_HANDLES: Mapping[str, Callable[[str, Address, Wakes], AbstractAsyncContextManager[AsyncHandle]]] = {
    ASYNCIO: async_leased,
    AETCD: aetcd_handle,
}
BLOCKING: Mapping[str, Callable[[Address], AbstractContextManager[Measure]]] = {
    KAZOO: partial(_by_kazoo, _new_pair),
    KAZOO_AGAIN: partial(_by_kazoo, _same_pair),
    CREATE_DELETE: partial(_by_kazoo, _create_delete),
    PUT_DELETE: _put_delete,
}


@contextmanager
def measuring(kind: str, label: str, address: Address) -> Generator[Measure]:
    """Open a contender to measure its uncontended pair of acquire and release."""
    if label in BLOCKING:
        with BLOCKING[label](address) as measure:
            yield measure
    elif label in HANDLES:
        with HANDLES[label](kind, address, []) as handle:
            yield blocking(lambda: (handle.acquire(), handle.release()))
    else:
        with asyncio.Runner() as runner:
            opened = ASYNC_HANDLES[label](kind, address, [])
            pair = _awaited_pair(runner.run(opened.__aenter__()))
            try:
                yield lambda count: runner.run(time_awaited(pair, count))
            finally:
                runner.run(opened.__aexit__(None, None, None))


def _awaited_pair(handle: AsyncHandle) -> Callable[[], Awaitable[object]]:
    async def pair() -> None:
        await handle.acquire()
        await handle.release()

    return pair
