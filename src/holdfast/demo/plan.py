"""What the processes of the demo tell each other: the plan that each worker is started with, and events."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.demo.logs import Piece


class DemoError(Exception):
    """The demo itself could not be carried out."""


@dataclass(slots=True)
class Plan:
    """One round of the demo. Times in seconds."""

    log: str
    pieces: list[Piece]
    workers: int
    record: str = ""
    lock: str = ""
    """The name to lock, or "" to go without a lock."""
    kill: int = -1
    """Which worker to kill just before it writes its second update."""
    stop: int = -1
    """Which worker to stop just before it writes its third update, until others have held the lock after it."""
    ttl: float = 1.0
    work: float = 0.02
    """What a batch takes beside the counting: it stands for a look-up, or a call elsewhere."""

    def save(self, path: Path) -> None:
        """Write this for the workers."""
        path.write_text(json.dumps(asdict(self)))

    def share(self, worker: int) -> range:
        """Return the numbers of the batches that a worker does first."""
        return range(worker, len(self.pieces), self.workers)

    def pause_at(self, worker: int) -> int:
        """Return at which of its updates a worker pauses before it writes; 0 if at none."""
        return {self.kill: 2, self.stop: 3}.get(worker, 0)


def load_plan(path: Path) -> Plan:
    """Read what `Plan.save` wrote."""
    data = json.loads(path.read_text())
    data["pieces"] = [Piece(**piece) for piece in data["pieces"]]
    return Plan(**data)


class What(StrEnum):
    """What can happen to a worker."""

    READY = "ready"
    GRANTED = "granted"
    TOUCHED = "touched"
    """It raised the record's fence to its token, before it read."""
    PAUSED = "paused"
    """It stands before its write, as planned."""
    WROTE = "wrote"
    REFUSED = "refused"
    """The record refused its token."""
    LOST = "lost"
    """It found its lease lost, and wrote nothing."""
    RELEASED = "released"
    # These three are done to it:
    KILLED = "killed"
    STOPPED = "stopped"
    CONTINUED = "continued"


@dataclass(slots=True)
class DemoEvent:
    """One thing that happened to one worker. `at` is an instant of the clock that all processes share."""

    worker: int
    what: What
    at: float
    token: int = 0
    batch: int = -1

    def line(self) -> bytes:
        """Write this as a line that fits into one write of a pipe."""
        return json.dumps([self.worker, self.what, self.at, self.token, self.batch]).encode() + b"\n"


def load_event(line: bytes) -> DemoEvent:
    """Read what `Event.line` wrote."""
    worker, what, at, token, batch = json.loads(line)
    return DemoEvent(worker, What(what), at, token, batch)
