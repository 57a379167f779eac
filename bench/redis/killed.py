"""A holder of a lock in Redis is killed with SIGKILL while another process waits: the time until the grant.

The lease ends by the server's clock, one ttl after its last renewal. The benchmark queries its remaining time right
after the kill, and counts from the start of this query. So a wake-up looks later by the duration of the query.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from bench.harness import Bound, Report, Size
from bench.killed import Case, kill, killed_report, lease_left
from bench.redis.contenders import (
    ASYNCIO,
    MEANINGS,
    REDIS_LOCK,
    REDIS_LOCK_KEY,
    REDIS_PY,
    REDIS_PY_KEY,
    THREADS,
    async_handle,
    lease_handle,
    peer_handle,
    python_redis_lock,
    redis_py_lock,
    redis_server,
)
from tenure import Client
from tests.servers import RedisServer

LIMIT = 25.0
"""The greatest median time from the end of the dead holder's lease to the grant, in milliseconds."""


def run(size: Size, folder: Path) -> Report:
    """Kill holders, and report how long their waiters wait."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        waits = kill(_open_all(stack, server, size.ttl), size)
    report = killed_report("redis_killed", size, waits, MEANINGS)
    for label in (THREADS, ASYNCIO):
        late = median(wait.since_end for wait in waits[label]) * 1000
        report.bounds.append(Bound(f"{label}: granted after the last renewal + ttl, median", late, LIMIT, " ms"))
    return report


def _open_all(stack: ExitStack, server: RedisServer, ttl: float) -> dict[str, Case]:
    enter, url = stack.enter_context, server.url
    left = partial(lease_left, enter(Client(url)))
    lease = partial(lease_handle, url, ttl)
    redis_py = partial(peer_handle, url, partial(redis_py_lock, ttl=ttl))
    redis_lock = partial(peer_handle, url, partial(python_redis_lock, ttl=ttl))
    return {
        THREADS: Case(enter(lease()), lease, left),
        ASYNCIO: Case(enter(async_handle(url, ttl)), lease, left),
        REDIS_PY: Case(enter(redis_py()), redis_py, _key_left(server, REDIS_PY_KEY)),
        REDIS_LOCK: Case(enter(redis_lock()), redis_lock, _key_left(server, REDIS_LOCK_KEY)),
    }


def _key_left(server: RedisServer, key: str) -> Callable[[], float]:
    def left() -> float:
        milliseconds = server.command("PTTL", key)
        assert isinstance(milliseconds, int)  # noqa: S101 - that is what PTTL returns
        return milliseconds / 1000

    return left
