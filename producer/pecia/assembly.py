"""From the outcomes of a job's parts to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pecia.store import PartOutcome
from pecia_schemas.results import Captions, Document, Page, PageFailure, Segment
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
    """Return the captions: one segment for each part that has one."""
    return Captions(
        segments=tuple(
            Segment.model_validate(outcome.content) for outcome in outcomes if outcome.content is not None
        )
    )
