"""The messages between the processes of the demo: the plan of each worker, and the events of the workers."""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from demo.logs import Piece


class DemoError(Exception):
    """The demo itself failed."""


@dataclass(slots=True)
class Plan:
    """The plan of one round of the demo. Durations are in seconds."""

    story: str
    workers: int
    record: str
    """The path of the data that the workers share."""
    namespace: str = ""
    """The namespace of all names in the store, or "" for a round that uses no store."""
    ttl: float = 1.0
    work: float = 0.02
    """The duration of a unit of work. It represents a look-up or a remote call."""
    log: str = ""
    pieces: list[Piece] = field(default_factory=list[Piece])
    kill: int = -1
    """The worker that pauses before the write of its second update."""
    stop: int = -1
    """The worker to stop when it pauses, until another one has held the lock after it. Others that pause are killed."""

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
    """The worker holds the lock, or begins to push."""
    TOUCHED = "touched"
    """The worker raised the record's fence to its token, before it read the record."""
    PAUSED = "paused"
    """The worker pauses before its write, as planned."""
    WROTE = "wrote"
    SOLD = "sold"
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


class Worker:
    """The side of a worker: its plan, and its events to the demo on the standard output."""

    def __init__(self, plan: Plan, number: int) -> None:
        """Prepare worker `number`, counted from 0."""
        self.plan = plan
        self.number = number

    def begin(self) -> None:
        """Wait until all workers are ready."""
        self.say(What.READY)
        self._wait_for_line()

    def pause(self, token: int = 0, batch: int = -1) -> None:
        """Pause as planned, until the demo continues or kills this worker."""
        self.say(What.PAUSED, token, batch)
        self._wait_for_line()

    def say(self, what: What, token: int = 0, batch: int = -1) -> None:
        """Send an event of this instant."""
        os.write(sys.stdout.fileno(), DemoEvent(self.number, what, time.monotonic(), token, batch).line())

    def _wait_for_line(self) -> None:
        if not sys.stdin.readline():
            sys.exit("the demo ended")
