"""A holder is killed with SIGKILL while another process waits: the time until the waiter is granted.

The store ends the lease one ttl after its last renewal, so the waiter cannot be granted sooner, and should not be
granted much later. A lock of the kernel ends with the process. That is the earliest possible time on one machine.
The remaining time of the lease is asked for right after the kill, and counted from the start of this request. So a
wake-up looks later by the duration of the request.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import FILELOCK, NAME, Opened, Want, clock, opened
from bench.harness import Case, Column, Limit, Report, Round, Size, duration, interleave, middle
from bench.servers import Place
from bench.workers import Worker
from bench.workload import Bench, Workload
from tenure import Client


def _most(values: list[float]) -> str:
    return duration(max(values))


COLUMNS = (
    Column("after the kill", "since_kill", middle(duration)),
    Column("at most", "since_kill", _most),
    Column("after the lease's end", "since_end", middle(duration)),
    Column("at most", "since_end", _most),
)


def late(label: str, limit: float, pick: Callable[[Sequence[float]], float]) -> Limit:
    """Bound how late a waiter is granted after the end of the dead holder's lease, in milliseconds."""
    return Limit(label, limit, figure="since_end", pick=pick, unit=" ms", scale=1e3)


def run(workload: Workload, size: Size, folder: Path) -> Report:
    """Kill holders, and report how long their waiters wait."""
    with ExitStack() as stack:
        bench = Bench(stack, workload, size, folder)
        place = bench.places[""]
        watcher = stack.enter_context(Client(place.url))
        measures: dict[Case, Callable[[], Round]] = {}
        for label in bench.labels:
            waiter = stack.enter_context(opened(bench.store, label, place.url, Want(ttl=size.ttl)))
            holder = (bench.store, workload.options.get("holders", {}).get(label, label), place.url, Want(ttl=size.ttl))
            left = partial(_left, watcher, place, bench.contenders[label].key, label)
            measures[Case(label)] = partial(_kill_one, waiter, holder, left, size.ttl)
        found = interleave(measures, size.kills)
    return workload.report(size, found)


def _left(watcher: Client, place: Place, key: str, label: str) -> float:
    """Return how many seconds the lease of the name, or the key of a peer, still lasts, by the store's clock."""
    if key:
        milliseconds = place.servers[0].command("PTTL", key)
        return float(milliseconds) / 1000
    if label == FILELOCK:
        return 0.0
    return max((holder.expires_in for holder in watcher.inspect(NAME).holders), default=0.0)


def _kill_one(waiter: Opened, holder: tuple[object, ...], left: Callable[[], float], ttl: float) -> Round:
    at = ends_at = 0.0

    def kill() -> None:
        nonlocal at, ends_at
        time.sleep(ttl * random.uniform(0.5, 0.9))
        at = clock()
        process.kill()
        asked = clock()
        ends_at = asked + left()

    with Worker(hold, *holder) as process:
        process.answer()
        killing = threading.Thread(target=kill, daemon=True)
        killing.start()
        got = waiter.acquire()
        waiter.release()
        killing.join()
    return {"since_kill": got - at, "since_end": got - ends_at}


def hold(line: Connection, store: str, label: str, url: str, want: Want) -> None:
    """Hold the lock until the process is killed; a lock with renewal is renewed meanwhile."""
    with opened(store, label, url, want) as contender:
        contender.acquire()
        line.send("held")
        line.recv()
