"""Stocks and counters in Redis: the cost of one take, and how fast many processes sell out one stock."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.contenders import clock
from bench.harness import Bound, Report, Row, Size, duration, interleave, ratios, spread
from bench.redis import contenders
from bench.redis.contenders import redis_server
from bench.timing import blocking, measure_pairs, placed
from bench.workers import Worker
from tenure import Client
from tests.servers import RedisServer

TAKE, ADD, HAND, PLAIN = "stock.take", "counter.add", "hand-written Lua", "redis-py DECR"
STOCK, LOCK = "client.stock", "under one client.lock"

DECREMENT = """
if redis.call('SET', KEYS[2], 1, 'NX', 'PX', 60000) then
    if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then return 0 end
    redis.call('DECRBY', KEYS[1], ARGV[1])
    return tonumber(ARGV[1])
end
return -1
"""
"""A decrement that is not repeated if its request is: it remembers the id of the request for a minute."""

MEANINGS = {
    TAKE: "tenure.Client, exact if a reply is lost",
    ADD: "tenure.Client, exact if a reply is lost",
    HAND: "redis-py, a script with a request id: exact for a minute, if the caller repeats it",
    PLAIN: "redis-py, counted twice if a reply is lost and the command repeated",
    STOCK: "stock.take() of 8 segments, until it returns 0",
    LOCK: "redis-py DECR in a `with client.lock(...)`",
}

OVER_HAND = 1.5
FASTER = 5.0
PLENTY = 10**12
START_AFTER = 0.2


def run_take(size: Size, folder: Path) -> Report:
    """Compare one uncontended take with a script written by hand."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        client = stack.enter_context(Client(server.url))
        bare = stack.enter_context(contenders.redis_py_client(server.url))
        stock, counter = client.stock("stock"), client.counter("counter")
        stock.restock(PLENTY)
        counter.add()
        bare.set("units", PLENTY)
        script = bare.register_script(DECREMENT)
        works: Mapping[str, Callable[[], object]] = {
            TAKE: stock.take,
            ADD: counter.add,
            HAND: lambda: script(keys=["units", f"request:{uuid.uuid4().hex}"], args=[1]),
            PLAIN: lambda: bare.decr("units"),
        }
        stack.enter_context(placed(server.pid, 2))
        medians = measure_pairs({label: blocking(work) for label, work in works.items()}, size.pairs, size.pair_rounds)
    report = Report("redis_take", "one uncontended take of a unit", ["median", "min..max of rounds", "over hand"])
    for label, rounds in medians.items():
        found, over = spread(rounds), ratios(rounds, medians[HAND])
        cells = [duration(found.median), f"{duration(found.low)}..{duration(found.high)}", str(over)]
        report.rows.append(Row(label, cells, MEANINGS[label], {"seconds": rounds, "over_hand": over.median}))
    report.bounds = [
        Bound(f"{label} / {HAND}", ratios(medians[label], medians[HAND]).median, OVER_HAND) for label in (TAKE, ADD)
    ]
    return report


def run_sale(size: Size, folder: Path) -> Report:
    """Let many processes sell out one stock, in turns with the same under one lock."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        workers = [stack.enter_context(Worker(serve, server.url)) for _ in range(size.buyers)]
        for worker in workers:
            worker.answer()
        client = stack.enter_context(Client(server.url))
        bare = stack.enter_context(contenders.redis_py_client(server.url))
        sales = _Sales(server, workers, client, bare, size.units)
        rounds = interleave({label: sales.of(label) for label in (STOCK, LOCK)}, size.rounds)
    title = f"{size.buyers} processes buy one unit at a time, until {size.units:,} are sold"
    report = Report("redis_sale", title, ["sold/s", "min..max of rounds", "over lock", "sold"])
    rates = {label: [rate for _, rate in found] for label, found in rounds.items()}
    for label, found in rounds.items():
        rate, over = spread(rates[label]), ratios(rates[label], rates[LOCK])
        sold = sorted({units for units, _ in found})
        cells = [f"{rate.median:,.0f}", f"{rate.low:,.0f}..{rate.high:,.0f}", str(over), ", ".join(map(str, sold))]
        report.rows.append(Row(label, cells, MEANINGS[label], {"rates": rates[label], "sold": sold}))
    wrong = max(abs(units - size.units) for units, _ in rounds[STOCK])
    report.bounds = [
        Bound(f"{STOCK}: units sold too many or too few", wrong, 0),
        Bound(f"{STOCK} / {LOCK}", ratios(rates[STOCK], rates[LOCK]).median, FASTER, at_least=True),
    ]
    return report


class _Sales:
    """The sales of all rounds."""

    def __init__(self, server: RedisServer, workers: list[Worker], client: Client, bare: Any, units: int) -> None:  # noqa: ANN401 - partly untyped
        self._server, self._workers, self._client, self._bare, self._units = server, workers, client, bare, units
        self._number = 0

    def of(self, label: str) -> Callable[[], tuple[int, float]]:
        """Return a function that holds a sale, and returns how many units were sold, and how many a second."""

        def sale() -> tuple[int, float]:
            self._number += 1
            name = f"sale{self._number}"
            if label == STOCK:
                self._client.stock(name).restock(self._units)
            else:
                self._bare.set(name, self._units)
            start = clock() + START_AFTER
            for worker in self._workers:
                worker.order((label, name, start))
            found: list[tuple[int, float]] = [worker.answer() for worker in self._workers]
            sold = sum(units for units, _ in found)
            return sold, sold / (max(last for _, last in found) - start)

        return sale


def serve(line: Connection, url: str) -> None:
    """Run one of the buyers: it tells how many units it has bought, and when it got the last."""
    with Client(url) as client, contenders.redis_py_client(url) as bare:
        client.counter("to open the store").get()
        bare.ping()
        line.send("ready")
        while True:
            label, name, start = line.recv()
            take = _taking(client, bare, label, name)
            time.sleep(max(0.0, start - clock()))
            bought, last = 0, start
            while take():
                bought, last = bought + 1, clock()
            line.send((bought, last))


def _taking(client: Client, bare: Any, label: str, name: str) -> Callable[[], int]:  # noqa: ANN401 - partly untyped
    if label == STOCK:
        return client.stock(name).take
    lock = client.lock(f"lock of {name}", ttl=30)

    def take() -> int:
        with lock:
            left = bare.decr(name)
        return int(left >= 0)

    return take
