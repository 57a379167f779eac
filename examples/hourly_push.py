"""A push that goes out once an hour, started by the clock on every node, although nodes die in the middle.

Wrong: each node takes a lock that expires, and deletes it when it is done, without looking whose it is. A node that
comes late finds no lock, and pushes again. A node that was slow deletes the lock of another.

Right: a job that runs once in each window, with up to three attempts. In each hour the first node that pushes is killed
in the middle. An hour lasts 15 seconds here: python examples/hourly_push.py
"""

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from nodes import Node, Shelf, database, nodes_of, play, say

import tenure

HOUR, HOURS, NODES = 15.0, 2, 4
TTL = 3.0
LOCKED = 0.5


# -- the right version ---------------------------------------------------------------------------------------


def hourly(client: tenure.Client, data: sqlite3.Connection, *, dies: bool) -> tenure.OnceResult[None]:
    """Push, unless it is done in this hour. The next attempt after a dead node begins when its lease has ended."""
    job = client.once("push", window=HOUR, attempts=3, busy="wait", ttl=TTL, timeout=HOUR)
    return job.run(push, data, "once", dies=dies)


def push(data: sqlite3.Connection, version: str, *, dies: bool = False) -> None:
    """Push, and note that it was begun and done. A node may die between the two."""
    data.execute("INSERT INTO pushes VALUES (?, ?, 'begun')", (version, hour()))
    time.sleep(0.1)
    if dies:
        say("in the middle")
        time.sleep(60)
    data.execute("INSERT INTO pushes VALUES (?, ?, 'done')", (version, hour()))


def hour() -> int:
    """Return the number of the present hour."""
    return int(time.time() / HOUR)


# -- the wrong version ---------------------------------------------------------------------------------------


def hourly_wrong(shelf: Shelf, data: sqlite3.Connection) -> None:
    """Take the lock or leave it to another node; delete it at the end, whoever's it is."""
    if not shelf.setnx("push", str(os.getpid()), LOCKED):
        return
    push(data, "wrong")
    time.sleep(1.5 * LOCKED)  # it was slow: the lock has expired by now, and another node may have it
    shelf.delete("push")


# -- the scenario --------------------------------------------------------------------------------------------


def node(folder: str, url: str, space: str, version: str, *, number: int) -> None:
    """Be one node, in one hour."""
    with database(Path(folder)) as data:
        if version == "wrong":
            shelf = Shelf(Path(folder) / "shelf.db")
            hourly_wrong(shelf, data)
            shelf.close()
            return
        with tenure.Client(url, namespace=space, owner=f"n{number}") as client:
            hourly(client, data, dies=number == 0)


def begin(nodes: Sequence[Node], version: str) -> None:
    """Let the nodes begin one after another in a new hour, as clocks disagree; the first one dies in the middle."""
    time.sleep((hour() + 1) * HOUR - time.time())
    for each in nodes:
        each.begin()
        if version == "wrong":
            time.sleep(1.2 * LOCKED)
        elif each is nodes[0]:
            each.hears("in the middle")
    if version == "once":
        nodes[0].kill()


def scene(folder: Path, url: str, space: str) -> bool:
    """Run both versions for some hours; return whether the right one was done once in each."""
    with database(folder) as data:
        data.execute("PRAGMA journal_mode = WAL")
        data.execute("CREATE TABLE pushes (version TEXT, hour INTEGER, state TEXT)")
        for version in ("wrong", "once"):
            for _ in range(HOURS if version == "once" else 1):
                facts = {"folder": str(folder), "url": url, "space": space, "version": version}
                each_with = [{**facts, "number": number} for number in range(NODES)]
                with nodes_of(each_with, together=False) as nodes:
                    begin(nodes, version)
                    for each in nodes:
                        each.ends()
        wrong, _ = report(data, "wrong", "wrong (SET NX EX, and DEL without a look at the owner)")
        done, begun = report(data, "once", "right (a node was killed in each hour)")
    return max(wrong) > 1 and done == [1] * HOURS and max(begun) <= 3


def report(data: sqlite3.Connection, version: str, title: str) -> tuple[list[int], list[int]]:
    """Print and return how many pushes were done and begun in each hour."""
    counts = data.execute(
        "SELECT sum(state = 'done'), sum(state = 'begun') FROM pushes WHERE version = ? GROUP BY hour ORDER BY hour",
        (version,),
    ).fetchall()
    done, begun = [int(each[0]) for each in counts], [int(each[1]) for each in counts]
    print(f"{title}: pushes done in each hour: {done}, begun: {begun}")
    return done, begun


if __name__ == "__main__":
    play(node, scene)
