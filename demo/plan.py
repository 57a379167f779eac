"""The messages between the processes of the demo: the plan that each worker starts with, and the workers' events."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from demo.logs import Piece


class DemoError(Exception):
    """The demo itself failed."""


@dataclass(slots=True)
class Plan:
    """The plan of one round of the demo. Durations are in seconds."""

    log: str
    pieces: list[Piece]
    workers: int
    record: str = ""
    lock: str = ""
    """The name to lock, or "" for a round without a lock."""
    kill: int = -1
    """The worker to kill just before it writes its second update."""
    stop: int = -1
    """The worker to stop just before it writes its third update, until another worker has held the lock after it."""
    ttl: float = 1.0
    work: float = 0.02
    """The duration of a batch besides the counting. It represents a look-up or a remote call."""

    def save(self, path: Path) -> None:
        """Write the plan to a file for the workers."""
        path.write_text(json.dumps(asdict(self)))

    def share(self, worker: int) -> range:
        """Return the numbers of the batches that a worker counts first."""
        return range(worker, len(self.pieces), self.workers)

    def pause_at(self, worker: int) -> int:
        """Return the number of the update before whose write a worker pauses; 0 if it never pauses."""
        return {self.kill: 2, self.stop: 3}.get(worker, 0)


def load_plan(path: Path) -> Plan:
    """Read a plan that `Plan.save` wrote."""
    data = json.loads(path.read_text())
    data["pieces"] = [Piece(**piece) for piece in data["pieces"]]
    return Plan(**data)


class What(StrEnum):
    """The kinds of events of a worker."""

    READY = "ready"
    GRANTED = "granted"
    TOUCHED = "touched"
    """The worker raised the record's fence to its token, before it read the record."""
    PAUSED = "paused"
    """The worker pauses before its write, as planned."""
    WROTE = "wrote"
    REFUSED = "refused"
    """The record refused the worker's token."""
    LOST = "lost"
    """The worker found its lease lost, and wrote nothing."""
    RELEASED = "released"
    # The demo causes the last three:
    KILLED = "killed"
    STOPPED = "stopped"
    CONTINUED = "continued"


@dataclass(slots=True)
class DemoEvent:
    """One event of one worker. `at` is an instant of the clock that all processes share."""

    worker: int
    what: What
    at: float
    token: int = 0
    batch: int = -1

    def line(self) -> bytes:
        """Return the event as a line that fits into one atomic write to a pipe."""
        return json.dumps([self.worker, self.what, self.at, self.token, self.batch]).encode() + b"\n"


def load_event(line: bytes) -> DemoEvent:
    """Return the event of a line that `DemoEvent.line` made."""
    worker, what, at, token, batch = json.loads(line)
    return DemoEvent(worker, What(what), at, token, batch)
