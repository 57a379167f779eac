"""What the metrics are, and which event changes which of them: the same for Prometheus and OpenTelemetry."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tenure.core.events import EventKind, LockEvent

if TYPE_CHECKING:
    from collections.abc import Callable

OF_NAME = ("template", "kind")


@dataclass(slots=True, frozen=True)
class Instrument:
    """One metric. Its name has no prefix and no unit."""

    name: str
    text: str
    labels: tuple[str, ...] = OF_NAME


WAITING = Instrument("waiting", "Acquisitions of this process that wait now.")
HELD = Instrument("held", "Leases that this process holds now.")
RUNNING = Instrument("runs_running", "Runs of jobs under way in this process.", ("template",))
UNREACHABLE = Instrument("store_unreachable", "Clients whose store does not answer.", ("store",))
QUARANTINED = Instrument("store_quarantined", "Clients whose store is in quarantine.", ("store",))
LEVELS = (WAITING, HELD, RUNNING, UNREACHABLE, QUARANTINED)
"""What goes up and down."""

WAIT = Instrument("wait", "How long acquisitions went on.", (*OF_NAME, "result"))
HOLD = Instrument("hold", "How long leases were held.")
RUN = Instrument("run", "How long runs of jobs went on.", ("template", "result"))
DURATIONS = (WAIT, HOLD, RUN)
"""Histograms of seconds."""

ENDED = Instrument("leases_ended", "Leases that have ended.", (*OF_NAME, "cause"))
LOSSES = Instrument("leases_lost", "Leases that were lost.", (*OF_NAME, "cause"))
AT_RISK = Instrument("leases_at_risk", "Leases of which a renewal failed.")
LATE = Instrument("renewals_late", "Renewals that were sent late.")
REFUSED = Instrument("runs_refused", "Calls of jobs that ran nothing.", ("template", "cause"))
UNITS = Instrument("units", "Units of limits and stocks.", (*OF_NAME, "result"))
ERRORS = Instrument("store_errors", "Requests to the store that failed.", ("store",))
QUARANTINES = Instrument("quarantines", "Quarantines of the store that clients have met.", ("store",))
COUNTS = (ENDED, LOSSES, AT_RISK, LATE, REFUSED, UNITS, ERRORS, QUARANTINES)
"""What only grows."""


class Sink(Protocol):
    """Where metrics are kept. Any thread may call it. `labels` are the values of the instrument's labels."""

    def add(self, instrument: Instrument, labels: tuple[str, ...], by: int) -> None:
        """Add to one of LEVELS or COUNTS."""
        ...

    def observe(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
        """Add a duration to one of DURATIONS."""
        ...


class MetricsRecorder:
    """Keeps the metrics of one client in a sink."""

    def __init__(self, sink: Sink) -> None:
        """Begin with nothing held and nobody waiting."""
        self._sink = sink
        self._open: dict[tuple[Instrument, int | str], tuple[str, ...]] = {}
        """What has raised a level and has not lowered it yet, with its labels."""
        self._handlers: dict[EventKind, Callable[[LockEvent], None]] = {
            EventKind.CONTENDED: self._contended,
            EventKind.ACQUIRED: self._acquired,
            EventKind.GAVE_UP: self._gave_up,
            EventKind.UNITS_TAKEN: self._units,
            EventKind.UNITS_REFUSED: self._units,
            EventKind.UNITS_RESERVED: self._units,
            EventKind.UNITS_RETURNED: self._units,
            EventKind.RELEASED: self._ended,
            EventKind.HANDED_ON: self._ended,
            EventKind.DROPPED: self._ended,
            EventKind.LOST: self._lost,
            EventKind.AT_RISK: lambda event: sink.add(AT_RISK, _of_name(event), 1),
            EventKind.RENEWAL_LATE: lambda event: sink.add(LATE, _of_name(event), 1),
            EventKind.RUN_BEGUN: lambda event: self._raise(RUNNING, event.id, (event.template,)),
            EventKind.RUN_ENDED: self._run_ended,
            EventKind.RUN_REFUSED: lambda event: sink.add(REFUSED, (event.template, event.cause), 1),
            EventKind.STORE_ERROR: lambda event: sink.add(ERRORS, (event.store,), 1),
            EventKind.STORE_UNREACHABLE: lambda event: self._raise(UNREACHABLE, event.store, (event.store,)),
            EventKind.STORE_BACK: lambda event: self._lower(UNREACHABLE, event.store),
            EventKind.QUARANTINE_BEGUN: self._quarantine_begun,
            EventKind.QUARANTINE_OVER: lambda event: self._lower(QUARANTINED, event.store),
        }

    def listen(self, event: LockEvent) -> None:
        """Take an event."""
        handler = self._handlers.get(event.event)
        if handler is not None:
            handler(event)

    def _raise(self, level: Instrument, key: int | str, labels: tuple[str, ...]) -> None:
        self._open[level, key] = labels
        self._sink.add(level, labels, 1)

    def _lower(self, level: Instrument, key: int | str) -> None:
        labels = self._open.pop((level, key), None)
        if labels is not None:
            self._sink.add(level, labels, -1)

    def _contended(self, event: LockEvent) -> None:
        self._raise(WAITING, event.id, _of_name(event))

    def _wait_ended(self, event: LockEvent, result: str) -> None:
        self._lower(WAITING, event.id)
        if event.waited is not None:
            self._sink.observe(WAIT, (event.template, event.kind, result), event.waited)

    def _acquired(self, event: LockEvent) -> None:
        self._wait_ended(event, "granted")
        self._raise(HELD, event.id, _of_name(event))

    def _gave_up(self, event: LockEvent) -> None:
        self._wait_ended(event, event.cause)

    def _units(self, event: LockEvent) -> None:
        self._wait_ended(event, event.cause or "granted")
        result = event.event.value.removeprefix("units ")
        self._sink.add(UNITS, (event.template, event.kind, result), event.units)

    def _ended(self, event: LockEvent) -> None:
        self._lower(HELD, event.id)
        if event.held is not None:
            self._sink.observe(HOLD, _of_name(event), event.held)
        self._sink.add(ENDED, (event.template, event.kind, event.event.value), 1)

    def _lost(self, event: LockEvent) -> None:
        self._ended(event)
        self._sink.add(LOSSES, (event.template, event.kind, event.cause), 1)

    def _run_ended(self, event: LockEvent) -> None:
        self._lower(RUNNING, event.id)
        self._sink.observe(RUN, (event.template, event.cause), event.held or 0.0)

    def _quarantine_begun(self, event: LockEvent) -> None:
        self._raise(QUARANTINED, event.store, (event.store,))
        self._sink.add(QUARANTINES, (event.store,), 1)


def _of_name(event: LockEvent) -> tuple[str, ...]:
    return event.template, event.kind
