"""The story of statistics that many processes write: an access log is counted into one shared record.

Each worker reads the record, adds a batch of lines, and writes the record back, without a lock or under it. The record
lists its batches, so under the lock no batch is lost or counted twice, even if a worker dies. Under the lock one worker
is killed, and another one is stopped until its lease has expired.
"""

import itertools
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demo.account import Account, Chapter, Figure, figure, numbers
from demo.logs import cut, lines
from demo.plan import DemoEvent, Plan, What, Worker
from demo.record import SharedRecord
from demo.rounds import RoundResult, Stage
from demo.tally import Day, Tally, wrong_counts
from tenure import Client, Lease, LeaseLost, Lock, StaleTokenError

BATCHES = 5
"""The number of batches for each worker."""

WAIT = 120.0
"""For how long a worker waits for the lock at most, in seconds."""


# -- in a worker ---------------------------------------------------------------------------------------------


def without_lock(worker: Worker) -> None:
    """Update the record for each batch of the worker's share, without regard to other workers."""
    with SharedRecord(Path(worker.plan.record)) as record:
        worker.begin()
        for batch in worker.plan.share(worker.number):
            tally = record.read()
            _add(worker.plan, tally, batch)
            record.write(tally, None)
            worker.say(What.WROTE, batch=batch)


def under_lock(worker: Worker, client: Client) -> None:
    """Update the record under the lock until no batch is missing."""
    lock = client.lock("statistics", ttl=worker.plan.ttl, timeout=WAIT)
    client.inspect("statistics")  # connects
    with SharedRecord(Path(worker.plan.record)) as record:
        counting = _Counting(worker, record)
        worker.begin()
        while counting.hold(lock):
            pass


class _Counting:
    """The updates of one worker under the lock."""

    def __init__(self, worker: Worker, record: SharedRecord) -> None:
        self._worker = worker
        self._plan = worker.plan
        self._record = record
        self._updates = 0

    def hold(self, lock: Lock) -> bool:
        """Hold the lock for one update; return whether batches may still be missing."""
        lease = lock.acquire()
        self._worker.say(What.GRANTED, lease.token)
        try:
            return self._update(lease)
        except StaleTokenError:
            self._worker.say(What.REFUSED, lease.token)
        except LeaseLost:
            self._worker.say(What.LOST, lease.token)
        finally:
            lease.release()
            self._worker.say(What.RELEASED, lease.token)
        return True

    def _update(self, lease: Lease) -> bool:
        self._record.touch(lease.token)
        self._worker.say(What.TOUCHED, lease.token)
        tally = self._record.read()
        batch = self._next(tally)
        if batch is None:
            return False
        _add(self._plan, tally, batch)
        lease.check()
        self._updates += 1
        if self._updates == self._plan.pause_at(self._worker.number):
            self._worker.pause(lease.token, batch)  # after the last check only the fence protects the record
        self._record.write(tally, lease.token)
        self._worker.say(What.WROTE, lease.token, batch)
        return True

    def _next(self, tally: Tally) -> int | None:
        """Return a batch that is missing in the record: one of this worker's share, else one of another's."""
        for batch in itertools.chain(self._plan.share(self._worker.number), range(len(self._plan.pieces))):
            if batch not in tally.batches:
                return batch
        return None


def _add(plan: Plan, tally: Tally, batch: int) -> None:
    tally.add(lines(Path(plan.log), plan.pieces[batch]))
    tally.batches.add(batch)
    time.sleep(plan.work)


# -- the rounds ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Findings:
    """The findings of both rounds."""

    log: str
    workers: int
    batches: int
    truth: Tally
    unlocked: RoundResult
    unlocked_tally: Tally
    locked: RoundResult
    locked_tally: Tally

    def lost_updates(self) -> int:
        """Return how many updates of the round without the lock are missing in the record."""
        return self.batches - len(self.unlocked_tally.batches)

    def refused(self) -> bool:
        """Tell whether a stopped worker's late write was refused."""
        stopped = {event.token for event in self.locked.all_of(What.STOPPED)}
        return any(event.token in stopped for event in self.locked.all_of(What.REFUSED))


