"""A record of statistics that many nodes read, change and write back, and that is kept as a dated log at midnight.

Wrong: each node reads the record, adds one, and writes it. Two nodes read the same count, and one update is lost. At
midnight each of them finds the old day, and logs it.

Right: each node reads and writes the record under a lock, and the file's guard refuses a node that has lost its lock.
One node is killed in the middle, and one stands still for longer than its lease.

A day lasts as long as its events; the clock is given, so that it shows in seconds: python examples/daily_statistics.py
"""

import json
import time
from pathlib import Path
from typing import Any

from nodes import Node, nodes_of, play, say

import tenure
from tenure.fencing import FileGuard

DAYS, EVENTS, NODES = 3, 20, 4
TTL = 1.0
SLOW = {"": 0.0, "killed": 60.0, "stopped": 3 * TTL}
"""For how many seconds a node with a fault stands in the middle of an event."""


# -- the right version ---------------------------------------------------------------------------------------


def count(client: tenure.Client, folder: Path, day: int, node: str, slow: float = 0.0) -> None:
    """Count one event of a day. If this node has come too late, the file's guard refuses the write: count it again."""
    record = FileGuard(folder / "record.json")
    counted = False
    while not counted:
        try:
            with client.lock("statistics", ttl=TTL) as lease:
                content = record.read(lease)  # raises the fence: from here on no older holder can write
                if slow:
                    say("in the middle")
                    time.sleep(slow)
                record.write(lease, add(folder, content, day, node))
                counted = True
        except tenure.StaleTokenError:
            slow = 0.0  # another node had the lock meanwhile, and has read the record: begin again
        except tenure.LeaseLost:
            pass  # the lease is lost; whether the event counts, the guard has said


def add(folder: Path, content: bytes | None, day: int, node: str) -> bytes:
    """Return the record with one more event; at midnight, keep the old one as the log of its day."""
    record: dict[str, Any] = json.loads(content) if content else {"day": day, "counts": {}}
    if record["day"] < day:
        log = folder / f"day-{record['day']}.json"  # the same file if this is done twice: a node may die after it
        log.write_text(json.dumps(record["counts"]))
        record = {"day": day, "counts": {}}
    record["counts"][node] = record["counts"].get(node, 0) + 1
    return json.dumps(record).encode()


# -- the wrong version ---------------------------------------------------------------------------------------


def count_wrong(folder: Path, day: int, node: str) -> None:
    """Read, change, write."""
    path = folder / "record.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"day": day, "counts": {}}
    time.sleep(0.005)  # what a network takes
    if record["day"] < day:
        with (folder / "log.txt").open("a") as log:
            log.write(f"{record['day']}\n")
        ended = folder / f"ended.{node}"
        ended.write_text(json.dumps(record["counts"]))
        ended.replace(folder / f"day-{record['day']}.json")
        record = {"day": day, "counts": {}}
    record["counts"][node] = record["counts"].get(node, 0) + 1
    new = folder / f"record.{node}"
    new.write_text(json.dumps(record))
    new.replace(path)


# -- the scenario --------------------------------------------------------------------------------------------


def node(folder: str, url: str, space: str, name: str, fault: str) -> None:
    """Be one node: count the events of all days. A node with a fault is slow in the middle of its third event."""
    here = Path(folder)
    if fault == "wrong":
        for number in range(DAYS * EVENTS):
            count_wrong(here, number // EVENTS, name)
        return
    with tenure.Client(url, namespace=space, owner=name) as client:
        for number in range(DAYS * EVENTS):
            slow = SLOW[fault] if number == 2 else 0.0
            count(client, here, number // EVENTS, name, slow)


def total(folder: Path) -> dict[str, int]:
    """Return how many events of each node the logs and the record have."""
    found: dict[str, int] = {}
    records = [json.loads(each.read_text()) for each in folder.glob("day-*.json")]
    records.append(json.loads((folder / "record.json").read_text())["counts"])
    for counts in records:
        for name, number in counts.items():
            found[name] = found.get(name, 0) + number
    return found


def scene(folder: Path, url: str, space: str) -> bool:
    """Run both versions; return whether the right one has lost nothing."""
    wrong, right = folder / "wrong", folder / "right"
    for here in (wrong, right):
        here.mkdir()
    expected = DAYS * EVENTS
    facts = {"folder": str(wrong), "url": "", "space": "", "fault": "wrong"}
    with nodes_of([{**facts, "name": f"n{number}"} for number in range(NODES)]) as nodes:
        for each in nodes:
            each.ends()
    left = sum(total(wrong).values())
    logged = len((wrong / "log.txt").read_text().split())
    print(f"wrong: {left} of {NODES * expected} events are left; {logged} logs were written for {DAYS - 1} days")

    faults = ["killed", "stopped", *[""] * (NODES - 2)]
    facts = {"folder": str(right), "url": url, "space": space}
    them = [{**facts, "name": f"n{number}", "fault": fault} for number, fault in enumerate(faults)]
    with nodes_of(them) as nodes:
        disturb(nodes[0], nodes[1])
        for each in nodes:
            each.ends()
    counts = total(right)
    logs = sorted(each.name for each in right.glob("day-*.json"))
    kept = all(counts[f"n{number}"] == expected for number in range(1, NODES)) and counts["n0"] == 2
    print(f"right: {sum(counts.values())} of {(NODES - 1) * expected + 2} events are left; logs: {', '.join(logs)}")
    print("n0 was killed in its third event; n1 stood still in its third event until another had its lock")
    return kept and logs == [f"day-{day}.json" for day in range(DAYS - 1)]


def disturb(killed: Node, stopped: Node) -> None:
    """Kill one node while it holds the lock, and stop another until its lease has ended."""
    killed.hears("in the middle")
    killed.kill()
    stopped.hears("in the middle")
    stopped.stop()
    time.sleep(2 * TTL)
    stopped.go_on()


if __name__ == "__main__":
    play(node, scene)
