"""The duration of a pair of acquire and release, in both forms of the API, and its report."""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.contenders import NAME, Plain
from bench.harness import Report, Row, duration, interleave, ratios, spread
from tenure import AsyncClient, AsyncLock, Lock

BATCH = 10
"""The number of pairs that are timed together, so that the cost of reading the clock is negligible."""

Measure = Callable[[int], float]
"""Takes a number of pairs, returns the seconds of one pair."""


@contextmanager
def placed(server: int, cores: int) -> Generator[None]:
    """Run this process on the first core, and the server of a process id on the last of so many cores.

    Left to the system, they are on one core in some rounds and on two in others, where a pair takes up to three times
    as long. A ratio of a round of the one kind to a round of the other says nothing.
    """
    there = sorted(os.sched_getaffinity(0))
    if len(there) < cores:
        yield
        return
    for thread in Path(f"/proc/{server}/task").iterdir():  # the processes that it starts for connections follow it
        os.sched_setaffinity(int(thread.name), there[cores - 1 : cores])
    os.sched_setaffinity(0, there[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, there)


def lease_pair(lock: Lock) -> Callable[[], object]:
    """Return a function that acquires and releases a lock of a Client. It runs once before, which opens the store."""
    lock.acquire().release()
    return lambda: lock.acquire().release()


def plain_pair(lock: Plain) -> Callable[[], object]:
    """Return a function that acquires and releases a lock that returns no lease."""

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


@contextmanager
def awaiting(url: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Generator[Measure]:
    """Measure the pair of an AsyncClient in a loop of its own."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        client = AsyncClient(url)
        pair = _async_pair(client.lock(NAME))
        try:
            yield lambda count: runner.run(time_awaited(pair, count))
        finally:
            runner.run(client.close())


def _async_pair(lock: AsyncLock) -> Callable[[], Awaitable[object]]:
    async def pair() -> None:
        await (await lock.acquire()).release()

    return pair


def blocking(pair: Callable[[], object]) -> Measure:
    """Measure a pair that blocks."""

    def measure(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            pair()
        return (time.perf_counter() - started) / count

    return measure


async def time_awaited(pair: Callable[[], Awaitable[object]], count: int) -> float:
    """Await `count` pairs; return the seconds of one pair."""
    started = time.perf_counter()
    for _ in range(count):
        await pair()
    return (time.perf_counter() - started) / count


def measure_pairs(measures: Mapping[str, Measure], pairs: int, rounds: int) -> dict[str, list[float]]:
    """Measure all contenders in turns; return the median of each round."""
    contenders = {label: _round(measure, pairs) for label, measure in measures.items()}
    interleave(contenders, 1)  # warm up
    return interleave(contenders, rounds)


def _round(measure: Measure, pairs: int) -> Callable[[], float]:
    return lambda: statistics.median(measure(BATCH) for _ in range(max(1, pairs // BATCH)))


def pair_report(
    name: str, medians: Mapping[str, list[float]], meanings: Mapping[str, str], floors: Mapping[str, str]
) -> Report:
    """Report on pairs. `floors` maps the head of a column to the contender that all are compared with in it."""
    report = Report(name, "an uncontended acquire + release", ["median", "min..max of rounds", *floors])
    for label, rounds in medians.items():
        found = spread(rounds)
        over = {head: ratios(rounds, medians[floor]) for head, floor in floors.items()}
        cells = [duration(found.median), f"{duration(found.low)}..{duration(found.high)}", *map(str, over.values())]
        figures = {"seconds": rounds, **{head.replace(" ", "_"): each.median for head, each in over.items()}}
        report.rows.append(Row(label, cells, meanings[label], figures))
    return report
