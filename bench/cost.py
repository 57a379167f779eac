"""Measures the processor time that Redis takes for renewals, and the memory that it takes for each waiter."""

import asyncio
import gc
import logging
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from bench.contenders import ASYNCIO, BUSY, NAME, THREADS
from bench.harness import Case, Column, Limit, Report, Round, Size, middle, total
from bench.servers import Place, running
from bench.workers import Worker
from bench.workload import Workload
from tenure import AsyncClient, Client, Outcome
from tests.servers import wait_until

R = TypeVar("R")

# -- one client that only renews its leases -----------------------------------------------------------------------

TTLS = 1.5
"""How long the leases are held, as a multiple of their ttl: about four renewals of each."""
AT_ONCE = 100
RENEWALS = (
    Column("client's CPU", "client", middle(".1%")),
    Column("server's CPU", "servers", middle(".1%")),
    Column("requests/s", "requests", middle(",.0f")),
    Column("leases lost", "lost", total),
)


def keep_limits(size: Size) -> list[Limit]:
    """Allow 3 % of a processor for 10,000 leases with a ttl of 30 seconds, and 20 % for any number."""
    share = min(0.03 * size.leases / 10_000 * 30.0 / size.leases_ttl, 0.2)
    why = "a busy machine may not have the processor time to spare"
    lost = [Limit(label, 0, figure="lost", why=why) for label in (THREADS, ASYNCIO)]
    return [*lost, *(Limit(label, share, figure="client") for label in (THREADS, ASYNCIO))]


def keep(workload: Workload, size: Size, folder: Path) -> Report:
    """Hold many leases of a Client, then of an AsyncClient, and only renew them."""
    names = [f"{NAME}-{number}" for number in range(size.leases)]
    with _quiet(), running(workload.store, folder) as places:
        found = {
            Case(THREADS): [_keep(places[""], names, size.leases_ttl)],
            Case(ASYNCIO): [asyncio.run(_keep_async(places[""], names, size.leases_ttl))],
        }
    return workload.report(size, found)


@contextmanager
def _quiet() -> Generator[None]:
    """Disable the log of lost leases, which are counted instead."""
    logger = logging.getLogger("tenure")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _metering(place: Place) -> Callable[[], dict[str, float]]:
    """Begin a period in which this process only renews; return what returns its cost a second."""
    began, worked, before = time.monotonic(), time.process_time(), place.begin(("evalsha",))

    def stop() -> dict[str, float]:
        passed = time.monotonic() - began
        return {"client": (time.process_time() - worked) / passed, **place.used(before, ("evalsha",), passed)}

    return stop


def _keep(place: Place, names: Sequence[str], ttl: float) -> Round:
    with Client(place.url, operation_timeout=BUSY) as client:
        leases = [client.lock(name, ttl=ttl).acquire() for name in names]
        stop = _metering(place)
        time.sleep(ttl * TTLS)
        cost = stop()
        held = [lease.remaining() > 0 for lease in leases]
        return {**cost, "lost": _lost(held, [lease.release() for lease in leases])}


async def _keep_async(place: Place, names: Sequence[str], ttl: float) -> Round:
    async with AsyncClient(place.url, operation_timeout=BUSY) as client:
        leases = await _gather(client.lock(name, ttl=ttl).acquire() for name in names)
        stop = _metering(place)
        await asyncio.sleep(ttl * TTLS)
        cost = stop()
        held = [lease.remaining() > 0 for lease in leases]
        return {**cost, "lost": _lost(held, await _gather(lease.release() for lease in leases))}


