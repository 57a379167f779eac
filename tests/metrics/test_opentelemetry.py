"""OpenTelemetry: spans of waits and holds below the span that asked, and the same metrics as for Prometheus."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tenure import AsyncClient, Client, LockTimeout
from tenure.metrics import opentelemetry
from tests import virtual
from tests.metrics.scene import use_everything

pytestmark = pytest.mark.filterwarnings("ignore:.*dropped without release:ResourceWarning")


class Told:
    """An SDK that keeps everything in memory."""

    def __init__(self) -> None:
        """Begin without spans."""
        self.spans = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader])

    def providers(self) -> dict[str, Any]:
        """Return the providers as `opentelemetry` takes them."""
        return {"tracer_provider": self.tracer_provider, "meter_provider": self.meter_provider}

    def finished(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name that have ended."""
        return [each for each in self.spans.get_finished_spans() if each.name == name]

    def values(self, name: str) -> list[float]:
        """Return the values of a metric, for all attributes."""
        data: Any = self.reader.get_metrics_data()
        metrics = [each for of in data.resource_metrics for scope in of.scope_metrics for each in scope.metrics]
        return [point.value for each in metrics if each.name == name for point in each.data.data_points]


def test_a_hold_is_a_span_below_that_of_the_program() -> None:
    """With the name, the template and the token; a name that was free has no span of a wait."""
    told = Told()
    client = Client("memory://")
    opentelemetry(client, **told.providers())
    tracer = told.tracer_provider.get_tracer("program")
    lock = client.lock("invoice-5", template="invoice-{n}")
    with client, tracer.start_as_current_span("request") as request, lock as lease:
        assert not told.finished("tenure.hold")
    (hold,) = told.finished("tenure.hold")
    assert hold.parent is not None
    assert hold.parent.span_id == request.get_span_context().span_id
    assert hold.attributes is not None
    assert hold.attributes["tenure.name"] == "invoice-5"
    assert hold.attributes["tenure.template"] == "invoice-{n}"
    assert hold.attributes["tenure.token"] == lease.token
    assert hold.attributes["tenure.end"] == "released"
    assert not told.finished("tenure.wait")


def test_a_wait_is_a_span_that_fails_with_its_cause() -> None:
    """Its length is that of the wait."""
    told = Told()
    client = Client("memory://")
    opentelemetry(client, **told.providers())
    with client, client.lock("name"), pytest.raises(LockTimeout):
        client.lock("name", timeout=0.2).acquire()
    (wait,) = told.finished("tenure.wait")
    assert (wait.status.status_code, wait.status.description) == (StatusCode.ERROR, "timeout")
    assert wait.end_time is not None
    assert wait.start_time is not None
    assert wait.end_time - wait.start_time >= 0.2e9


def test_every_span_ends_and_the_sums_are_zero() -> None:
    """However waits and leases end; in asyncio too."""
    told = Told()
    spans: list[Any] = []

    async def main() -> None:
        source = virtual.source()
        client = AsyncClient(store=source)
        opentelemetry(client, **told.providers())
        listener: Any = client._settings.listeners[1]
        spans.append(listener.__self__)
        async with AsyncClient(store=source) as other, client:
            await use_everything(client, other)
            await asyncio.sleep(0)

    virtual.run(main)
    assert not spans[0]._open
    assert not spans[0]._contended
    assert len(told.finished("tenure.run")) == 1
    lost = [each for each in told.finished("tenure.hold") if each.status.status_code is StatusCode.ERROR]
    assert len(lost) == 3
    for level in ("tenure.held", "tenure.waiting", "tenure.runs_running"):
        assert told.values(level)
        assert set(told.values(level)) == {0}, level
    assert sum(told.values("tenure.leases_lost")) == 3
