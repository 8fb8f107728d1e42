"""The spans of one attempt at a part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from celery.exceptions import Ignore, Retry

from pecia_schemas import tracing
from pecia_schemas.messages import SYSTEM, queue_name
from pecia_schemas.tracing import Kind
from pecia_workers.errors import PartFailedError
from pecia_workers.ledger import ClaimedPart, Cut, Done, Failed, Outcome

_NS = 1_000_000_000


@contextmanager
def processing(part: ClaimedPart, asked: int) -> Iterator[None]:
    """Run an attempt in a span below its job's, beside one for the wait before it.

    It begins with the claim in the database, which was asked for then, in nanoseconds since the epoch.
    """
    if part.traceparent is None:
        yield
        return
    queue, claimed = queue_name(part.stage, part.lane), time.time_ns()
    about = _about(part)
    waiting = min(asked, claimed - round(part.queued_s * _NS))
    tracing.past(f"wait {queue}", about, began=waiting, ended=asked, below=part.traceparent)
    with tracing.under(
        part.traceparent,
        f"process {queue}",
        about | _operation(part, queue),
        kind=Kind.CONSUMER,
        began=asked,
        expected=(Ignore, Retry, PartFailedError),
    ) as span:
        tracing.past("claim", began=asked, ended=claimed)
        try:
            yield
        except Ignore:
            span.tell({"pecia.outcome": "lost"})
            raise
        except asyncio.CancelledError:
            span.tell({"pecia.outcome": "given_back"})
            raise


def _about(part: ClaimedPart) -> dict[str, tracing.Value | None]:
    return {
        "pecia.job.id": str(part.job_id),
        "pecia.part.id": str(part.id),
        "pecia.part.number": part.ordinal + 1,
        "pecia.stage": part.stage,
        "pecia.lane": part.lane,
        "pecia.attempt": part.attempt,
        "pecia.deaths": part.deaths,
    }


def _operation(part: ClaimedPart, queue: str) -> dict[str, tracing.Value | None]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": str(part.id),
        "messaging.message.conversation_id": str(part.job_id),
    }


def ended(outcome: Outcome, *, committed: bool) -> None:
    """Say of the attempt under way what came of it."""
    span = tracing.current()
    match outcome:
        case _ if not committed:
            span.tell({"pecia.outcome": "lost"})
        case Failed(failure=failure, retry_in=retry_in):
            span.tell({"pecia.outcome": "failed" if retry_in is None else "retried"})
            span.fail(failure.code)
        case Cut(parts=parts):
            span.tell({"pecia.outcome": "done", "pecia.parts": len(parts)})
        case Done(content=content):
            span.tell({"pecia.outcome": "done", "pecia.cached": content.cached_from is not None})