async def _gather(calls: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Await all, some at a time: ten thousand at once would exceed the timeout of a request."""
    left, results = iter(calls), list[R]()
    while batch := list(islice(left, AT_ONCE)):
        results += await asyncio.gather(*batch)
    return results


def _lost(held: Sequence[bool], outcomes: Sequence[Outcome]) -> int:
    """Return the number of leases that were lost by the client's clock, or unknown to the server at their release."""
    kept = sum(mine and outcome is Outcome.RELEASED for mine, outcome in zip(held, outcomes, strict=True))
    return len(outcomes) - kept


# -- the memory of those who wait ---------------------------------------------------------------------------------

EVENT_TASK, EVENT_THREAD = "asyncio.Event", "threading.Event"
WAITERS = {
    ASYNCIO: "tasks of one tenure.AsyncClient",
    EVENT_TASK: "floor: tasks that wait for an event",
    THREADS: "threads of one tenure.Client",
    EVENT_THREAD: "floor: threads that wait for an event",
}


def _kib(values: list[float]) -> str:
    return f"{values[0] / 1024:.1f} KiB"


MEMORY = (
    Column("waiters", "waiters", middle(",.0f")),
    Column("its process", "client", _kib),
    Column("the server", "server", _kib),
    Column("connections", "connections", middle("+.0f")),
)


def memory(workload: Workload, size: Size, folder: Path) -> Report:
    """Let many contenders wait for one name, and then each for a name of its own.

    Each case has a server and a waiting process of its own. The result is the growth of both when all wait, for each
    waiter: of the resident memory of the process, and of the memory that the server has allocated. Threads with
    concurrent requests use connections of their own, which are included.
    """
    found: dict[Case, list[Round]] = {}
    meanings: dict[str, str] = {}
    for ours, floor, count in (
        (ASYNCIO, EVENT_TASK, size.tasks_waiting),
        (THREADS, EVENT_THREAD, size.threads_waiting),
    ):
        cases = {
            f"{ours}, one name": (ours, [NAME] * count),
            f"{ours}, a name each": (ours, [f"{NAME}-{number}" for number in range(count)]),
            floor: (floor, [NAME] * count),
        }
        for row, (label, names) in cases.items():
            with running(workload.store, folder) as places:
                found[Case(row)] = [_grown(places[""], label, names, size.settle)]
            meanings[row] = WAITERS[label]
    return workload.report(size, found, meanings)


def _grown(place: Place, label: str, names: Sequence[str], settle: float) -> Round:
    """Hold all names while contenders wait for them; return the growth of the memory."""
    (server,) = place.servers
    with ExitStack() as stack:
        holder = stack.enter_context(Client(place.url, operation_timeout=BUSY))
        held = set(names)
        for name in held:
            stack.enter_context(holder.lock(name, ttl=30.0).acquire())
        worker = stack.enter_context(Worker(wait, label, place.url, names))
        worker.answer()
        before, connected = int(server.info("memory")["used_memory"]), int(server.info("clients")["connected_clients"])
        worker.order("wait")
        if label in (ASYNCIO, THREADS):
            wait_until(lambda: all(holder.inspect(name).waiters for name in held), "a waiter for every name")
        time.sleep(settle)  # until all wait: the server knows only the first waiter of a process for each name
        worker.order("measure")
        grown: int = worker.answer()
        connections = int(server.info("clients")["connected_clients"]) - connected
        used = int(server.info("memory")["used_memory"]) - before
    count = len(names)
    return {"waiters": count, "client": grown / count, "server": used / count, "connections": connections}


def wait(line: Connection, label: str, url: str, names: Sequence[str]) -> None:
    """Run a process whose tasks or threads wait for locks, or for an event."""
    if label in (ASYNCIO, EVENT_TASK):
        asyncio.run(_wait_in_tasks(line, label, url, names))
        return
    waits: list[Callable[[], object]] = [threading.Event().wait for _ in names]
    if label == THREADS:
        client = Client(url, operation_timeout=BUSY)
        client.inspect(NAME)  # connects
        waits = [client.lock(name, ttl=30.0).acquire for name in names]
    line.send("ready")
    line.recv()
    before = _resident()
    for each in waits:
        threading.Thread(target=each, daemon=True).start()
    line.recv()
    line.send(_resident() - before)
    line.recv()  # until killed


async def _wait_in_tasks(line: Connection, label: str, url: str, names: Sequence[str]) -> None:
    event = asyncio.Event()
    waits: list[Callable[[], Awaitable[object]]] = [event.wait for _ in names]
    if label == ASYNCIO:
        client = AsyncClient(url, operation_timeout=BUSY)
        await client.inspect(NAME)
        waits = [partial(_acquire, client, name) for name in names]
    line.send("ready")
    await asyncio.to_thread(line.recv)
    before = _resident()
    tasks = [asyncio.ensure_future(each()) for each in waits]
    await asyncio.to_thread(line.recv)
    line.send(_resident() - before)
    await asyncio.gather(*tasks)  # until killed


async def _acquire(client: AsyncClient, name: str) -> None:
    await client.lock(name, ttl=30.0).acquire()


def _resident() -> int:
    """Return the resident memory of this process, in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()
