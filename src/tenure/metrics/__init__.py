"""Metrics of a client's locks, from its events: for Prometheus, and for OpenTelemetry with traces.

Labels take few values: the template of a name and the kind of primitive, never a name. docs/metrics.md lists them.
"""

from typing import TYPE_CHECKING

from tenure.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from tenure.client import AsyncClient, Client

__all__ = ["opentelemetry", "prometheus"]


def prometheus(client: "Client | AsyncClient", registry: "CollectorRegistry | None" = None) -> None:
    """Keep Prometheus metrics of a client in `registry` (default: that of prometheus_client).

    Call it once for each client, before the client is used. Clients with the same registry share the metrics. In the
    multiprocess mode of prometheus_client the gauges are sums over the processes that live. Raises UsageError if
    prometheus_client is not installed, or the client was used before.
    """
    try:
        from tenure.metrics.prometheus_sink import PrometheusSink
    except ImportError as error:
        raise UsageError("these metrics need prometheus_client: pip install 'tenure[prometheus]'") from error
    from tenure.metrics.recorder import MetricsRecorder

    client.listen_within(MetricsRecorder(PrometheusSink.of(registry)).listen)


def opentelemetry(
    client: "Client | AsyncClient",
    *,
    tracer_provider: "TracerProvider | None" = None,
    meter_provider: "MeterProvider | None" = None,
) -> None:
    """Make OpenTelemetry spans of a client's waits, leases and runs, and the same metrics as `prometheus`.

    A wait that had to wait or failed, a lease and a run of a job are a span each, below the span in which the program
    asked. Only the API is needed; without an SDK nothing is kept. The default providers are the global ones. Call it
    once for each client, before the client is used. Raises UsageError if the API is not installed, or the client was
    used before.
    """
    try:
        from tenure.metrics.opentelemetry_sink import OpenTelemetrySink, Spans
    except ImportError as error:
        raise UsageError("this needs the API of OpenTelemetry: pip install 'tenure[opentelemetry]'") from error
    from tenure.metrics.recorder import MetricsRecorder

    client.listen_within(MetricsRecorder(OpenTelemetrySink(meter_provider)).listen)
    client.listen_within(Spans(tracer_provider).listen)
