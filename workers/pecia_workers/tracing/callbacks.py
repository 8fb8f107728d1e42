"""The span of one try to deliver a callback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pecia_schemas import tracing
from pecia_schemas.tracing import Kind

if TYPE_CHECKING:
    from pecia_schemas.tracing import Attributes, Span
    from pecia_workers.ledger.outbox import ClaimedDelivery, DeliveryOutcome


@contextmanager
def delivering(delivery: ClaimedDelivery) -> Iterator[Span]:
    """Run a try in a span below that of the job. Nothing tells whom it is for: URLs can hold anything."""
    about: Attributes = {
        "http.request.method": "POST",
        "http.request.resend_count": delivery.attempt - 1 or None,
        "pecia.job.id": str(delivery.job_id),
        "pecia.delivery.id": str(delivery.id),
        "pecia.delivery.attempt": delivery.attempt,
        "pecia.notice.type": delivery.body["type"],
    }
    with tracing.under(delivery.traceparent, "callback", about, kind=Kind.CLIENT) as span:
        yield span


def tried(span: Span, outcome: DeliveryOutcome) -> None:
    """Say what came of it."""
    span.tell({"pecia.delivery.state": outcome.state, "http.response.status_code": outcome.status})
    if outcome.error is not None:
        span.fail(outcome.error)
