"""Many clients wait for one lock in ZooKeeper or etcd: the cost of a release, and the time to the next grant.

All waiters of a contender are threads or tasks of one process. Another client of the process holds the lock until all
waiters are in the queue, and releases it. Then each waiter holds the lock once, for a moment.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import Handle
from bench.ensembles.contenders import (
    ASYNC_HANDLES,
    HANDLES,
    MEANINGS,
    QUEUES,
    AsyncHandle,
    Wakes,
    counting_wakes,
)
from bench.ensembles.servers import ETCD, ZOOKEEPER, Address, Case, Place, running
from bench.harness import Bound, Report, Row, Size, duration, interleave, percentile, spread
from bench.workers import TEST_TIMEOUT, Worker
from tests.servers import wait_until

HOLD = 0.001
"""How long each waiter holds the lock, in seconds."""

WAKES = 1.0
"""The greatest number of events for each release."""

COLUMNS = (
    "events a release",
    "by the servers",
    "requests each",
    "hand-off p50",
    "p99",
    "max",
    "client each",
    "overlaps",
)

Opener = Callable[[Address, Wakes], AbstractAsyncContextManager[AsyncHandle]]

Held = tuple[float, float]
"""The instant of a grant, and the start of its release."""


@dataclass(slots=True)
class Drain:
    """What the process of the waiters measured for one queue."""

    held: Sequence[Held]
    """The holds, beginning with that of the first client."""
    wakes: int
    client: float
    """The processor time of the process, in seconds."""


@dataclass(slots=True)
class Round:
    """What was measured for one queue, in the process and at the servers."""

    drain: Drain
    requests: float
    sent: float
    """The number of events that the servers report as sent."""

    @property
    def waited(self) -> int:
        """The number of waiters."""
        return len(self.drain.held) - 1

    @property
    def wakes(self) -> float:
        """The events delivered for each release with a waiter."""
        return self.drain.wakes / self.waited

    @property
    def each(self) -> float:
        """The requests sent for each acquisition and its release."""
        return self.requests / len(self.drain.held)

    @property
    def client(self) -> float:
        """The client's processor time for each acquisition and its release."""
        return self.drain.client / len(self.drain.held)


def zookeeper(size: Size, folder: Path) -> Report:
    """Let clients wait in ZooKeeper."""
    return run(ZOOKEEPER, size, folder)


def etcd(size: Size, folder: Path) -> Report:
    """Let clients wait in etcd."""
    return run(ETCD, size, folder)


def run(kind: str, size: Size, folder: Path) -> Report:
    """Let clients wait, with one queue each in turns."""
    with ExitStack() as stack:
        places = stack.enter_context(running(kind, folder, ensembles=size.ensembles))
        version = next(iter(places.values())).meters.version
        found: dict[Case, list[Round]] = {}
        for name, place in places.items():
            found |= _take_turns(kind, name, place, size)
    report = Report(f"{kind}_queue", f"{size.queue} clients wait for one lock", COLUMNS, notes=[_note(kind, version)])
    report.rows = [_row(case, rounds) for case, rounds in found.items()]
    report.bounds = [_bound(case, rounds) for case, rounds in found.items() if case.label.startswith("tenure")]
    return report


def _note(kind: str, version: str) -> str:
    spread_out = "the clients are spread evenly over the servers of the ensemble"
    herd = "; aetcd's lock grants a lease with every attempt, which is left to run out" if kind == ETCD else ""
    return f"the servers are {version}; {spread_out}{herd}"


def _take_turns(kind: str, name: str, place: Place, size: Size) -> dict[Case, list[Round]]:
    with ExitStack() as stack:
        workers = {
            label: stack.enter_context(Worker(serve, kind, label, place.addresses, size.queue))
            for label in QUEUES[kind]
        }
        for worker in workers.values():
            worker.answer()
        measures = {label: partial(_round, worker, place, size.queue) for label, worker in workers.items()}
        interleave(measures, 1)  # warm up
        return {Case(label, name): rounds for label, rounds in interleave(measures, size.drains).items()}


