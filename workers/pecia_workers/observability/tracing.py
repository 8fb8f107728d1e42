"""Logs and spans of the fleet: of attempts at parts, engine requests and callbacks.

Lines of the log hold ids, codes and costs, never text of a document; for people or, as JSON, for machines.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from celery.exceptions import Ignore, Retry
from structlog.typing import EventDict

from pecia_schemas import tracing
from pecia_schemas.bundles import Split
from pecia_schemas.messages import queue_name
from pecia_schemas.results import Page, Segment, Summary
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tracing import SpanKind
from pecia_workers.observability import metrics
from pecia_workers.protocol.parts import ClaimedPart, Cut, Done, Failed, Outcome, PartFailedError, Postponed

if TYPE_CHECKING:
    from pecia_schemas.tracing import Attributes, Span
    from pecia_workers.ledger.outbox import ClaimedDelivery, DeliveryOutcome
    from pecia_workers.protocol.base import EngineRequest, Generation, Generator


def _with_trace(_logger: Any, _method: str, line: EventDict) -> EventDict:
    """Add the ids of the current span, if there is one."""
    if traceparent := tracing.current().traceparent:
        _, line["trace_id"], line["span_id"], _ = traceparent.split("-")
    return line


_SHARED = (
    structlog.contextvars.merge_contextvars,
    _with_trace,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def about_part(job_id: UUID, part: UUID, attempt: int) -> AbstractContextManager[None]:
    """Add these ids to every log line of this task, and of threads and tasks that it starts, libraries' included."""
    return structlog.contextvars.bound_contextvars(job=str(job_id), part=str(part), attempt=attempt)


def configure_logs(settings: WorkerSettings) -> None:
    """Send our logs and those of every library to stderr, one line each, in one format."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if settings.log_format == "text":
        # rich's traceback shows locals: pages and passwords
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=(*_SHARED, structlog.stdlib.ExtraAdder(allow=("part",))),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.captureWarnings(True)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    if settings.log_level == "info":  # that a part has arrived is Flower's to show: a line each is many
        logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    wrap = structlog.stdlib.ProcessorFormatter.wrap_for_formatter
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED, wrap],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


_NS = 1_000_000_000


@contextmanager
def processing(part: ClaimedPart, claimed_at: int) -> Iterator[None]:
    """Count an attempt, and run it in a span below its job's, beside one for the wait before it.

    The span starts at `claimed_at`, nanoseconds since the epoch, when the claim was sent to the database.
    """
    metrics.ATTEMPTS.labels(part.stage, part.lane).inc()
    metrics.QUEUED.labels(part.stage, part.lane).observe(part.queued_s)
    if part.traceparent is None:
        yield
        return
    queue, claimed = queue_name(part.stage, part.lane), time.time_ns()
    about: dict[str, tracing.Value | None] = {
        "pecia.job.id": str(part.job_id),
        "pecia.part.id": str(part.id),
        "pecia.part.number": part.ordinal + 1,
        "pecia.stage": part.stage,
        "pecia.lane": part.lane,
        "pecia.attempt": part.attempt,
        "pecia.deaths": part.deaths,
    }
    waiting = min(claimed_at, claimed - round(part.queued_s * _NS))
    tracing.past(f"wait {queue}", about, began=waiting, ended=claimed_at, below=part.traceparent)
    operation = tracing.messaging("process") | {
        "messaging.destination.name": queue,
        "messaging.message.id": str(part.id),
        "messaging.message.conversation_id": str(part.job_id),
    }
    with tracing.under(
        part.traceparent,
        f"process {queue}",
        about | operation,
        kind=SpanKind.CONSUMER,
        began=claimed_at,
        expected=(Ignore, Retry, PartFailedError),
    ) as span:
        tracing.past("claim", began=claimed_at, ended=claimed)
        try:
            yield
        except Ignore:
            span.set_attributes({"pecia.outcome": "lost"})
            raise
        except asyncio.CancelledError:
            span.set_attributes({"pecia.outcome": "given_back"})
            raise


def ended(part: ClaimedPart, outcome: Outcome, seconds: float, *, committed: bool) -> None:
    """Record the outcome and duration, in seconds, of an attempt in metrics and the current span."""
    span, name = tracing.current(), "done" if committed else "lost"
    metrics.PART_SECONDS.labels(part.stage).observe(seconds)
    match outcome:
        case _ if not committed:
            pass
        case Failed(failure=failure, retry_in=retry_in, spent=spent):
            name = "failed" if retry_in is None else "retried"
            span.fail(failure.code)
            metrics.FAILURES.labels(part.stage, failure.code).inc()
            if spent:
                metrics.WASTED_TOKENS.labels(spent.engine).inc(spent.all_wasted.usage.wasted)
        case Postponed():
            name = "postponed"
        case Cut(parts=parts):
            span.set_attributes({"pecia.parts": len(parts)})
        case Done(content=Split() as split):
            span.set_attributes({"pecia.documents": len(split.documents)})
        case Done(content=(Page() | Segment() | Summary()) as content):
            span.set_attributes({"pecia.cached": content.cached_from is not None})
            metrics.WASTED_TOKENS.labels(content.engine).inc(content.usage.wasted)
            if isinstance(content, Page):
                metrics.PAGES.labels(content.engine, content.verdict).inc()
    span.set_attributes({"pecia.outcome": name})
    metrics.PARTS.labels(part.stage, name).inc()


def admitted(seconds: float) -> None:
    """Record how long a request has waited for capacity of the engine, until now."""
    now = time.time_ns()
    tracing.past("admit", began=now - round(seconds * _NS), ended=now)


async def generate_traced(engine: Generator, request: EngineRequest, tokens: int | None = None) -> Generation:
    """Return the engine's answer, in a span; `tokens` were reserved for the request."""
    if tracing.current().traceparent is None:
        return await engine.generate(request)
    about: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": engine.capabilities.name,
        "gen_ai.request.model": engine.capabilities.model,
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "pecia.workload": request.workload,
        "pecia.cost": tokens,
        "pecia.images": len(request.images),
    }
    with tracing.span(f"chat {engine.capabilities.model}", about, kind=SpanKind.CLIENT) as span:
        began = time.time_ns()
        generation = await engine.generate(request)
        usage = generation.usage
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt,
                "gen_ai.usage.output_tokens": usage.output,
                "gen_ai.usage.cache_read.input_tokens": usage.cached,
                "pecia.accounts.image_tokens": usage.image,
                "pecia.verdict": generation.verdict,
            }
        )
        if generation.first_token_s is not None:
            first = began + round(generation.first_token_s * _NS)
            tracing.past("prefill", began=began, ended=first)
            tracing.past("decode", began=first, ended=max(first, time.time_ns()))
    return generation


def delivering(delivery: ClaimedDelivery) -> AbstractContextManager[Span]:
    """Run a delivery attempt in a span below its job's. No attribute names the receiver: URLs can hold secrets."""
    about: Attributes = {
        "http.request.method": "POST",
        "http.request.resend_count": delivery.attempt - 1 or None,
        "pecia.job.id": str(delivery.job_id),
        "pecia.delivery.id": str(delivery.id),
        "pecia.delivery.attempt": delivery.attempt,
        "pecia.notice.type": delivery.type,
    }
    return tracing.under(delivery.traceparent, "callback", about, kind=SpanKind.CLIENT)


def tried(span: Span, outcome: DeliveryOutcome) -> None:
    """Record the outcome of a delivery attempt."""
    span.set_attributes({"pecia.delivery.state": outcome.state, "http.response.status_code": outcome.status})
    if outcome.error is not None:
        span.fail(outcome.error)
