"""A sale of few coupons to many customers, one coupon each.

Wrong: read how many are left, check, decrement. Two nodes see the last coupon, and both sell it; a customer who clicks
twice gets two. Also wrong: a lock by SETNX and then EXPIRE. The node that dies between the two leaves a lock that never
ends, and nobody buys any more.

Right: a stock never sells a unit twice, and a job with the customer as its key runs once. One node is killed in the
middle of a sale: python examples/coupon_sale.py
"""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from nodes import Shelf, database, nodes_of, play, say

import tenure

COUPONS, CUSTOMERS, NODES = 20, 60, 4
TTL = 2.0


# -- the right version ---------------------------------------------------------------------------------------


def buy(client: tenure.Client, data: sqlite3.Connection, customer: int, *, slow: bool = False) -> None:
    """Sell a customer a coupon, unless he has one or none is left."""
    job = client.once("coupon", key=f"customer {customer}", attempts=5, ttl=TTL)
    with suppress(tenure.LeaseLost):  # this node stood still, and another one serves the customer
        job.run(sell, client, data, customer, slow=slow)


def sell(client: tenure.Client, data: sqlite3.Connection, customer: int, *, slow: bool = False) -> bool:
    """Sell a coupon; return whether one was left. If this node dies on the way, the coupon comes back."""
    coupon = client.stock("coupons").reserve(1, ttl=2 * TTL)
    if coupon is None:
        return False
    if slow:
        say("in the middle")
        time.sleep(10)
    if not coupon.confirm():  # this node stood still for too long: the coupon is another's
        return False
    data.execute("INSERT OR IGNORE INTO sales VALUES (?)", (customer,))  # the same row if this is done twice
    return True


# -- the wrong versions --------------------------------------------------------------------------------------


def buy_wrong(data: sqlite3.Connection, customer: int) -> None:
    """Read, check, decrement."""
    (left,) = data.execute("SELECT left FROM coupons").fetchone()
    has_one = data.execute("SELECT 1 FROM sales WHERE customer = ?", (customer,)).fetchone()
    if left > 0 and not has_one:
        time.sleep(0.005)  # what a network takes
        data.execute("UPDATE coupons SET left = ?", (left - 1,))
        data.execute("INSERT INTO sales VALUES (?)", (customer,))


def buy_locked_wrong(shelf: Shelf, data: sqlite3.Connection, customer: int, *, dies: bool = False) -> None:
    """Do the same under a lock, as it is often written: SETNX, and then EXPIRE."""
    give_up_at = time.monotonic() + (30.0 if dies else 0.2)  # a customer does not wait for ever
    while not shelf.setnx("lock", "mine"):
        if time.monotonic() > give_up_at:
            return
        time.sleep(0.001)
    if dies:
        say("in the middle")
        time.sleep(10)
    shelf.expire("lock", TTL)
    buy_wrong(data, customer)
    shelf.delete("lock")


# -- the scenario --------------------------------------------------------------------------------------------


def node(folder: str, url: str, space: str, version: str, first: int) -> None:
    """Be one node: each customer buys on two of them. The first node stands in the middle of its third sale."""
    here = Path(folder)
    customers = [customer for customer in range(CUSTOMERS) if customer % NODES in {first, (first + 1) % NODES}]
    with database(here) as data:
        if version == "right":
            with tenure.Client(url, namespace=space, owner=f"n{first}") as client:
                for number, customer in enumerate(customers):
                    buy(client, data, customer, slow=first == 0 and number == 2)
            return
        shelf = Shelf(here / "shelf.db")
        for number, customer in enumerate(customers):
            if version == "check":
                buy_wrong(data, customer)
            else:
                buy_locked_wrong(shelf, data, customer, dies=first == 0 and number == 2)
        shelf.close()


def prepare(folder: Path, version: str) -> Path:
    """Make the data of one version."""
    here = folder / version
    here.mkdir()
    with database(here) as data:
        unique = " PRIMARY KEY" if version == "right" else ""
        data.execute("PRAGMA journal_mode = WAL")
        data.execute(f"CREATE TABLE sales (customer INTEGER{unique})")
        data.execute("CREATE TABLE coupons (left INTEGER)")
        data.execute("INSERT INTO coupons VALUES (?)", (COUPONS,))
    return here


def sales(folder: Path) -> tuple[int, int]:
    """Return how many coupons were sold, and to how many customers."""
    with database(folder) as data:
        ((sold, customers),) = data.execute("SELECT count(*), count(DISTINCT customer) FROM sales").fetchall()
    return int(sold), int(customers)


def sell_the_rest(folder: Path, url: str, space: str) -> None:
    """Sell the coupon that the killed node had reserved to a late customer, once the stock has it back."""
    with tenure.Client(url, namespace=space) as client, database(folder) as data:
        give_up_at = time.monotonic() + 20 * TTL
        customer = CUSTOMERS
        while sales(folder)[0] < COUPONS and time.monotonic() < give_up_at:
            if client.stock("coupons").total():
                buy(client, data, customer)
                customer += 1
            time.sleep(0.05)


def scene(folder: Path, url: str, space: str) -> bool:
    """Run all versions; return whether the right one sold each coupon once, to as many customers."""
    for version in ("check", "setnx", "right"):
        here = prepare(folder, version)
        if version == "right":
            with tenure.Client(url, namespace=space) as client:
                client.stock("coupons").restock(COUPONS)
        facts = {"folder": str(here), "url": url, "space": space, "version": version}
        with nodes_of([{**facts, "first": number} for number in range(NODES)], together=version == "check") as nodes:
            if version != "check":
                nodes[0].begin()
                nodes[0].hears("in the middle")
                for each in nodes[1:]:
                    each.begin()
                nodes[0].kill()
            for each in nodes:
                each.ends()
        if version == "right":
            sell_the_rest(here, url, space)
        sold, customers = sales(here)
        print(f"{NAMES[version]}: {sold} of {COUPONS} coupons were sold, to {customers} customers")
    with tenure.Client(url, namespace=space) as client:
        left = client.stock("coupons").total()
    print(f"one node was killed in the middle of a sale; {left} coupons are left in the stock")
    return sold == customers == COUPONS and left == 0


NAMES = {
    "check": "wrong (read, check, decrement)",
    "setnx": "wrong (SETNX, then EXPIRE)",
    "right": "right",
}


if __name__ == "__main__":
    play(node, scene)
