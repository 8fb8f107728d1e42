"""The spans of a submit, in each of which a job's trace begins; for a client of either kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from pecia.bulk import Item, Outcome, Outcomes
from pecia.errors import SubmitError
from pecia.handles import Accepted
from pecia_schemas import tracing
from pecia_schemas.messages import PartMessage
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


def each(
    items: Sequence[Item], lane: Lane, ending: ExitStack
) -> tuple[Sequence[Item], Callable[[Outcomes], Outcomes]]:
    """Give each task of a batch a trace that is linked to the span under way and ends with `ending`.

    Returns the tasks, and what takes note of their outcomes as they pass.
    """
    if not tracing.is_on():
        return items, lambda outcomes: outcomes
    batch = tracing.current().traceparent
    links = [batch] if batch else []
    spans = {
        item.number: tracing.apart("submit", _about(lane), kind=Kind.PRODUCER, links=links) for item in items
    }

    def noted(outcomes: Outcomes) -> Iterator[Outcome]:
        for number, outcome in outcomes:
            became(spans[number], outcome)
            yield number, outcome

    for span in spans.values():
        ending.callback(span.end)
    return [replace(item, traceparent=spans[item.number].traceparent) for item in items], noted


def accepting(jobs: int) -> AbstractContextManager[Span]:
    """Write so many jobs in a span below the one under way."""
    return tracing.span("accept", {"pecia.jobs": jobs})


def sending(messages: Sequence[PartMessage]) -> AbstractContextManager[Span]:
    """Publish messages in a span below the one under way."""
    return tracing.span("send", tracing.messaging("send", len(messages)), kind=Kind.PRODUCER)


def became(span: Span, outcome: Accepted | SubmitError) -> None:
    """Say what became of a task. A key that was known names an earlier job, whose trace is another."""
    if isinstance(outcome, SubmitError):
        span.fail(type(outcome).__name__)
    else:
        span.tell({"pecia.job.id": str(outcome.view.id), "pecia.job.created": outcome.created})


def _about(lane: Lane) -> Attributes:
    return tracing.messaging("submit") | {"messaging.operation.type": "create", "pecia.lane": lane}
