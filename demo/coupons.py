"""The story of few coupons and many customers, each of whom clicks on two workers and shall get one coupon.

Without Tenure a worker reads how many coupons are left, checks, and decrements. With it, a stock gives each coupon to
one customer, and a job with the customer as its key runs once. The first worker that has reserved a coupon is killed.
"""

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

from demo.account import Account, Chapter, Figure, figure, numbers
from demo.plan import Plan, What, Worker
from demo.record import connect, create
from demo.rounds import RoundResult, Stage
from tenure import Client, LeaseLost

COUPONS = 20
RESERVED = 2.0
"""For how long a coupon is reserved for a customer who pays, in seconds."""

KEPT = 600.0
"""For how long the store remembers a customer, in seconds."""

TABLES = (
    "CREATE TABLE sales (customer INTEGER)",
    f"CREATE TABLE coupons AS SELECT {COUPONS} AS left",
    "CREATE TABLE victims (number INTEGER PRIMARY KEY)",
)


# -- in a worker ---------------------------------------------------------------------------------------------


def without_stock(worker: Worker) -> None:
    """Serve each customer: read, check, decrement."""
    with closing(connect(worker.plan.record)) as data:
        worker.begin()
        for customer in _customers(worker):
            (left,) = data.execute("SELECT left FROM coupons").fetchone()
            if left > 0 and not _has_one(data, customer):
                time.sleep(worker.plan.work)
                data.execute("UPDATE coupons SET left = ?", (left - 1,))
                _sell(worker, data, customer)


def with_stock(worker: Worker, client: Client) -> None:
    """Serve each customer once, and then late ones: a coupon that a dead worker has reserved comes back."""
    stock = client.stock("coupons")
    stock.total()  # connects
    with closing(connect(worker.plan.record)) as data:
        worker.begin()
        for customer in _customers(worker):
            _serve(worker, client, data, customer)
        late = itertools.count(worker.plan.workers + 3 * COUPONS + worker.number, worker.plan.workers)
        while _sales(data)[0] < COUPONS:
            if stock.total():
                _serve(worker, client, data, next(late))
            time.sleep(worker.plan.work)


def _serve(worker: Worker, client: Client, data: sqlite3.Connection, customer: int) -> None:
    job = client.once("coupon", key=f"customer {customer}", attempts=5, ttl=worker.plan.ttl, keep=KEPT)
    with suppress(LeaseLost):  # this worker stood still, and another one serves the customer
        job.run(_buy, worker, client, data, customer)


def _buy(worker: Worker, client: Client, data: sqlite3.Connection, customer: int) -> bool:
    """Sell a coupon; return whether one was left. If this worker dies on the way, the coupon comes back."""
    if _has_one(data, customer):
        return True
    coupon = client.stock("coupons").reserve(1, ttl=RESERVED)
    if coupon is None:
        return False
    time.sleep(worker.plan.work)
    if data.execute("INSERT OR IGNORE INTO victims VALUES (0)").rowcount:
        worker.pause(batch=customer)
    if not coupon.confirm():  # this worker stood still for too long: the coupon is another's
        return False
    _sell(worker, data, customer)
    return True


def _sell(worker: Worker, data: sqlite3.Connection, customer: int) -> None:
    data.execute("INSERT INTO sales VALUES (?)", (customer,))
    worker.say(What.SOLD, batch=customer)


def _has_one(data: sqlite3.Connection, customer: int) -> bool:
    return data.execute("SELECT 1 FROM sales WHERE customer = ?", (customer,)).fetchone() is not None


def _customers(worker: Worker) -> Iterator[int]:
    """Return the customers who click on this worker: each clicks on two."""
    workers = worker.plan.workers
    for customer in range(workers + 3 * COUPONS):
        if customer % workers in {worker.number, (worker.number + 1) % workers}:
            yield customer


# -- the rounds, and their account ---------------------------------------------------------------------------


def play(stage: Stage) -> Account:
    """Sell the coupons without Tenure, and from a stock."""
    workers = stage.half()
    stage.tell(
        f"{workers} processes sell {COUPONS} coupons, one a customer. Each customer clicks on two of the "
        "processes. A process looks whether a coupon is left and whether the customer has one, lets the customer pay, "
        "and notes the sale."
    )
    plan = Plan("coupons", workers, "")
    unlocked, too_many = _sale(stage, plan, "free for all")
    with Client(stage.url, namespace=stage.namespace) as client:
        stock = client.stock("coupons")
        stock.restock(COUPONS)
        locked, sold = _sale(stage, replace(plan, namespace=stage.namespace), "from a stock")
        left = stock.total()
        client.job("coupon").forget()
    wrong = [
        f"{what}: {count} instead of {right}"
        for what, count, right in (
            ("coupons sold", sold[0], COUPONS),
            ("customers who got one", sold[1], COUPONS),
            ("coupons left in the stock", left, 0),
        )
        if count != right
    ]
    return Account(
        workers,
        [_tell_unlocked(unlocked, too_many), Chapter("2. From a stock", [], locked, tale=_tale(locked))],
        f"Exact from the stock: {COUPONS} coupons were sold to {COUPONS} customers, and none is left.",
        wrong,
        {
            "exact": not wrong,
            "wrong": wrong,
            "coupons": COUPONS,
            "workers": workers,
            "without_stock": {"sold": too_many[0], "customers": too_many[1]},
            "with_stock": {"sold": sold[0], "customers": sold[1], "left": left},
            "killed": numbers(locked, What.KILLED),
        },
        caption="What each round sold",
        headings=("", "right", "free for all", "from a stock"),
        rows=[
            [Figure(what), figure(COUPONS, COUPONS), *(figure(count, COUPONS) for count in counts)]
            for what, *counts in (
                ("coupons sold", too_many[0], sold[0]),
                ("customers who got one", too_many[1], sold[1]),
            )
        ],
    )


def _sale(stage: Stage, plan: Plan, title: str) -> tuple[RoundResult, tuple[int, int]]:
    """Run a round on data of its own; return how many coupons it sold, and to how many customers."""
    path = str(stage.folder / f"{title}.db")
    create(path, *TABLES)
    result = stage.play(replace(plan, record=path), title, COUPONS)
    with closing(connect(path)) as data:
        return result, _sales(data)


def _sales(data: sqlite3.Connection) -> tuple[int, int]:
    sold, customers = data.execute("SELECT count(*), count(DISTINCT customer) FROM sales").fetchone()
    return int(sold), int(customers)


def _tell_unlocked(result: RoundResult, sold: tuple[int, int]) -> Chapter:
    coupons, customers = sold
    said = (
        f"{coupons} coupons were sold, though there are {COUPONS}, and {coupons - customers} of them to a customer who "
        "had one: several processes saw the same last coupon, and each sold it."
        if coupons > COUPONS
        else f"By luck, only {coupons} coupons were sold this time. Try more workers."
    )
    return Chapter("1. Free for all", [said], result)


def _tale(result: RoundResult) -> list[tuple[float, str]]:
    tale: list[tuple[float, str]] = []
    for killed in result.all_of(What.KILLED):
        told = "is killed after it has reserved a coupon, before it sells it."
        tale.append((killed.at, f"Worker {killed.worker + 1} {told}"))
        last = result.all_of(What.SOLD)[-1:]
        told = f"sells the last one: the reservation of the dead worker has ended after {RESERVED:g} s."
        tale += [(sale.at, f"Worker {sale.worker + 1} {told}") for sale in last if sale.at > killed.at]
    return sorted(tale)
