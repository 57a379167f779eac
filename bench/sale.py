"""How fast many processes sell out one stock in Redis, in turns with the same under one lock."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.contenders import clock, redis_client
from bench.harness import Case, Column, Report, Round, Size, interleave, limits, middle
from bench.servers import running
from bench.workers import Worker
from bench.workload import Workload
from tenure import Client

STOCK, LOCK = "client.stock", "under one client.lock"
MEANINGS = {
    STOCK: "stock.take() of 8 segments, until it returns 0",
    LOCK: "redis-py DECR in a `with client.lock(...)`",
}
COLUMNS = (
    Column("sold/s", "rate", middle(",.0f")),
    Column("min..max of rounds", "rate", limits(",.0f")),
    Column("over lock", "rate", str, over=LOCK),
    Column("sold", "sold", lambda values: ", ".join(map(str, sorted(set(values))))),
)
START_AFTER = 0.2


def run(workload: Workload, size: Size, folder: Path) -> Report:
    """Let many processes sell out one stock."""
    with ExitStack() as stack:
        url = stack.enter_context(running(workload.store, folder))[""].url
        workers = [stack.enter_context(Worker(serve, url)) for _ in range(size.buyers)]
        for worker in workers:
            worker.answer()
        client = stack.enter_context(Client(url))
        bare = stack.enter_context(closing(redis_client(url)))
        names = (f"sale{number}" for number in count())

        def sell(label: str) -> Round:
            name = next(names)
            if label == STOCK:
                client.stock(name).restock(size.units)
            else:
                bare.set(name, size.units)
            start = clock() + START_AFTER
            for worker in workers:
                worker.order((label, name, start))
            found: list[tuple[int, float]] = [worker.answer() for worker in workers]
            sold = sum(units for units, _ in found)
            return {"sold": sold, "wrong": abs(sold - size.units), "rate": sold / (max(at for _, at in found) - start)}

        rounds = interleave({Case(label): partial(sell, label) for label in (STOCK, LOCK)}, size.rounds)
    return workload.report(size, rounds, MEANINGS)


def serve(line: Connection, url: str) -> None:
    """Run one of the buyers: it tells how many units it has bought, and when it got the last."""
    with Client(url) as client, closing(redis_client(url)) as bare:
        client.counter("to open the store").get()
        bare.ping()
        line.send("ready")
        while True:
            label, name, start = line.recv()
            take = client.stock(name).take if label == STOCK else _under_lock(client, bare, name)
            time.sleep(max(0.0, start - clock()))
            bought, last = 0, start
            while take():
                bought, last = bought + 1, clock()
            line.send((bought, last))


def _under_lock(client: Client, bare: Any, name: str) -> Callable[[], int]:  # noqa: ANN401 - partly untyped
    lock = client.lock(f"lock of {name}", ttl=30)

    def take() -> int:
        with lock:
            left = bare.decr(name)
        return int(left >= 0)

    return take
