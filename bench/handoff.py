"""The time from a release in one process to the grant in another process that waits, near the servers and far away."""

import random
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import Opened, opened
from bench.floors import PING
from bench.harness import Case, Column, Report, Round, Size, interleave, waited
from bench.servers import distant
from bench.workers import CONTEXT, Worker
from bench.workload import Bench, Workload

HOLD = (0.02, 0.12)
"""The limits of the hold time: the 100 ms between the polls of redis-py and sherlock, after a slow request."""


def columns(over: str) -> tuple[Column, ...]:
    """Return the columns, with the ratio to a row."""
    p50, p95, p99 = (Column(f"p{share}", "waits", waited(share / 100)) for share in (50, 95, 99))
    return (p50, p95, p99, Column(f"p50 over {over}", "wait", str, over=over))


def run(workload: Workload, size: Size, folder: Path) -> Report:
    """Hand the lock of each contender off between two processes."""
    with ExitStack() as stack:
        bench = Bench(stack, workload, size, folder)
        delays = workload.options.get("delays", (None,))
        urls = {delay: stack.enter_context(distant(bench.places[""].url, delay or 0.0)) for delay in delays}
        prefixes = {delay: "" if delay is None else f"{delay * 1000:g} ms, " for delay in delays}
        cases = {Case(label, prefixes[delay]): url for delay, url in urls.items() for label in bench.labels}
        ours, theirs = CONTEXT.Pipe()
        opening = {str(case): (bench.store, case.label, url) for case, url in cases.items() if case.label != PING}
        hold = workload.options.get("hold", HOLD)
        players = [stack.enter_context(Worker(play, end, opening, hold, end is ours)) for end in (ours, theirs)]
        ours.close()
        theirs.close()
        measures = {
            case: partial(_pings, url) if case.label == PING else partial(_passes, players, str(case))
            for case, url in cases.items()
        }
        interleave({case: partial(measure, 2) for case, measure in measures.items()}, 1)  # warm up
        found = interleave({case: partial(measure, size.passes) for case, measure in measures.items()}, size.rounds)
    return workload.report(size, found, notes=bench.notes)


def _passes(players: list[Worker], case: str, passes: int) -> Round:
    for player in players:
        player.order((case, passes))
    waits = [wait for player in players for wait in player.answer()]
    return {"wait": statistics.median(waits), "waits": waits}


def _pings(url: str, passes: int) -> Round:
    with opened("redis", PING, url) as pings:
        pings.pair(1)
        waits = [pings.pair(1) for _ in range(passes)]
    return {"wait": statistics.median(waits), "waits": waits}


def play(
    line: Connection,
    peer: Connection,
    opening: Mapping[str, tuple[str, str, str]],
    hold: tuple[float, float],
    first: bool,  # noqa: FBT001 - the arguments of a process are positional
) -> None:
    """Run one of the two processes."""
    with ExitStack() as stack:
        locks = {case: stack.enter_context(opened(*each)) for case, each in opening.items()}
        while True:
            case, passes = line.recv()
            line.send(_volley(locks[case], peer, passes, hold, holding=first))


def _volley(lock: Opened, peer: Connection, passes: int, hold: tuple[float, float], *, holding: bool) -> list[float]:
    """Hand the lock off back and forth; return the duration of each wait of this process."""
    if holding:
        lock.acquire()
        peer.send("held")
    else:
        peer.recv()
    waits: list[float] = []
    for _ in range(passes):
        if holding:
            peer.recv()
            time.sleep(random.uniform(*hold))  # until then the other process waits
            peer.send(lock.release())
            peer.recv()  # wait for the grant: without a queue, this process could acquire the lock again first
        else:
            peer.send("asking")
            got = lock.acquire()
            waits.append(got - peer.recv())
            peer.send("got")
        holding = not holding
    if holding:
        lock.release()
    return waits
