"""The metrics and spans in OpenTelemetry. This file alone imports its API."""

from time import time_ns

from opentelemetry import metrics, trace
from opentelemetry.metrics import Counter, MeterProvider, UpDownCounter
from opentelemetry.trace import Span, StatusCode, TracerProvider

from tenure.contracts.forms import RELEASE
from tenure.core.events import EventKind, LockEvent
from tenure.metrics.recorder import COUNTS, DURATIONS, LEVELS, Instrument

SCOPE = "tenure"

ENDS = frozenset({EventKind.RELEASED, EventKind.HANDED_ON, EventKind.DROPPED, EventKind.LOST, EventKind.RUN_ENDED})
"""The events that end the span of a lease or a run."""

FAILURES = frozenset({"failed", "superseded", "unknown"})
"""The causes by which a run has failed."""


class OpenTelemetrySink:
    """The metrics of one client."""

    def __init__(self, provider: MeterProvider | None) -> None:
        """Make the instruments."""
        meter = metrics.get_meter(SCOPE, RELEASE, provider)
        self._sums: dict[Instrument, UpDownCounter | Counter] = {}
        for each in LEVELS:
            self._sums[each] = meter.create_up_down_counter(_name(each), description=each.text)
        for each in COUNTS:
            self._sums[each] = meter.create_counter(_name(each), description=each.text)
        self._durations = {each: meter.create_histogram(_name(each), "s", each.text) for each in DURATIONS}

    def add(self, instrument: Instrument, labels: tuple[str, ...], by: int) -> None:
        """Add to a counter."""
        self._sums[instrument].add(by, _attributes(instrument, labels))

    def observe(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
        """Add a duration to a histogram."""
        self._durations[instrument].record(seconds, _attributes(instrument, labels))


def _name(instrument: Instrument) -> str:
    return f"tenure.{instrument.name}"


def _attributes(instrument: Instrument, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(instrument.labels, labels, strict=True))


class Spans:
    """The spans of one client. A span has the name of the lock as an attribute: spans are no series."""

    def __init__(self, provider: TracerProvider | None) -> None:
        """Begin without spans."""
        self._tracer = trace.get_tracer(SCOPE, RELEASE, provider)
        self._contended: set[int] = set()
        self._open: dict[int, Span] = {}
        """The spans of leases and runs that go on."""

    def listen(self, event: LockEvent) -> None:
        """Take an event."""
        kind = event.event
        if kind is EventKind.CONTENDED:
            self._contended.add(event.id)
        elif event.waited is not None:
            self._end_wait(event)
        elif kind is EventKind.RUN_BEGUN:
            self._begin("tenure.run", event)
        elif kind in ENDS:
            self._end(event)

    def _end_wait(self, event: LockEvent) -> None:
        """Make the span of a wait that has ended, if it had to wait or failed; begin that of the lease."""
        granted = event.event is not EventKind.GAVE_UP
        if event.id in self._contended or not granted:
            self._contended.discard(event.id)
            start = time_ns() - int((event.waited or 0.0) * 1e9)
            span = self._tracer.start_span("tenure.wait", attributes=_of_span(event), start_time=start)
            if not granted:
                span.set_status(StatusCode.ERROR, event.cause)
            span.end()
        if event.event is EventKind.ACQUIRED:
            self._begin("tenure.hold", event)

    def _begin(self, name: str, event: LockEvent) -> None:
        self._open[event.id] = self._tracer.start_span(name, attributes=_of_span(event))

    def _end(self, event: LockEvent) -> None:
        span = self._open.pop(event.id, None)
        if span is None:
            return
        span.set_attribute("tenure.end", event.event.value)
        if event.cause:
            span.set_attribute("tenure.cause", event.cause)
        if event.event is EventKind.LOST or event.cause in FAILURES:
            span.set_status(StatusCode.ERROR, event.detail or event.cause)
        span.end()


def _of_span(event: LockEvent) -> dict[str, str | int | float]:
    return {
        f"tenure.{name}": value for name, value in event.fields().items() if name not in {"held", "seconds", "event"}
    }
