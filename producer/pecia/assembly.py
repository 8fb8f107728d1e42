"""From the outcomes of a job's parts to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pecia.records import PartOutcome
from pecia_schemas.results import (
    Captions,
    Document,
    Page,
    PageFailure,
    Segment,
    SegmentFailure,
    Summary,
)
from pecia_schemas.states import Stage
from pecia_schemas.tasks import CaptionVideo, ReadDocument


def assemble(kind: str, outcomes: Sequence[PartOutcome]) -> Document | Captions:
    """Return the result of a job of this kind. Raises `KeyError` for a kind this version does not know."""
    assemblers: dict[str, Callable[[Sequence[PartOutcome]], Document | Captions]] = {
        ReadDocument.kind: document,
        CaptionVideo.kind: captions,
    }
    return assemblers[kind](outcomes)


def document(outcomes: Sequence[PartOutcome]) -> Document:
    """Return the document: its pages, and why others are missing."""
    return Document(
        pages=tuple(page(outcome) for outcome in outcomes if outcome.content is not None),
        failed=tuple(
            PageFailure(number=outcome.ordinal + 1, failure=outcome.failure)
            for outcome in outcomes
            if outcome.failure is not None
        ),
    )


def page(outcome: PartOutcome) -> Page:
    """Return the page that a part was read into."""
    return Page.model_validate(outcome.content)


def captions(outcomes: Sequence[PartOutcome]) -> Captions:
    """Return the captions: its segments, why others are missing, and the summary if there is one."""
    segments = [outcome for outcome in outcomes if outcome.stage == Stage.CAPTION]
    summaries = [outcome for outcome in outcomes if outcome.stage == Stage.SUMMARIZE and outcome.content]
    return Captions(
        segments=tuple(Segment.model_validate(outcome.content) for outcome in segments if outcome.content),
        failed=tuple(
            SegmentFailure(number=outcome.ordinal + 1, failure=outcome.failure)
            for outcome in segments
            if outcome.failure is not None
        ),
        summary=Summary.model_validate(summaries[0].content) if summaries else None,
    )
