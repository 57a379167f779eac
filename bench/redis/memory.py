"""The memory of a task or thread that waits for a lock in Redis, in its own process and in the server.

Each case has a server and a waiting process of its own. The result is the growth of both when all wait, divided by the
number of waiters: of the resident memory of the process, and of the memory that the server has allocated. Threads with
concurrent requests use connections of their own, which are included.
"""

import asyncio
import gc
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import NAME
from bench.harness import Report, Row, Size
from bench.redis.contenders import ASYNCIO, TEST_TIMEOUT, THREADS, TTL, redis_server
from bench.redis.usage import connections, memory
from bench.workers import Worker
from tenure import AsyncClient, Client
from tests.servers import wait_until

EVENT_TASK = "asyncio.Event"
EVENT_THREAD = "threading.Event"

MEANINGS = {
    ASYNCIO: "tasks of one tenure.AsyncClient",
    EVENT_TASK: "floor: tasks that wait for an event",
    THREADS: "threads of one tenure.Client",
    EVENT_THREAD: "floor: threads that wait for an event",
}

FLOORS = (EVENT_TASK, EVENT_THREAD)


@dataclass(slots=True)
class Grown:
    """The memory of the waiters."""

    client: float
    """The bytes in the process, for each waiter."""
    server: float
    """The bytes in the server, for each waiter."""
    connections: int
    """The number of connections of all waiters."""


def run(size: Size, folder: Path) -> Report:
    """Let many contenders wait for one name, and then each for a name of its own."""
    report = Report("redis_memory", "memory of each waiter", ["waiters", "its process", "the server", "connections"])
    for ours, floor, count in (
        (ASYNCIO, EVENT_TASK, size.tasks_waiting),
        (THREADS, EVENT_THREAD, size.threads_waiting),
    ):
        cases = {
            f"{ours}, one name": (ours, [NAME] * count),
            f"{ours}, a name each": (ours, [f"{NAME}-{number}" for number in range(count)]),
            floor: (floor, [NAME] * count),
        }
        for title, (label, names) in cases.items():
            grown = _measure(folder / title, label, names, size.settle)
            cells = [f"{count:,}", _kib(grown.client), _kib(grown.server), f"{grown.connections:+}"]
            report.rows.append(Row(title, cells, MEANINGS[label], asdict(grown)))
    return report


def _kib(size: float) -> str:
    return f"{size / 1024:.1f} KiB"


def _measure(folder: Path, label: str, names: Sequence[str], settle: float) -> Grown:
    """Hold all names while contenders wait for them; return the growth of the memory."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        holder = stack.enter_context(Client(server.url, operation_timeout=TEST_TIMEOUT))
        held = set(names)
        for name in held:
            stack.enter_context(holder.lock(name, TTL).acquire())
        worker = stack.enter_context(Worker(WAITS[label], server.url, names))
        worker.answer()
        before, connected = memory(server), connections(server)
        worker.order("wait")
        if label not in FLOORS:
            wait_until(lambda: all(holder.inspect(name).waiters for name in held), "a waiter for every name")
        time.sleep(settle)  # until all wait: the server knows only the first waiter of a process for each name
        worker.order("measure")
        grown: int = worker.answer()
        more = connections(server) - connected
        return Grown(grown / len(names), (memory(server) - before) / len(names), more)


def wait_in_tasks(line: Connection, url: str, names: Sequence[str]) -> None:
    """Run a process whose tasks wait for locks."""

    async def wait() -> None:
        client = AsyncClient(url, operation_timeout=TEST_TIMEOUT)
        await client.inspect(NAME)  # connects
        await _start_tasks(line, [partial(_acquire_async, client, name) for name in names])

    asyncio.run(wait())


def wait_in_event_tasks(line: Connection, _url: str, names: Sequence[str]) -> None:
    """Run a process whose tasks wait for an event."""

    async def wait() -> None:
        event = asyncio.Event()
        await _start_tasks(line, [event.wait for _ in names])

    asyncio.run(wait())


async def _acquire_async(client: AsyncClient, name: str) -> None:
    await client.lock(name, TTL).acquire()


async def _start_tasks(line: Connection, waits: Sequence[Callable[[], Awaitable[object]]]) -> None:
    line.send("ready")
    await asyncio.to_thread(line.recv)
    before = _resident()
    tasks = [asyncio.ensure_future(wait()) for wait in waits]
    await asyncio.to_thread(line.recv)
    line.send(_resident() - before)
    await asyncio.gather(*tasks)  # until killed


def wait_in_threads(line: Connection, url: str, names: Sequence[str]) -> None:
    """Run a process whose threads wait for locks."""
    client = Client(url, operation_timeout=TEST_TIMEOUT)
    client.inspect(NAME)
    _start_threads(line, [partial(_acquire, client, name) for name in names])


def wait_in_event_threads(line: Connection, _url: str, names: Sequence[str]) -> None:
    """Run a process whose threads wait for an event."""
    _start_threads(line, [threading.Event().wait for _ in names])


def _acquire(client: Client, name: str) -> None:
    client.lock(name, TTL).acquire()


def _start_threads(line: Connection, waits: Sequence[Callable[[], object]]) -> None:
    line.send("ready")
    line.recv()
    before = _resident()
    for wait in waits:
        threading.Thread(target=wait, daemon=True).start()
    line.recv()
    line.send(_resident() - before)
    line.recv()  # until killed


def _resident() -> int:
    """Return the resident memory of this process, in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


WAITS: dict[str, Callable[[Connection, str, Sequence[str]], None]] = {
    ASYNCIO: wait_in_tasks,
    THREADS: wait_in_threads,
    EVENT_TASK: wait_in_event_tasks,
    EVENT_THREAD: wait_in_event_threads,
}
