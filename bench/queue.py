"""Many clients wait for one lock: the cost of a release, the time to the next grant, the steps of a long queue.

All waiters are threads or tasks of one process. Another client of the process holds the lock until all waiters are in
the queue, and releases it. Then each waiter holds the lock once, for a moment.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from bench.contenders import (
    BUSY,
    CONTENDERS,
    NAME,
    OURS,
    WAKES,
    AsyncHandle,
    Blocking,
    Contender,
    Want,
    acquire_at,
    clock,
    release_at,
)
from bench.harness import Case, Column, Report, Round, Size, duration, interleave, middle, spread, total, waited
from bench.servers import ETCD, FILES, MYSQL, POSTGRESQL, QUORUM, REDIS, ZOOKEEPER, Place, running
from bench.workers import TEST_TIMEOUT, Worker
from bench.workload import Bench, Workload
from tenure import AsyncClient, TenureError
from tenure.runtimes.threads import complete
from tenure.stores.ordered.store import OrderedStore
from tests.servers import wait_until

R = TypeVar("R")

HOLD = 0.001
"""How long each waiter holds the lock, in seconds."""
FILLING = 120.0
"""How long a queue may take to fill, in seconds."""

COLUMNS = (
    Column("events a release", "events", lambda values: str(spread(values))),
    Column("by the servers", "events_sent", middle(".2f")),
    Column("requests each", "requests", middle(".2f")),
    Column("hand-off p50", "waits", waited(0.5)),
    Column("p99", "waits", waited(0.99)),
    Column("max", "waits", waited(1.0)),
    Column("client each", "client", middle(duration)),
    Column("overlaps", "overlaps", total),
)

Held = tuple[float, float]
"""The instant of a grant, and the start of its release."""


@dataclass(slots=True)
class Drain:
    """The measurements of one queue, made by the process with the waiters."""

    held: Sequence[Held]
    """The holds, beginning with that of the first client."""
    wakes: int
    client: float
    """The processor time of the process, in seconds."""


def run(workload: Workload, size: Size, folder: Path) -> Report:
    """Let clients wait, with one queue each in turns."""
    found: dict[Case, list[Round]] = {}
    with ExitStack() as stack:
        bench = Bench(stack, workload, size, folder)
        for name, place in bench.places.items():
            with ExitStack() as workers:
                started = {
                    label: workers.enter_context(Worker(serve, bench.store, label, place.urls, size.queue))
                    for label in bench.labels
                }
                measures = {
                    Case(label, f"{name}, "): partial(_round, worker, place, size.queue)
                    for label, worker in started.items()
                }
                for worker in started.values():
                    worker.answer()
                interleave(measures, 1)  # warm up
                found |= interleave(measures, size.drains)
    return workload.report(size, found, notes=[*bench.notes])


def _round(worker: Worker, place: Any, waiters: int) -> Round:  # noqa: ANN401 - a place that counts watches
    before, sent, watches = place.begin(()), place.events(), place.watches()
    worker.order("wait")
    worker.answer()
    wait_until(lambda: place.watches() >= watches + waiters, "a queue in which all wait", TEST_TIMEOUT)
    worker.order("go")
    drain = worker.answer()
    return {**figures_of(drain, place.used(before, ())["requests"]), "events_sent": (place.events() - sent) / waiters}


def figures_of(drain: Drain, requests: float) -> dict[str, Any]:
    """Return the events delivered for each release with a waiter, and the cost of each acquisition and its release."""
    taken, each = handoffs(drain.held), len(drain.held)
    return {
        "events": drain.wakes / (each - 1),
        "requests": requests / each,
        "waits": taken,
        "client": drain.client / each,
        "overlaps": sum(wait < 0 for wait in taken),
    }


def handoffs(held: Sequence[Held]) -> list[float]:
    """Return the time from the start of each release to the next grant; it is negative if the two overlap."""
    return [after[0] - before[1] for before, after in pairwise(sorted(held))]


@contextmanager
def counting_wakes() -> Generator[None]:
    """Count the events that Tenure's stores of this process receive."""
    original = OrderedStore.woken

    def woken(store: OrderedStore, request_id: str) -> None:
        WAKES.append(None)
        original(store, request_id)

    with mock.patch.object(OrderedStore, "woken", woken):
        yield


def serve(line: Connection, store: str, label: str, urls: Sequence[str], waiters: int) -> None:
    """Run the process of one contender: a client for each waiter, evenly on all servers."""
    with counting_wakes():
        homes = [urls[number % len(urls)] for number in range(waiters + 1)]
        asyncio.run(_serve(line, CONTENDERS[store][label], homes))


