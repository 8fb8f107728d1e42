"""Spans as Pecia makes them: names, ids, codes and counts, and never an exception's text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, TracerProvider

Value = str | bool | int | float
Attributes = Mapping[str, Value | None]
"""Of a span; those that are None are left out."""


class TracingUnavailableError(ValueError):
    """PECIA_TRACING is on, and OpenTelemetry is not installed."""

    def __init__(self) -> None:
        super().__init__("needs OpenTelemetry: pip install 'pecia[otel]'.")


class Kind(StrEnum):
    """Who calls whom, by OpenTelemetry's names."""

    INTERNAL = "internal"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Span:
    """A span in progress; a no-op if nothing is recorded."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span | None = None) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """What spans of other processes hang below, as W3C writes it; None if it is not recorded."""
        if self._span is None or not self._span.is_recording():
            return None
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def tell(self, attributes: Attributes) -> None:
        """Add to what it says."""
        if self._span is not None:
            self._span.set_attributes(_given(attributes))

    def happened(self, event: str, at: int) -> None:
        """Say when something happened in it, in nanoseconds since the epoch."""
        if self._span is not None:
            self._span.add_event(event, timestamp=at)

    def end(self, at: int | None = None) -> None:
        """End one that was begun `apart`, then, in nanoseconds since the epoch, or now."""
        if self._span is not None:
            self._span.end(at)

    def fail(self, code: str) -> None:
        """Say that it failed, and how by a code: an exception's text may hold a document's."""
        if self._span is not None and _tracing is not None:
            self._span.set_attribute("error.type", code)
            self._span.set_status(_tracing.trace.StatusCode.ERROR)


NO_SPAN = Span()


class _Tracing:
    """OpenTelemetry's API, and our tracer."""

    def __init__(self, provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import context, trace  # noqa: PLC0415  an extra
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
        except ImportError:
            raise TracingUnavailableError from None
        self.trace = trace
        self.nowhere = context.Context()
        self.tracer = trace.get_tracer("pecia", version("pecia"), provider)
        self._propagator = TraceContextTextMapPropagator()

    def below(self, traceparent: str) -> Context | None:
        """Return the context of a span of another process; None if that is no traceparent."""
        context = self._propagator.extract({"traceparent": traceparent})
        return context if self._span_of(context).is_valid else None

    def start(
        self,
        name: str,
        context: Context | None,
        attributes: Attributes | None,
        *,
        kind: Kind,
        began: int | None = None,
        links: Iterable[str] = (),
    ) -> trace.Span:
        """Begin a span in a context, None: where we are; without making it what is under way."""
        return self.tracer.start_span(
            name,
            context,
            kind=self.trace.SpanKind[kind.name],
            attributes=_given(attributes),
            links=[link for link in map(self._link, links) if link],
            start_time=began,
        )

    def _link(self, traceparent: str) -> Link | None:
        context = self.below(traceparent)
        return None if context is None else self.trace.Link(self._span_of(context))

    def _span_of(self, context: Context) -> trace.SpanContext:
        return self.trace.get_current_span(context).get_span_context()

    def active(self) -> trace.Span | None:
        """Return the span that is under way here, if it will be seen."""
        span = self.trace.get_current_span()
        return span if span.is_recording() else None


_tracing: _Tracing | None = None


def enable(provider: TracerProvider | None = None) -> None:
    """Make spans in this process from now on; None: with the application's own provider.

    Raises `TracingUnavailableError`.
    """
    global _tracing  # noqa: PLW0603  as OpenTelemetry's provider, one for the process
    if _tracing is None or provider is not None:
        _tracing = _Tracing(provider)


def disable() -> None:
    """Make no more spans in this process."""
    global _tracing  # noqa: PLW0603  as above
    _tracing = None


def is_on() -> bool:
    """Return whether spans are made in this process."""
    return _tracing is not None


def current() -> Span:
    """Return the span that is under way here."""
    active = _tracing and _tracing.active()
    return Span(active) if active else NO_SPAN


def headers() -> dict[str, str]:
    """Return what tells the server of a request about the span under way."""
    traceparent = current().traceparent
    return {"traceparent": traceparent} if traceparent else {}


def ids() -> dict[str, str]:
    """Return `trace_id` and `span_id` of the span under way, for the log."""
    traceparent = current().traceparent
    if traceparent is None:
        return {}
    _, trace_id, span_id, _ = traceparent.split("-")
    return {"trace_id": trace_id, "span_id": span_id}


@contextmanager
def span(
    name: str, attributes: Attributes | None = None, *, kind: Kind = Kind.INTERNAL, began: int | None = None
) -> Iterator[Span]:
    """Run the block in a child of the span under way; without one, in none."""
    if _tracing is None or _tracing.active() is None:
        yield NO_SPAN
        return
    with _opened(_tracing, name, None, attributes, kind=kind, began=began) as opened:
        yield opened


@contextmanager
def under(
    traceparent: str | None,
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: Kind = Kind.INTERNAL,
    began: int | None = None,
    expected: tuple[type[Exception], ...] = (),
) -> Iterator[Span]:
    """Run the block in a child of another process's span; without one, in none.

    It began then, in nanoseconds since the epoch, if not now. Exceptions that are `expected` are no failure of it.
    """
    context = _tracing.below(traceparent) if _tracing and traceparent else None
    if _tracing is None or context is None:
        yield NO_SPAN
        return
    with _opened(_tracing, name, context, attributes, kind=kind, began=began, expected=expected) as opened:
        yield opened


@contextmanager
def first(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: Kind = Kind.INTERNAL,
) -> Iterator[Span]:
    """Run the block in a child of the application's span, or in the first span of a trace."""
    if _tracing is None:
        yield NO_SPAN
        return
    with _opened(_tracing, name, None, attributes, kind=kind) as opened:
        yield opened


def apart(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: Kind = Kind.INTERNAL,
    links: Iterable[str] = (),
    began: int | None = None,
) -> Span:
    """Begin the first span of a trace, with links to others, which the caller ends; it is not what is under way."""
    if _tracing is None:
        return NO_SPAN
    return Span(_tracing.start(name, _tracing.nowhere, attributes, kind=kind, began=began, links=links))


def past(
    name: str,
    attributes: Attributes | None = None,
    *,
    began: int,
    ended: int,
    kind: Kind = Kind.INTERNAL,
    below: str | None = None,
) -> None:
    """Tell of something that is over, from nanoseconds to nanoseconds since the epoch.

    It is a child of the span under way, or of the one that is named.
    """
    context = _tracing.below(below) if _tracing and below else None
    if _tracing is None or (context is None and _tracing.active() is None):
        return
    _tracing.start(name, context, attributes, kind=kind, began=began).end(ended)


@contextmanager
def _opened(
    tracing: _Tracing,
    name: str,
    context: Context | None,
    attributes: Attributes | None,
    *,
    kind: Kind,
    began: int | None = None,
    expected: tuple[type[Exception], ...] = (),
) -> Iterator[Span]:
    opened = tracing.start(name, context, attributes, kind=kind, began=began)
    told = Span(opened)
    with tracing.trace.use_span(
        opened, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield told
        except Exception as error:
            if not isinstance(error, expected):
                told.fail(type(error).__name__)
            raise


def _given(attributes: Attributes | None) -> dict[str, Value]:
    return {name: value for name, value in (attributes or {}).items() if value is not None}
