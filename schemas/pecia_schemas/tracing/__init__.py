"""Traces by OpenTelemetry, for client and fleet; off, nothing of it is imported and nothing is told.

A job's trace is that of the span in which it was submitted. The job keeps the span as a W3C `traceparent`, and whatever
happens to it later, in whichever process, hangs below. A job that was submitted without a span, or with one that is not
sampled, has none, and costs nothing.
"""

from pecia_schemas.tracing.exporting import exported
from pecia_schemas.tracing.spans import (
    Attributes,
    Kind,
    Span,
    TracingUnavailableError,
    Value,
    apart,
    current,
    disable,
    enable,
    first,
    headers,
    ids,
    is_on,
    past,
    span,
    under,
)

__all__ = [
    "Attributes",
    "Kind",
    "Span",
    "TracingUnavailableError",
    "Value",
    "apart",
    "current",
    "disable",
    "enable",
    "exported",
    "first",
    "headers",
    "ids",
    "is_on",
    "past",
    "span",
    "under",
]
