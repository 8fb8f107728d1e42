"""OpenTelemetry's SDK in a process of Pecia's own; an application brings one itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

from pecia_schemas.tracing.spans import TracingUnavailableError, disable, enable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from pecia_schemas.settings import ConnectionSettings

_FLUSH_S = 5.0
"""What the last spans of a process may take; then it ends without them."""


@contextmanager
def exported(settings: ConnectionSettings, service: str) -> Iterator[None]:
    """Make spans for the length of the block, if the settings say so, and send them where `OTEL_*` says.

    `service` is what the process is called, if `OTEL_SERVICE_NAME` does not name it. Sending runs on a thread of its
    own and drops what does not fit its queue. Raises `TracingUnavailableError`.
    """
    if not settings.tracing:
        yield
        return
    provider = _provider(service)
    enable(provider)
    try:
        yield
    finally:
        disable()
        # In a thread: the SDK waits for a collector that is away as long as it likes.
        flushing = Thread(target=provider.shutdown, name="traces-flush", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_S)


def _provider(service: str) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise TracingUnavailableError from None
    resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
