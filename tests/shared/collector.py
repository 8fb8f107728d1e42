"""A collector of traces on loopback: takes what is exported by OTLP over HTTP, and reads it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler

from tests.shared.http_doubles import LoopbackServer, QuietHandler, serving


@dataclass(frozen=True)
class Told:
    name: str
    service: str
    kind: str
    trace: str
    id: str
    parent: str
    """Empty: it is the first of its trace."""
    began: int
    ended: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    """Trace and span of each."""
    failed: bool

    @property
    def place(self) -> tuple[str, str]:
        return self.trace, self.id


class Collector(LoopbackServer):
    """Keeps every body that it is sent."""

    url = LoopbackServer.root

    def __init__(self) -> None:
        super().__init__(_Taking)
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[Told]:
        """All spans so far, in the order in which they began."""
        found = [span for body in list(self.bodies) for span in _read(body)]
        return sorted(found, key=lambda span: span.began)

    def named(self, name: str) -> list[Told]:
        return [span for span in self.spans if span.name == name]

    def of(self, trace: str) -> list[Told]:
        return [span for span in self.spans if span.trace == trace]


class _Taking(QuietHandler, BaseHTTPRequestHandler):
    server: Collector  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def collecting() -> AbstractContextManager[Collector]:
    return serving(Collector())


@contextmanager
def application(collector: Collector, sampler: Sampler | None = None) -> Iterator[TracerProvider]:
    """An application's own SDK, which sends each span as it ends."""
    provider = TracerProvider(sampler=sampler, resource=Resource({"service.name": "application"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
    yield provider
    provider.shutdown()


def _read(body: bytes) -> Iterator[Told]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _attributes(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Told(
                    name=span.name,
                    service=service,
                    kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    began=span.start_time_unix_nano,
                    ended=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    failed=span.status.code == 2,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
