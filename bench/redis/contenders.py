"""All measured locks in Redis, behind the interface of `bench.contenders`. A place is the URL of the server."""

import asyncio
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pottery
import redis_lock  # type: ignore[import-untyped]
import uvloop
from redis.client import Redis
from redis.lock import Lock as RedisPyLock

from bench.contenders import NAME, AsyncHandle, Handle, LeaseHandle, Plain, PlainHandle
from bench.peers.programs import REDISSON, RUEIDISLOCK
from tenure import AsyncClient, Client
from tests.servers import RedisServer

TTL = 30.0
TEST_TIMEOUT = 10.0
"""How long a request may take on a busy machine, in seconds."""

THREADS = "tenure threads"
ASYNCIO = "tenure asyncio"
UVLOOP = "tenure uvloop"
BARGING = "tenure, fair=False"
REDIS_PY = "redis-py"
REDIS_PY_QUICK = "redis-py, 1 ms"
REDIS_LOCK = "python-redis-lock"
POTTERY = "pottery"

PROGRAMS = (RUEIDISLOCK, REDISSON)
"""The peers in other languages."""

REDIS_PY_KEY = f"redis-py:{NAME}"
REDIS_LOCK_KEY = f"lock:{NAME}"
"""The keys of the locks of redis-py and python-redis-lock."""

MEANINGS = {
    THREADS: "tenure.Client, one a process",
    ASYNCIO: "tenure.AsyncClient, one a process",
    UVLOOP: "tenure.AsyncClient on uvloop",
    BARGING: "tenure.Client, one a process, lock(..., fair=False)",
    REDIS_PY: "redis.lock.Lock, polls every 100 ms (its default)",
    REDIS_PY_QUICK: "redis.lock.Lock, polls every millisecond",
    REDIS_LOCK: "redis_lock.Lock, woken by BLPOP",
    POTTERY: "pottery.Redlock on this one server, polls after 0..200 ms (its default)",
}

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    ASYNCIO: asyncio.new_event_loop,
    UVLOOP: uvloop.new_event_loop,
}


@contextmanager
def redis_server(folder: Path) -> Generator[RedisServer]:
    """Run a server for one benchmark, on a free port of the loopback."""
    with RedisServer(folder / "redis") as server:
        yield server


@contextmanager
def redis_py_client(url: str) -> Generator[Any]:
    """Connect redis-py without its timeout, which would end a BLPOP early."""
    with closing(Redis.from_url(url, socket_timeout=None)) as client:  # pyright: ignore[reportUnknownMemberType]
        client.ping()  # pyright: ignore[reportUnknownMemberType]
        yield client


def redis_py_lock(client: Any, poll: float = 0.1, ttl: float = TTL) -> Plain:  # noqa: ANN401 - partly untyped
    """Make a lock of redis-py that polls every `poll` seconds."""
    return RedisPyLock(client, REDIS_PY_KEY, timeout=ttl, sleep=poll)


def python_redis_lock(client: Any, ttl: float = TTL) -> Plain:  # noqa: ANN401
    """Make a lock of python-redis-lock, without its renewal. It counts in whole seconds."""
    lock: Plain = redis_lock.Lock(client, NAME, expire=math.ceil(ttl))
    return lock


def pottery_lock(client: Any) -> Plain:  # noqa: ANN401
    """Make a Redlock of pottery with one master."""
    return pottery.Redlock(key=NAME, masters={client}, auto_release_time=TTL)


@contextmanager
def lease_handle(url: str, ttl: float = TTL, *, fair: bool = True) -> Generator[Handle]:
    """Open a Client."""
    with Client(url, operation_timeout=TEST_TIMEOUT) as client:
        client.inspect(NAME)  # connects, which is not measured
        yield LeaseHandle(client.lock(NAME, ttl, fair=fair))


@contextmanager
def async_handle(url: str, ttl: float = TTL, kind: str = ASYNCIO) -> Generator[Handle]:
    """Open an AsyncClient in a loop of its own."""
    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        client = AsyncClient(url, operation_timeout=TEST_TIMEOUT)
        runner.run(client.inspect(NAME))
        try:
            yield AsyncHandle(runner, client.lock(NAME, ttl))
        finally:
            runner.run(client.close())


@contextmanager
def peer_handle(url: str, make: Callable[[Any], Plain]) -> Generator[Handle]:
    """Open a lock that works with a client of redis-py."""
    with redis_py_client(url) as client:
        yield PlainHandle(make(client))


OPENERS: dict[str, Callable[[str], AbstractContextManager[Handle]]] = {
    THREADS: lease_handle,
    ASYNCIO: async_handle,
    UVLOOP: partial(async_handle, kind=UVLOOP),
    BARGING: partial(lease_handle, fair=False),
    REDIS_PY: partial(peer_handle, make=redis_py_lock),
    REDIS_PY_QUICK: partial(peer_handle, make=partial(redis_py_lock, poll=0.001)),
    REDIS_LOCK: partial(peer_handle, make=python_redis_lock),
    POTTERY: partial(peer_handle, make=pottery_lock),
}
