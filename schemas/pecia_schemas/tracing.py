"""OpenTelemetry traces for clients and the fleet. While tracing is off, nothing is imported or recorded.

A job's trace is that of the span in which it was submitted. The job stores that span as a W3C `traceparent`, and all
later work on it, in any process, becomes a child. A job without a span, or with one that is not sampled, has no trace
and no cost.

Spans contain names, ids, codes and counts, but never the text of an exception, which may quote a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from importlib.metadata import version
from threading import Thread
from typing import TYPE_CHECKING

from pecia_schemas.installing import install_command

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from pecia_schemas.settings import ConnectionSettings

Value = str | bool | int | float
Attributes = Mapping[str, Value | None]
"""Attributes of a span; those that are None are left out."""

_FLUSH_S = 5.0
"""Time in which a process exports its last spans before it ends without them."""


class TracingUnavailableError(ValueError):
    """PECIA_TRACING is on, but OpenTelemetry is not installed."""

    def __init__(self) -> None:
        super().__init__(f"needs OpenTelemetry: {install_command('otel')}")


class SpanKind(StrEnum):
    """Kind of a span, by OpenTelemetry's names."""

    INTERNAL = "internal"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Span:
    """A span in progress, or a no-op if nothing is recorded."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span | None = None) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The span as W3C `traceparent`, for child spans in other processes; None if it is not recorded."""
        if self._span is None or not self._span.is_recording():
            return None
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""
        if self._span is not None:
            self._span.set_attributes(_given(attributes))

    def end(self) -> None:
        """End a span that was begun by `apart`."""
        if self._span is not None:
            self._span.end()

    def fail(self, code: str) -> None:
        """Record a failure by its code."""
        if self._span is not None and _tracing is not None:
            self._span.set_attribute("error.type", code)
            self._span.set_status(_tracing.trace.StatusCode.ERROR)


NO_SPAN = Span()


class _Tracing:
    """OpenTelemetry's API, and the tracer of this package."""

    def __init__(self, provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import context, trace  # noqa: PLC0415  an extra
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
        except ImportError:
            raise TracingUnavailableError from None
        self.trace = trace
        self.nowhere = context.Context()
        self._tracer = trace.get_tracer("pecia", version("pecia"), provider)
        self._propagator = TraceContextTextMapPropagator()

    def below(self, traceparent: str | None) -> Context | None:
        """Return the context of another process's span, or None if the traceparent is invalid."""
        context = self._propagator.extract({"traceparent": traceparent}) if traceparent else self.nowhere
        return context if self.trace.get_current_span(context).get_span_context().is_valid else None

    def active(self) -> trace.Span | None:
        """Return the current span, if it is recorded."""
        span = self.trace.get_current_span()
        return span if span.is_recording() else None

    def start(
        self,
        name: str,
        attributes: Attributes | None,
        kind: SpanKind,
        context: Context | None = None,
        *,
        began: int | None = None,
        links: Iterable[str] = (),
    ) -> trace.Span:
        """Begin a span in a context, or for None as a child of the current span. It does not become the current one."""
        spans = [self.trace.get_current_span(one) for one in map(self.below, links) if one is not None]
        return self._tracer.start_span(
            name,
            context,
            kind=self.trace.SpanKind[kind.name],
            attributes=_given(attributes),
            links=[self.trace.Link(span.get_span_context()) for span in spans],
            start_time=began,
        )

    @contextmanager
    def opened(self, span: trace.Span, expected: tuple[type[Exception], ...] = ()) -> Iterator[Span]:
        """Run the block in the span. Exceptions other than `expected` mark it as failed."""
        opened = Span(span)
        with self.trace.use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield opened
            except Exception as error:
                if not isinstance(error, expected):
                    opened.fail(type(error).__name__)
                raise


_tracing: _Tracing | None = None


def enable(provider: TracerProvider | None = None) -> None:
    """Create spans in this process from now on; for None, with the application's own provider.

    Raises `TracingUnavailableError`.
    """
    global _tracing  # noqa: PLW0603  one for the process, like OpenTelemetry's provider
    if _tracing is None or provider is not None:
        _tracing = _Tracing(provider)


def disable() -> None:
    """Create no more spans in this process."""
    global _tracing  # noqa: PLW0603  as above
    _tracing = None


def is_on() -> bool:
    """Return whether this process creates spans."""
    return _tracing is not None


def current() -> Span:
    """Return the current span."""
    active = _tracing and _tracing.active()
    return Span(active) if active else NO_SPAN


def headers() -> dict[str, str]:
    """Return the headers that propagate the current span to a server."""
    traceparent = current().traceparent
    return {"traceparent": traceparent} if traceparent else {}


def span(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> AbstractContextManager[Span]:
    """Run the block in a child of the current span; without a current span, in none."""
    if _tracing is None or _tracing.active() is None:
        return nullcontext(NO_SPAN)
    return _tracing.opened(_tracing.start(name, attributes, kind))


def under(
    traceparent: str | None,
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    began: int | None = None,
    expected: tuple[type[Exception], ...] = (),
) -> AbstractContextManager[Span]:
    """Run the block in a child of another process's span; without a valid `traceparent`, in no span.

    `began` sets an earlier start, in nanoseconds since the epoch. `expected` exceptions do not mark the span as failed.
    """
    if _tracing is None or (context := _tracing.below(traceparent)) is None:
        return nullcontext(NO_SPAN)
    return _tracing.opened(_tracing.start(name, attributes, kind, context, began=began), expected)


def first(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> AbstractContextManager[Span]:
    """Run the block in a child of the application's span, or in the first span of a trace."""
    return _tracing.opened(_tracing.start(name, attributes, kind)) if _tracing else nullcontext(NO_SPAN)


def apart(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    links: Iterable[str] = (),
) -> Span:
    """Begin the first span of a new trace, with links to others. It is not the current span; the caller ends it."""
    return (
        Span(_tracing.start(name, attributes, kind, _tracing.nowhere, links=links)) if _tracing else NO_SPAN
    )


def past(
    name: str,
    attributes: Attributes | None = None,
    *,
    began: int,
    ended: int,
    kind: SpanKind = SpanKind.INTERNAL,
    below: str | None = None,
) -> None:
    """Record a span for past work, with both times in nanoseconds since the epoch.

    It is a child of the current span, or of the one that `below` names.
    """
    if _tracing is not None:
        context = _tracing.below(below)
        if context is not None or _tracing.active() is not None:
            _tracing.start(name, attributes, kind, context, began=began).end(ended)


def messaging(operation: str, messages: int | None = None) -> dict[str, Value | None]:
    """Return the attributes of an operation on a message, or on a batch of `messages`."""
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
    """Create spans during the block if the settings enable it, and export them as the `OTEL_*` variables say.

    `service` names the process, unless `OTEL_SERVICE_NAME` does. A separate thread exports, and drops spans that do not
    fit its queue. Raises `TracingUnavailableError`.
    """
    if not settings.tracing:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise TracingUnavailableError from None
    resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # an application has its own
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    enable(provider)
    try:
        yield
    finally:
        disable()
        # In a thread: the SDK waits without limit for an unavailable collector.
        flushing = Thread(target=provider.shutdown, name="traces-flush", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_S)