def play(stage: Stage) -> Account:
    """Count by one process, without the lock, and under it."""
    workers = stage.workers
    plan = Plan("statistics", workers, "", log=str(stage.log), pieces=cut(stage.log, BATCHES * workers))
    truth = Tally()
    for piece in plan.pieces:
        truth.add(lines(stage.log, piece))
    _introduce(stage, truth, len(plan.pieces))
    if not plan.pieces:
        said = "The log is empty: there is nothing to count."
        return Account(workers, [Chapter("", [])], said, [], {"exact": True, "wrong": [], "lines": 0})
    unlocked = _count(stage, plan, "unlocked")
    faulty = replace(plan, namespace=stage.namespace, kill=workers // 3, stop=2 * workers // 3)
    return _account(
        Findings(stage.log_name, workers, len(plan.pieces), truth, *unlocked, *_count(stage, faulty, "locked"))
    )


def _count(stage: Stage, plan: Plan, name: str) -> tuple[RoundResult, Tally]:
    """Run a round on a record of its own."""
    path = stage.folder / f"{name}.db"
    with SharedRecord.create(path) as record:
        title = "under the lock" if plan.namespace else "without a lock"
        return stage.play(replace(plan, record=str(path)), title, len(plan.pieces)), record.read()


# -- the account ---------------------------------------------------------------------------------------------


def _introduce(stage: Stage, truth: Tally, batches: int) -> None:
    hits, bad = truth.hits(), truth.malformed
    stage.tell(
        f"{stage.workers} processes count {stage.log_name} into one shared record: {hits + bad:,} lines, "
        f"{len(truth.days)} days, {batches} batches. For each batch, a process reads the record, adds the batch, and "
        "writes it back."
    )
    if bad:
        stage.tell(f"{bad:,} malformed line{'s are' if bad > 1 else ' is'} counted as such, and otherwise ignored.")


def _account(findings: Findings) -> Account:
    wrong = wrong_counts(findings.truth, findings.locked_tally)
    of = ("in truth", "no lock", "with lock")
    return Account(
        findings.workers,
        [_tell_unlocked(findings), Chapter("2. Under the lock", [], findings.locked, tale=_tale(findings.locked))],
        "Exact under the lock: hits, bytes, status classes and distinct visitors of every day, and malformed lines.",
        wrong,
        _facts(findings, wrong),
        caption="What each round counted",
        headings=("day", *(f"hits\n{each}" for each in of), *(f"visitors\n{each}" for each in of)),
        rows=_rows(findings),
        sums=_sums(findings),
        files={} if wrong else _files(findings.locked_tally),
    )


def _tell_unlocked(findings: Findings) -> Chapter:
    lost = findings.lost_updates()
    said = (
        f"{findings.batches} updates were written, and {lost} of them are lost: several processes read the same "
        "record, and the last one to write overwrote the updates of the others."
        if lost
        else "By luck, no update was lost this time. Try more workers or a longer log."
    )
    return Chapter("1. Without a lock", [said], findings.unlocked)


def _tale(result: RoundResult) -> list[tuple[float, str]]:
    tale: list[tuple[float, str]] = []
    for event in result.all_of(What.KILLED):
        tale.append((event.at, f"Worker {event.worker + 1} is killed in the middle of its update."))
        tale += _successor(result, event.token, "It never releases the lock, but its lease expires after a second")
        tale += _batch_done(result, event)
    for event in result.all_of(What.STOPPED):
        tale.append((event.at, f"Worker {event.worker + 1} is stopped (SIGSTOP) just before it writes its update."))
        tale += _successor(result, event.token, "Its lease expires as well")
    for event in result.all_of(What.REFUSED):
        told = f"Worker {event.worker + 1} continues, still believes that it holds the lock, and writes. The record"
        tale.append(
            (event.at, f"{told} refuses its token {event.token}, for it has seen a larger one. The worker starts over.")
        )
    return sorted(tale)


def _successor(result: RoundResult, token: int, why: str) -> list[tuple[float, str]]:
    """Return the next grant of the lock after `token`, with the reason `why` it was possible."""
    later = [event for event in result.all_of(What.GRANTED) if event.token > token]
    if not later:
        return []
    first = min(later, key=lambda event: event.token)
    return [(first.at, f"{why}: worker {first.worker + 1} is granted the lock, with token {first.token}.")]


def _batch_done(result: RoundResult, killed: DemoEvent) -> list[tuple[float, str]]:
    """Return when another worker counted the batch of the killed worker."""
    done = [event for event in result.all_of(What.WROTE) if event.batch == killed.batch]
    told = "counts the batch of worker {}, which is missing in the record."
    return [(event.at, f"Worker {event.worker + 1} {told.format(killed.worker + 1)}") for event in done]


def _rows(findings: Findings) -> list[list[Figure]]:
    """Return a row for each day."""
    tallies = (findings.truth, findings.unlocked_tally, findings.locked_tally)
    rows: list[list[Figure]] = []
    for name in sorted({name for tally in tallies for name in tally.days}):
        days = [tally.days.get(name, Day()) for tally in tallies]
        hits = [figure(day.hits, days[0].hits) for day in days]
        rows.append([Figure(name), *hits, *(figure(len(day.visitors), len(days[0].visitors)) for day in days)])
    return rows


def _sums(findings: Findings) -> list[Figure]:
    hits = [tally.hits() for tally in (findings.truth, findings.unlocked_tally, findings.locked_tally)]
    return [Figure("all"), *(figure(each, hits[0]) for each in hits), *[Figure("")] * 3]


def _facts(findings: Findings, wrong: list[str]) -> dict[str, Any]:
    truth, unlocked, locked = findings.truth, findings.unlocked, findings.locked
    return {
        "exact": not wrong,
        "wrong": wrong,
        "log": findings.log,
        "lines": truth.hits() + truth.malformed,
        "malformed": truth.malformed,
        "batches": findings.batches,
        "workers": findings.workers,
        "lost_updates_without_lock": findings.lost_updates(),
        "lost_hits_without_lock": truth.hits() - findings.unlocked_tally.hits(),
        "killed": numbers(locked, What.KILLED),
        "stopped": numbers(locked, What.STOPPED),
        "late_write_refused": findings.refused(),
        "seconds_without_lock": round(unlocked.ended - unlocked.began, 3),
        "seconds_with_lock": round(locked.ended - locked.began, 3),
        "days": {
            name: {
                "truth": day.summary(),
                "without_lock": findings.unlocked_tally.days.get(name, Day()).summary(),
                "with_lock": findings.locked_tally.days.get(name, Day()).summary(),
            }
            for name, day in sorted(truth.days.items())
        },
    }


def _files(tally: Tally) -> dict[str, str]:
    """Return a file a day."""
    return {
        f"access-{name}.json": json.dumps({"day": name, **day.summary()}, indent=2) + "\n"
        for name, day in sorted(tally.days.items())
    }