def _round(worker: Worker, place: Place, waiters: int) -> Round:
    meters = place.meters
    before, sent, watches = meters.requests(), meters.events(), meters.watches()
    worker.order("wait")
    worker.answer()
    wait_until(lambda: meters.watches() >= watches + waiters, "a queue in which all wait", TEST_TIMEOUT)
    worker.order("go")
    drain = worker.answer()
    return Round(drain, meters.requests() - before, meters.events() - sent)


def handoffs(held: Sequence[Held]) -> list[float]:
    """Return the time from the start of each release to the next grant."""
    return [after[0] - before[1] for before, after in pairwise(sorted(held))]


def overlaps(held: Sequence[Held]) -> int:
    """Return the number of grants before the release of the previous holder began."""
    return sum(each < 0 for each in handoffs(held))


def _row(case: Case, rounds: Sequence[Round]) -> Row:
    taken = [each for one in rounds for each in handoffs(one.drain.held)]
    half, most, longest = percentile(taken, 0.5), percentile(taken, 0.99), max(taken)
    wakes = spread(one.wakes for one in rounds)
    sent = statistics.median(one.sent / one.waited for one in rounds)
    each, client = (statistics.median(values) for values in zip(*((r.each, r.client) for r in rounds), strict=True))
    twice = sum(overlaps(one.drain.held) for one in rounds)
    cells = [
        str(wakes),
        f"{sent:.2f}",
        f"{each:.2f}",
        *map(duration, (half, most, longest)),
        duration(client),
        str(twice),
    ]
    figures = {
        "events": wakes.median,
        "events_sent": sent,
        "requests": each,
        "p50": half,
        "p99": most,
        "max": longest,
        "client_seconds": client,
        "overlaps": twice,
    }
    return Row(str(case), cells, MEANINGS[case.label], figures)


def _bound(case: Case, rounds: Sequence[Round]) -> Bound:
    return Bound(f"{case}: events a release", spread(one.wakes for one in rounds).median, WAKES)


# -- the process of one contender -------------------------------------------------------------------------------


def serve(line: Connection, kind: str, label: str, addresses: Sequence[Address], waiters: int) -> None:
    """Run the process of one contender."""
    wakes: Wakes = []
    homes = [addresses[number % len(addresses)] for number in range(waiters + 1)]
    with counting_wakes(wakes):
        if label in HANDLES:
            with ExitStack() as stack:
                first, *others = [stack.enter_context(HANDLES[label](kind, home, wakes)) for home in homes]
                _serve_threads(line, first, others, wakes)
        else:
            asyncio.run(_serve_tasks(line, partial(ASYNC_HANDLES[label], kind), homes, wakes))


def _serve_threads(line: Connection, first: Handle, others: Sequence[Handle], wakes: Wakes) -> None:
    line.send("ready")
    while True:
        line.recv()
        held: list[Held] = []
        before, woken = time.process_time(), len(wakes)
        got = first.acquire()
        threads = [threading.Thread(target=_pass, args=(each, held), daemon=True) for each in others]
        for thread in threads:
            thread.start()
        line.send("waiting")
        line.recv()
        held.append((got, first.release()))
        for thread in threads:
            thread.join()
        line.send(Drain(held, len(wakes) - woken, time.process_time() - before))


def _pass(handle: Handle, held: list[Held]) -> None:
    got = handle.acquire()
    time.sleep(HOLD)
    held.append((got, handle.release()))


async def _serve_tasks(line: Connection, opener: Opener, homes: Sequence[Address], wakes: Wakes) -> None:
    async with AsyncExitStack() as stack:
        first, *others = [await stack.enter_async_context(opener(home, wakes)) for home in homes]
        line.send("ready")
        while True:
            await asyncio.to_thread(line.recv)
            before, woken = time.process_time(), len(wakes)
            got = await first.acquire()
            tasks = [asyncio.create_task(_pass_awaited(each)) for each in others]
            line.send("waiting")
            await asyncio.to_thread(line.recv)
            held = [(got, await first.release()), *await asyncio.gather(*tasks)]
            line.send(Drain(held, len(wakes) - woken, time.process_time() - before))


async def _pass_awaited(handle: AsyncHandle) -> Held:
    got = await handle.acquire()
    await asyncio.sleep(HOLD)
    return got, await handle.release()
