"""The story of an hourly push, which every node has in its crontab. An hour lasts some seconds here.

Without Tenure, either every node pushes in an hour, or one node alone has the crontab, and nobody pushes when it dies.
With it, the push is a job that runs once in a window. In each hour the worker that begins first is killed.
"""

import sqlite3
import time
from contextlib import closing
from dataclasses import replace

from demo.account import Account, Chapter, Figure, figure, numbers
from demo.plan import DemoEvent, Plan, What, Worker
from demo.record import connect, create
from demo.rounds import RoundResult, Stage
from tenure import Client, LeaseLost, LockTimeout

HOURS = 2
HOUR = 5.0
"""The length of an hour in the round with Tenure, in seconds. The round without it takes a fifth: no lease runs out."""

LATE = 0.3
"""By how much of a second the clocks of the nodes disagree, and how long after the hour the first one begins."""

TABLES = (
    "CREATE TABLE pushes (hour INTEGER, done INTEGER)",
    "CREATE TABLE victims (number INTEGER PRIMARY KEY)",
    "CREATE TABLE first (hour INTEGER)",
)


# -- in a worker ---------------------------------------------------------------------------------------------


def without_job(worker: Worker) -> None:
    """Push: in the first hour on every node, in the second one on the last node alone, which dies."""
    hour = HOUR / 5
    with closing(connect(worker.plan.record)) as data:
        worker.begin()
        first = _first_hour(data, hour)
        for number in range(HOURS):
            _sleep_until(worker, (first + number) * hour)
            if number == 0 or worker.number == worker.plan.workers - 1:
                _push(worker, data, number, dies=number > 0)


def with_job(worker: Worker, client: Client) -> None:
    """Push once in each hour on one of the nodes, although the one that begins dies."""
    ttl = worker.plan.ttl
    job = client.once("push", window=HOUR, attempts=3, busy="wait", ttl=ttl, timeout=HOUR)
    client.inspect("job:push")  # connects
    with closing(connect(worker.plan.record)) as data:
        worker.begin()
        first = _first_hour(data, HOUR)
        for number in range(HOURS):
            _sleep_until(worker, (first + number) * HOUR)
            try:
                job.run(_push, worker, data, number, dies=True)
            except (LeaseLost, LockTimeout):  # this worker stood still, or waited in vain
                worker.say(What.LOST, batch=number)


def _push(worker: Worker, data: sqlite3.Connection, hour: int, *, dies: bool) -> None:
    """Push, and note that it was begun and done. The first worker of an hour may die between the two."""
    worker.say(What.GRANTED, batch=hour)
    data.execute("INSERT INTO pushes VALUES (?, 0)", (hour,))
    time.sleep(worker.plan.work)
    if dies and data.execute("INSERT OR IGNORE INTO victims VALUES (?)", (hour,)).rowcount:
        worker.pause(batch=hour)
    data.execute("INSERT INTO pushes VALUES (?, 1)", (hour,))
    worker.say(What.WROTE, batch=hour)
    worker.say(What.RELEASED, batch=hour)


def _first_hour(data: sqlite3.Connection, hour: float) -> int:
    """Return the number of the hour that all workers begin with: the next one, as the first of them sees it."""
    data.execute("INSERT INTO first SELECT ? WHERE NOT EXISTS (SELECT 1 FROM first)", (int(time.time() / hour) + 1,))
    return int(data.execute("SELECT hour FROM first").fetchone()[0])


def _sleep_until(worker: Worker, instant: float) -> None:
    """Sleep until an instant of the wall clock, and a little longer: the clocks of nodes disagree."""
    late = LATE * (1 + worker.number / worker.plan.workers)
    time.sleep(max(0.0, instant + late - time.time()))


# -- the rounds, and their account ---------------------------------------------------------------------------


def play(stage: Stage) -> Account:
    """Push without Tenure, and as a job."""
    workers = stage.half()
    stage.tell(
        f"{workers} nodes shall push once an hour, and any of them may die in the middle. An hour lasts "
        f"{HOUR:g} s here. Each node notes when it begins a push and when it has done it."
    )
    plan = Plan("push", workers, "", work=0.1)
    unlocked, plain = _hours(stage, plan, "by crontab")
    with Client(stage.url, namespace=stage.namespace) as client:
        locked, once = _hours(stage, replace(plan, namespace=stage.namespace), "as a job")
        client.job("push").forget()
    wrong = [f"pushes done in hour {hour}: {done} instead of 1" for hour, done in enumerate(once, 1) if done != 1]
    return Account(
        workers,
        [
            Chapter("1. By crontab", [_told(plain, workers)], unlocked, "pushes"),
            Chapter("2. As a job that runs once", [], locked, "pushes", _tale(locked, plan.ttl)),
        ],
        f"Exact as a job: one push was done in each of {HOURS} hours.",
        wrong,
        {
            "exact": not wrong,
            "wrong": wrong,
            "workers": workers,
            "ttl": plan.ttl,
            "done_by_crontab": plain,
            "done_as_a_job": once,
            "killed": numbers(locked, What.KILLED),
            "takeover_seconds": [
                round(after.at - killed.at, 3)
                for killed in locked.all_of(What.KILLED)
                for after in _next(locked, killed)
            ],
        },
        caption="How many pushes were done",
        headings=("hour", "right", "by crontab", "as a job"),
        rows=[
            [Figure(str(hour)), figure(1, 1), figure(many, 1), figure(one, 1)]
            for hour, (many, one) in enumerate(zip(plain, once, strict=True), 1)
        ],
    )


def _hours(stage: Stage, plan: Plan, title: str) -> tuple[RoundResult, list[int]]:
    """Run a round on data of its own; return how many pushes were done in each hour."""
    path = str(stage.folder / f"{title}.db")
    create(path, *TABLES)
    result = stage.play(replace(plan, record=path), title, HOURS)
    with closing(connect(path)) as data:
        done = dict(data.execute("SELECT hour, sum(done) FROM pushes GROUP BY hour").fetchall())
    return result, [int(done.get(hour, 0)) for hour in range(HOURS)]


def _told(done: list[int], workers: int) -> str:
    many, none = done
    return (
        f"In hour 1 all {workers} nodes have the crontab: the push was done {many} times. In hour 2 one node alone has "
        f"it, and is killed in the middle: the push was done {none} times."
    )


def _tale(result: RoundResult, ttl: float) -> list[tuple[float, str]]:
    tale: list[tuple[float, str]] = []
    for killed in result.all_of(What.KILLED):
        hour = killed.batch + 1
        tale.append((killed.at, f"Worker {killed.worker + 1} has begun the push of hour {hour}, and is killed."))
        for after in _next(result, killed):
            told = f"begins it again {after.at - killed.at:.1f} s later: the lease lasted {ttl:g} s at most."
            tale.append((after.at, f"Worker {after.worker + 1} {told}"))
    return sorted(tale)


def _next(result: RoundResult, killed: DemoEvent) -> list[DemoEvent]:
    """Return the next attempt of the same hour."""
    later = [each for each in result.all_of(What.GRANTED) if each.batch == killed.batch and each.at > killed.at]
    return later[:1]
