"""The spans of a submit, in each of which a job's trace begins; for a client of either kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from pecia.bulk import Item, Outcome
from pecia.errors import SubmitError
from pecia.handles import Accepted
from pecia_schemas import tracing
from pecia_schemas.messages import SYSTEM, PartMessage
from pecia_schemas.states import Lane
from pecia_schemas.tracing import Attributes, Kind, Span


@contextmanager
def submitting(lane: Lane) -> Iterator[Span]:
    """Run the submit of one task in the span that its job's trace begins with, or goes on with from the application."""
    with tracing.first("submit", _about(lane), kind=Kind.PRODUCER) as span:
        yield span


@contextmanager
def submitting_many() -> Iterator[None]:
    """Run the submit of many tasks in a span; each of their jobs has a trace of its own."""
    with tracing.first("submit_many"):
        yield


@contextmanager
def each(
    items: Sequence[Item], lane: Lane
) -> Iterator[tuple[Sequence[Item], Callable[[Iterable[Outcome]], Iterator[Outcome]]]]:
    """Give each task of a batch a trace that is linked to the span under way.

    Yields the tasks, and what takes note of their outcomes as they pass.
    """
    if not tracing.is_on():
        yield items, iter
        return
    batch = tracing.current().traceparent
    links = [batch] if batch else []
    spans = {
        item.number: tracing.apart("submit", _about(lane), kind=Kind.PRODUCER, links=links) for item in items
    }

    def noted(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        for number, outcome in outcomes:
            became(spans[number], outcome)
            yield number, outcome

    try:
        yield [replace(item, traceparent=spans[item.number].traceparent) for item in items], noted
    finally:
        for span in spans.values():
            span.end()


def accepting(jobs: int) -> AbstractContextManager[Span]:
    """Write so many jobs in a span below the one under way."""
    return tracing.span("accept", {"pecia.jobs": jobs})


def sending(messages: Sequence[PartMessage]) -> AbstractContextManager[Span]:
    """Publish messages in a span below the one under way."""
    about: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": len(messages),
    }
    return tracing.span("send", about, kind=Kind.PRODUCER)


def became(span: Span, outcome: Accepted | SubmitError) -> None:
    """Say what became of a task. A key that was known names an earlier job, whose trace is another."""
    if isinstance(outcome, SubmitError):
        span.fail(type(outcome).__name__)
    else:
        span.tell({"pecia.job.id": str(outcome.view.id), "pecia.job.created": outcome.created})


def _about(lane: Lane) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "submit",
        "messaging.operation.type": "create",
        "pecia.lane": lane,
    }
