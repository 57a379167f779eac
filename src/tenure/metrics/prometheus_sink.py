"""The metrics in a registry of prometheus_client, which this file alone imports."""

from threading import Lock
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from tenure.metrics.recorder import COUNTS, DURATIONS, LEVELS, Instrument

if TYPE_CHECKING:
    from collections.abc import Callable

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper bounds of the histograms, in seconds."""


class PrometheusSink:
    """The metrics of all clients with one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics. Each registry takes them once."""
        self._levels = {
            each: Gauge(f"tenure_{each.name}", each.text, each.labels, registry=registry, multiprocess_mode="livesum")
            for each in LEVELS
        }
        self._counts = {
            each: Counter(f"tenure_{each.name}_total", each.text, each.labels, registry=registry) for each in COUNTS
        }
        self._durations = {
            each: Histogram(f"tenure_{each.name}_seconds", each.text, each.labels, registry=registry, buckets=BUCKETS)
            for each in DURATIONS
        }
        self._changes: dict[tuple[Instrument, tuple[str, ...]], Callable[[float], None]] = {}
        """What changes the metric of some labels: prometheus_client takes longer to find it."""

    @classmethod
    def of(cls, registry: CollectorRegistry | None) -> "PrometheusSink":
        """Return the sink of a registry; None: the default one."""
        chosen = REGISTRY if registry is None else registry
        with _making:
            sink = _sinks.get(chosen)
            if sink is None:
                sink = _sinks[chosen] = cls(chosen)
            return sink

    def add(self, instrument: Instrument, labels: tuple[str, ...], by: int) -> None:
        """Add to a gauge or a counter."""
        change = self._changes.get((instrument, labels))
        if change is None:
            found = self._levels.get(instrument) or self._counts[instrument]
            change = cast("Callable[[float], None]", found.labels(*labels).inc)
            self._changes[instrument, labels] = change
        change(by)

    def observe(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
        """Add a duration to a histogram."""
        change = self._changes.get((instrument, labels))
        if change is None:
            change = cast("Callable[[float], None]", self._durations[instrument].labels(*labels).observe)
            self._changes[instrument, labels] = change
        change(seconds)


_making = Lock()
_sinks: "WeakKeyDictionary[CollectorRegistry, PrometheusSink]" = WeakKeyDictionary()
