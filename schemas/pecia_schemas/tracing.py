"""Traces by OpenTelemetry, for client and fleet; while they are off, its no-op tracer makes the spans.

A job's trace is that of the span in which it was submitted. The job keeps the span as a W3C `traceparent`, and whatever
happens to it later, in whichever process, hangs below. A job that was submitted without a span, or with one that is not
sampled, has none, and costs nothing.

Spans hold names, ids, codes and counts, and never an exception's text: it may hold a document's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from threading import Thread
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pecia_schemas.installing import install_command

if TYPE_CHECKING:
    from pecia_schemas.settings import ConnectionSettings

SpanKind = trace.SpanKind

Value = str | bool | int | float
Attributes = Mapping[str, Value | None]
"""Of a span; those that are None are left out."""

_FLUSH_S = 5.0
"""What the last spans of a process may take; then it ends without them."""


class TracingUnavailableError(ValueError):
    """PECIA_TRACING is on, and OpenTelemetry's SDK is not installed."""

    def __init__(self) -> None:
        super().__init__(f"needs OpenTelemetry: {install_command('otel')}")


class Span:
    """A span in progress; a no-op if nothing is recorded."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span = trace.INVALID_SPAN) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The W3C header that makes spans of other processes its children; None if it is not recorded."""
        if not self._span.is_recording():
            return None
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(_given(attributes))

    def end(self) -> None:
        """End a span that was begun `apart`."""
        self._span.end()

    def fail(self, code: str) -> None:
        """Record that it failed, by a code."""
        self._span.set_attribute("error.type", code)
        self._span.set_status(trace.StatusCode.ERROR)


NO_SPAN = Span()
_NOWHERE = Context()
_PROPAGATOR = TraceContextTextMapPropagator()
_OFF: Final = trace.NoOpTracer()
_tracer: trace.Tracer = _OFF


def enable(provider: TracerProvider | None = None) -> None:
    """Make spans in this process from now on; None: with the application's own provider."""
    global _tracer  # noqa: PLW0603  as OpenTelemetry's provider, one for the process
    if _tracer is _OFF or provider is not None:
        _tracer = trace.get_tracer("pecia", version("pecia"), provider)


def disable() -> None:
    """Make no more spans in this process."""
    global _tracer  # noqa: PLW0603  as above
    _tracer = _OFF


def is_on() -> bool:
    """Return whether spans are made in this process."""
    return _tracer is not _OFF


def current() -> Span:
    """Return the span in progress here."""
    return Span(trace.get_current_span()) if is_on() else NO_SPAN


def headers() -> dict[str, str]:
    """Return the headers that propagate the current span to a server."""
    traceparent = current().traceparent
    return {"traceparent": traceparent} if traceparent else {}


def span(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> AbstractContextManager[Span]:
    """Run the block in a child of the span in progress; without one, in none."""
    if current().traceparent is None:
        return nullcontext(NO_SPAN)
    return _opened(_begin(name, attributes, kind))


def under(
    traceparent: str | None,
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    began: int | None = None,
    expected: tuple[type[Exception], ...] = (),
) -> AbstractContextManager[Span]:
    """Run the block in a child of another process's span; without one, in none.

    It began then, in nanoseconds since the epoch, if not now. Exceptions that are `expected` are no failure of it.
    """
    if (context := _context_of(traceparent)) is None:
        return nullcontext(NO_SPAN)
    return _opened(_begin(name, attributes, kind, context, began=began), expected)


def first(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> AbstractContextManager[Span]:
    """Run the block in a child of the application's span, or in the first span of a trace."""
    return _opened(_begin(name, attributes, kind))


def apart(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    links: Iterable[str] = (),
) -> Span:
    """Begin the first span of a trace, with links to others; the caller ends it, and it is not the one in progress."""
    return Span(_begin(name, attributes, kind, _NOWHERE, links=links))


def past(
    name: str,
    attributes: Attributes | None = None,
    *,
    began: int,
    ended: int,
    kind: SpanKind = SpanKind.INTERNAL,
    below: str | None = None,
) -> None:
    """Record something that is over, from nanoseconds to nanoseconds since the epoch.

    It is a child of the span in progress, or of the one that is named.
    """
    context = _context_of(below)
    if context is not None or current().traceparent:
        _begin(name, attributes, kind, context, began=began).end(ended)


def _context_of(traceparent: str | None) -> Context | None:
    """Return the context of a span of another process; None if that is no traceparent, or traces are off."""
    if not (is_on() and traceparent):
        return None
    context = _PROPAGATOR.extract({"traceparent": traceparent})
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def _begin(
    name: str,
    attributes: Attributes | None,
    kind: SpanKind,
    context: Context | None = None,
    *,
    began: int | None = None,
    links: Iterable[str] = (),
) -> trace.Span:
    """Begin a span in a context, None: that of the span in progress, which it does not replace."""
    linked = [trace.get_current_span(context) for context in map(_context_of, links) if context is not None]
    return _tracer.start_span(
        name,
        context,
        kind=kind,
        attributes=_given(attributes),
        links=[trace.Link(span.get_span_context()) for span in linked],
        start_time=began,
    )


@contextmanager
def _opened(span: trace.Span, expected: tuple[type[Exception], ...] = ()) -> Iterator[Span]:
    """Run the block in the span. Exceptions that are not `expected` make it fail."""
    opened = Span(span)
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield opened
        except Exception as error:
            if not isinstance(error, expected):
                opened.fail(type(error).__name__)
            raise


def messaging(operation: str, messages: int | None = None) -> dict[str, Value | None]:
    """Return the attributes of an operation on messages, or on a batch of so many."""
    return {
        "messaging.system": "pecia",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.batch.message_count": messages,
    }


def _given(attributes: Attributes | None) -> dict[str, Value]:
    return {name: value for name, value in (attributes or {}).items() if value is not None}


@contextmanager
def exported(settings: ConnectionSettings, service: str) -> Iterator[None]:
    """Make spans for the length of the block, if the settings say so, and send them where `OTEL_*` says.

    `service` is what the process is called, if `OTEL_SERVICE_NAME` does not name it. Sending runs on a thread of its
    own and drops what does not fit its queue. Raises `TracingUnavailableError`.
    """
    if not settings.tracing:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider as Provider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise TracingUnavailableError from None
    resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
    provider = Provider(resource=resource, shutdown_on_exit=False)  # an application brings its own
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    enable(provider)
    try:
        yield
    finally:
        disable()
        # In a thread: the SDK waits for a collector that is away as long as it likes.
        flushing = Thread(target=provider.shutdown, name="traces-flush", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_S)
