"""The number of uncontended pairs a second of one process with 64 asyncio tasks, each with a name of its own."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis.asyncio

from bench.harness import Bound, Report, Row, Size, interleave, ratios, spread
from bench.redis import floor
from bench.redis.contenders import ASYNCIO, LOOPS, TTL, UVLOOP, redis_server
from bench.redis.floor import BareSocket, OwnScripts, granted_token
from tenure import AsyncClient, AsyncLock
from tests.servers import RedisServer

LIMIT = 7.0
TASKS = 64

PEER = "redis.asyncio"
PEER_UVLOOP = "redis.asyncio uvloop"
BARE = "bare socket, all at once"

MEANINGS = {
    ASYNCIO: "tenure.AsyncClient",
    UVLOOP: "the same on uvloop",
    PEER: "redis.asyncio.lock.Lock, one for each task, one client",
    PEER_UVLOOP: "the same on uvloop",
    BARE: "floor: Tenure's EVALSHAs over a bare socket, those of all tasks sent together",
}

Pair = Callable[[], Awaitable[object]]
Opener = Callable[[str, int], AbstractAsyncContextManager[Sequence[Pair]]]


def run(size: Size, folder: Path) -> Report:
    """Let the tasks of each contender acquire and release for some seconds in turns."""
    tasks = min(TASKS, size.tasks)
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        bare = stack.enter_context(floor.bare_socket(server))
        contenders: dict[str, Callable[[], float]] = {
            ASYNCIO: _round(_tenure, ASYNCIO, server, tasks, size.seconds),
            UVLOOP: _round(_tenure, UVLOOP, server, tasks, size.seconds),
            PEER: _round(_redis_asyncio, ASYNCIO, server, tasks, size.seconds),
            PEER_UVLOOP: _round(_redis_asyncio, UVLOOP, server, tasks, size.seconds),
            BARE: _bare(bare, tasks, size.seconds),
        }
        rates = interleave(contenders, size.rounds)
    report = Report("redis_tasks64", f"{tasks} asyncio tasks, each on a name of its own", ["pairs/s", f"over {PEER}"])
    for label, found in rates.items():
        share = ratios(found, rates[PEER])
        cells = [f"{spread(found).median:,.0f}", str(share)]
        report.rows.append(Row(label, cells, MEANINGS[label], {"rates": found, "over_peer": share.median}))
    for ours, theirs in ((ASYNCIO, PEER), (UVLOOP, PEER_UVLOOP)):
        over, floor_is = (ratios(rates[label], rates[theirs]).median for label in (ours, BARE))
        why = floor.beyond(BARE, floor_is, LIMIT)
        report.bounds.append(Bound(f"{ours} / {theirs}", over, LIMIT, at_least=True, why=why))
    return report


def _round(opener: Opener, kind: str, server: RedisServer, tasks: int, seconds: float) -> Callable[[], float]:
    def measure() -> float:
        with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
            return runner.run(_pairs_a_second(opener, server.url, tasks, seconds))

    return measure


async def _pairs_a_second(opener: Opener, url: str, tasks: int, seconds: float) -> float:
    async with opener(url, tasks) as pairs:
        await asyncio.gather(*(pair() for pair in pairs))  # connects
        started = time.perf_counter()
        until = started + seconds
        counts = await asyncio.gather(*(_repeat(pair, until) for pair in pairs))
        return sum(counts) / (time.perf_counter() - started)


async def _repeat(pair: Pair, until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        await pair()
        count += 1
    return count


@asynccontextmanager
async def _tenure(url: str, tasks: int) -> AsyncGenerator[Sequence[Pair]]:
    async with AsyncClient(url) as client:
        yield [partial(_lease_pair, client.lock(f"task-{n}", TTL)) for n in range(tasks)]


async def _lease_pair(lock: AsyncLock) -> None:
    await (await lock.acquire()).release()


@asynccontextmanager
async def _redis_asyncio(url: str, tasks: int) -> AsyncGenerator[Sequence[Pair]]:
    client: Any = redis.asyncio.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]
    async with client:
        yield [partial(_plain_pair, client.lock(f"redis-py:task-{n}", timeout=TTL)) for n in range(tasks)]


async def _plain_pair(lock: Any) -> None:  # noqa: ANN401 - partly untyped
    await lock.acquire()
    await lock.release()


def _bare(bare: BareSocket, tasks: int, seconds: float) -> Callable[[], float]:
    mine = [OwnScripts(bare, f"bare-{n}") for n in range(tasks)]

    def measure() -> float:
        started, count = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            granted = bare.send_to_all([each.acquire() for each in mine])
            tokens = [granted_token(reply) or 0 for reply in granted]
            bare.send_to_all([each.release(token) for each, token in zip(mine, tokens, strict=True)])
            count += tasks
        return count / (time.perf_counter() - started)

    return measure