async def _serve(line: Connection, contender: Contender, homes: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        locks: list[AsyncHandle] = []
        for home in homes:
            if contender.opens:
                locks += map(Blocking, await asyncio.to_thread(stack.enter_context, contender.opens(home, Want())))
            elif contender.awaits:
                locks += await stack.enter_async_context(contender.awaits(home, Want()))
        threads = stack.enter_context(ThreadPoolExecutor(len(homes)))

        def begin(work: Coroutine[Any, Any, R]) -> "asyncio.Future[R]":
            in_thread = asyncio.get_running_loop().run_in_executor
            return in_thread(threads, complete, work) if contender.opens else asyncio.ensure_future(work)

        async def pause() -> None:
            time.sleep(HOLD) if contender.opens else await asyncio.sleep(HOLD)  # noqa: ASYNC251 - in a thread

        line.send("ready")
        while True:
            await asyncio.to_thread(line.recv)
            before, woken = time.process_time(), len(WAKES)
            got = await begin(acquire_at(locks[0]))
            passes = [begin(_pass(lock, pause)) for lock in locks[1:]]
            line.send("waiting")
            await asyncio.to_thread(line.recv)
            held = [(got, await begin(release_at(locks[0]))), *await asyncio.gather(*passes)]
            line.send(Drain(held, len(WAKES) - woken, time.process_time() - before))


async def _pass(lock: AsyncHandle, pause: Callable[[], Awaitable[None]]) -> Held:
    got = await acquire_at(lock)
    await pause()
    return got, await release_at(lock)


# -- long queues --------------------------------------------------------------------------------------------------

STEPS = (
    Column("a step", "step", middle(duration)),
    Column("not served", "lost", total),
    Column("requests", "requests", middle(",.0f")),
    Column("server a request", "each", middle(duration)),
)
QUEUES = (FILES, REDIS, QUORUM, POSTGRESQL, MYSQL, ZOOKEEPER, ETCD)
"""The stores with a queue."""
FIRST = 10
"""The number of steps that are measured, at the head of each queue."""


def steps(workload: Workload, size: Size, folder: Path) -> Report:
    """Let few tasks wait, and many, in turns, in each of some stores.

    They want to write behind a reader, or, where there are no such locks, each wants a lock by a place of its own.
    """
    found: dict[Case, list[Round]] = {}
    counts = workload.options.get("counts")
    for store in workload.options.get("stores", QUEUES):
        with running(store, folder, ensembles=False) as places:
            place = list(places.values())[-1]
            measures = {
                Case(f"{count} waiting", f"{store}, "): partial(_steps, place, store, count)
                for count in (counts(size) if counts else size.waiters)
            }
            found |= interleave(measures, size.rounds)
    meanings = {case.label: "tasks of one tenure.AsyncClient" for case in found}
    return workload.report(size, found, meanings)


def _steps(place: Place, store: str, count: int) -> Round:
    return asyncio.run(_drain(place, store, count))


async def _drain(place: Place, store: str, count: int) -> Round:
    url, alone = place.url, store == QUORUM  # a quorum keeps no locks of readers and writers
    async with AsyncClient(url, operation_timeout=BUSY) as reader, AsyncClient(url, operation_timeout=BUSY) as writers:
        grants: list[float] = []
        lease = await (_lock(reader) if alone else reader.rwlock(NAME).read()).acquire()
        before = place.begin(OURS)
        tasks = [
            asyncio.create_task(_write(_lock(writers) if alone else _writing(writers), grants)) for _ in range(count)
        ]
        until = clock() + FILLING
        while (queued := len((await reader.inspect(NAME)).waiters)) < count:
            if clock() > until:
                raise TimeoutError(f"{queued} of {count} tasks wait in {url} after {FILLING:g} s")
            await asyncio.sleep(0.01)
        used = place.used(before, OURS)
        released = clock()
        await lease.release()
        served = sum(await asyncio.gather(*tasks))
    gaps = [after - before for before, after in pairwise([released, *grants[:FIRST]])]
    found = {"step": statistics.median(gaps), "lost": float(count - served)}
    return {**found, **used, "each": used["servers"] / used["requests"]} if "requests" in used else found


def _lock(client: AsyncClient) -> Any:  # noqa: ANN401 - of either kind
    return client.lock(NAME, timeout=300.0, detect_deadlock=True)


def _writing(client: AsyncClient) -> Any:  # noqa: ANN401
    return client.rwlock(NAME, timeout=300.0).write()


async def _write(lock: Any, grants: list[float]) -> bool:  # noqa: ANN401
    try:
        lease = await lock.acquire()
        grants.append(clock())
        return bool((await lease.release()).kept)
    except TenureError:
        return False
