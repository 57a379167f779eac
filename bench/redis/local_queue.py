"""Many threads or tasks of one process, and then many processes of several threads, on one hot lock in Redis.

The peers in Java and Go have as many threads or goroutines in one process of their own.

The contenders of one process stand in one local queue, with local hand-offs among them; the fairness budget limits each
process. The benchmark measures the grants a second, their cost for the server, and the share of each process.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.lock import Lock as AsyncRedisLock

from bench.contenders import NAME, clock
from bench.harness import Bound, Report, Row, Size, interleave, ratios
from bench.peers import programs
from bench.peers.programs import Program
from bench.redis.contenders import (
    ASYNCIO,
    PROGRAMS,
    REDIS_LOCK,
    REDIS_PY,
    REDIS_PY_KEY,
    REDIS_PY_QUICK,
    TEST_TIMEOUT,
    THREADS,
    TTL,
    python_redis_lock,
    redis_py_client,
    redis_py_lock,
    redis_server,
)
from bench.redis.hot import sent
from bench.workers import Worker
from tenure import AsyncClient, Client
from tests.servers import RedisServer

START_AFTER = 0.1
THREADS_EACH = 4
SHARE = 0.08
"""The length of a window for each process, in seconds: several fairness budgets, and time for a late start."""

FASTER = 10.0
COMMANDS = 0.2
FAIRNESS = 0.7

REDIS_ASYNC = "redis.asyncio"
REDIS_ASYNC_QUICK = "redis.asyncio, 1 ms"
MEANINGS = {
    THREADS: "tenure.Client, one lock for all threads",
    REDIS_PY: "redis.lock.Lock, one each, polls every 100 ms (its default)",
    REDIS_PY_QUICK: "redis.lock.Lock, one each, polls every millisecond",
    REDIS_LOCK: "redis_lock.Lock, one each, woken by BLPOP",
    ASYNCIO: "tenure.AsyncClient, one lock for all tasks",
    REDIS_ASYNC: "redis.asyncio.lock.Lock, one each, polls every 100 ms (its default)",
    REDIS_ASYNC_QUICK: "redis.asyncio.lock.Lock, one each, polls every millisecond",
}


@dataclass(slots=True)
class Crowd:
    """The grants of one contender in one window."""

    grants: Sequence[int]
    seconds: float
    commands: float
    """The commands sent by clients, for each acquisition."""

    def rate(self) -> float:
        """Return the acquisitions a second."""
        return sum(self.grants) / self.seconds

    def fairness(self) -> float:
        """Return the ratio of the fewest grants to the most."""
        return min(self.grants) / max(self.grants) if any(self.grants) else 0.0


Contender = Callable[[float], Sequence[int]]
"""Contends for so many seconds; returns the grants of each thread, task or process."""


def run(size: Size, folder: Path) -> Report:
    """Let threads, tasks and processes contend, one window each in turns."""
    peers = programs.build_all(PROGRAMS, folder / "peers")
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        started = stack.enter_context(programs.started_all(peers, server.address, size.threads))
        workers = [stack.enter_context(Worker(serve, server.url)) for _ in range(size.crowds)]
        for worker in workers:
            worker.answer()
        processes = f"{size.crowds} x {THREADS_EACH} threads"
        contenders: dict[str, Contender] = {
            **_contenders(stack, server, size),
            **{label: partial(_grants, program) for label, program in started.items()},
            processes: partial(_processes, workers),
        }
        measures = {label: partial(_measure, server, label, each, size) for label, each in contenders.items()}
        found = interleave(measures, size.rounds)
    columns = ["acquired/s", "commands each", "fewest/most"]
    title = f"{size.threads} threads, {size.tasks} tasks of one process, then processes, on one hot lock"
    report = Report("redis_local_queues", title, columns, notes=[note for peer in peers for note in peer.notes])
    meanings = MEANINGS | {peer.label: peer.meaning for peer in peers}
    meanings[processes] = f"{size.crowds} processes, each a tenure.Client and {THREADS_EACH} threads"
    report.rows = [_row(label, crowds, meanings[label]) for label, crowds in found.items()]
    report.bounds = _bounds(found, processes)
    return report


def _contenders(stack: ExitStack, server: RedisServer, size: Size) -> dict[str, Contender]:
    enter = stack.enter_context
    client, redis_py = enter(Client(server.url, operation_timeout=TEST_TIMEOUT)), enter(redis_py_client(server.url))
    lock = client.lock(NAME, TTL)
    lock.acquire().release()
    makes: dict[str, Callable[[], Any]] = {
        REDIS_PY: partial(redis_py_lock, redis_py),
        REDIS_PY_QUICK: partial(redis_py_lock, redis_py, 0.001),
        REDIS_LOCK: partial(python_redis_lock, redis_py),
    }
    return {
        THREADS: partial(_threads, [lambda: lock.acquire().release] * size.threads),
        **{label: partial(_threads, [_taking(make()) for _ in range(size.threads)]) for label, make in makes.items()},
        ASYNCIO: partial(_run_tasks, _our_tasks, server.url, size.tasks),
        REDIS_ASYNC: partial(_run_tasks, _their_tasks, server.url, size.tasks, 0.1),
        REDIS_ASYNC_QUICK: partial(_run_tasks, _their_tasks, server.url, size.tasks, 0.001),
    }


def _taking(lock: Any) -> Callable[[], Callable[[], object]]:  # noqa: ANN401 - a lock of some library
    def take() -> Callable[[], object]:
        lock.acquire()
        release: Callable[[], object] = lock.release
        return release

    return take


def _measure(server: RedisServer, label: str, contend: Contender, size: Size) -> Crowd:
    server.command("CONFIG", "RESETSTAT")
    grants = contend(size.seconds)
    return Crowd(grants, size.seconds, sent(server, label) / max(1, sum(grants)))


def _threads(takes: Sequence[Callable[[], Callable[[], object]]], seconds: float) -> Sequence[int]:
    """Acquire and release in one thread for each of `takes`."""
    start = clock() + START_AFTER
    grants = [0] * len(takes)

    def contend(number: int) -> None:
        time.sleep(max(0.0, start - clock()))
        while True:
            release = takes[number]()
            in_time = clock() < start + seconds
            release()
            if not in_time:
                return
            grants[number] += 1

    threads = [threading.Thread(target=contend, args=(number,), daemon=True) for number in range(len(takes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return grants


def _run_tasks(work: Callable[..., Any], url: str, *rest: Any) -> Sequence[int]:  # noqa: ANN401 - passed on
    grants: Sequence[int] = asyncio.run(work(url, *rest))
    return grants


async def _our_tasks(url: str, tasks: int, seconds: float) -> Sequence[int]:
    async with AsyncClient(url, operation_timeout=TEST_TIMEOUT) as client:
        await client.inspect(NAME)
        lock = client.lock(NAME, TTL)

        async def take() -> Callable[[], Any]:
            return (await lock.acquire()).release

        return await _tasks([take] * tasks, seconds)


async def _their_tasks(url: str, tasks: int, poll: float, seconds: float) -> Sequence[int]:
    made: Any = AsyncRedis.from_url(url, socket_timeout=None, max_connections=tasks)  # pyright: ignore[reportUnknownMemberType]
    async with made as client:
        await asyncio.gather(*(client.ping() for _ in range(tasks)))  # connects, which is not what is measured

        def taking() -> Callable[[], Any]:
            lock = AsyncRedisLock(client, REDIS_PY_KEY, timeout=TTL, sleep=poll)

            async def take() -> Callable[[], Any]:
                await lock.acquire()
                release: Callable[[], Any] = lock.release
                return release

            return take

        return await _tasks([taking() for _ in range(tasks)], seconds)


async def _tasks(takes: Sequence[Callable[[], Any]], seconds: float) -> Sequence[int]:
    start = clock() + START_AFTER
    grants = [0] * len(takes)

    async def contend(number: int) -> None:
        await asyncio.sleep(max(0.0, start - clock()))
        while True:
            release = await takes[number]()
            in_time = clock() < start + seconds
            await release()
            if not in_time:
                return
            grants[number] += 1

    await asyncio.gather(*(contend(number) for number in range(len(takes))))
    return grants


def _grants(program: Program, seconds: float) -> Sequence[int]:
    return program.hot(seconds)[1]


def _processes(workers: Sequence[Worker], seconds: float) -> Sequence[int]:
    window = SHARE * len(workers)
    start = clock() + START_AFTER
    for worker in workers:
        worker.order((start, window))
    return [round(worker.answer() * seconds / window) for worker in workers]


def serve(line: Connection, url: str) -> None:
    """Run one of the processes."""
    with Client(url, operation_timeout=TEST_TIMEOUT) as client:
        client.inspect(NAME)
        lock = client.lock(NAME, TTL)
        line.send("there")
        while True:
            start, seconds = line.recv()
            time.sleep(max(0.0, start - clock()))
            line.send(sum(_threads([lambda: lock.acquire().release] * THREADS_EACH, seconds)))


def _row(label: str, crowds: Sequence[Crowd], meaning: str) -> Row:
    rates, commands, fairness = (
        [crowd.rate() for crowd in crowds],
        [crowd.commands for crowd in crowds],
        [crowd.fairness() for crowd in crowds],
    )
    middle = statistics.median
    cells = [f"{middle(rates):,.0f}", f"{middle(commands):.3f}", f"{middle(fairness):.2f}"]
    return Row(label, cells, meaning, {"rates": rates, "commands": commands, "fairness": fairness})


def _bounds(found: Mapping[str, Sequence[Crowd]], processes: str) -> list[Bound]:
    bounds = [
        *_against(found, THREADS, (REDIS_PY, REDIS_PY_QUICK, REDIS_LOCK)),
        *_against(found, ASYNCIO, (REDIS_ASYNC, REDIS_ASYNC_QUICK)),
    ]
    fairness = statistics.median(crowd.fairness() for crowd in found[processes])
    return [*bounds, Bound(f"{processes}: fewest/most per process", fairness, FAIRNESS, at_least=True)]


def _against(found: Mapping[str, Sequence[Crowd]], ours: str, peers: Sequence[str]) -> list[Bound]:
    rates = {label: [max(crowd.rate(), 1 / crowd.seconds) for crowd in found[label]] for label in (ours, *peers)}
    best = max(peers, key=lambda label: statistics.median(rates[label]))
    commands = statistics.median(crowd.commands for crowd in found[ours])
    return [
        Bound(f"{ours} / {best} (the fastest peer)", ratios(rates[ours], rates[best]).median, FASTER, at_least=True),
        Bound(f"{ours}: commands each", commands, COMMANDS),
    ]
