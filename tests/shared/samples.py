"""A part, a page and a segment with every field that must be there; a test names those that matter to it."""

from datetime import timedelta
from typing import Any

from pecia_schemas.results import Page, Segment, Verdict
from pecia_schemas.states import Lane, Stage, new_id
from pecia_workers.ledger.commit import ClaimedPart

_HOW: dict[str, Any] = {"verdict": Verdict.OK, "engine": "test"}


def claimed_part(**changes: Any) -> ClaimedPart:
    """Return the first attempt at an urgent page."""
    usual: dict[str, Any] = {
        "id": new_id(),
        "job_id": new_id(),
        "stage": Stage.READ,
        "ordinal": 0,
        "attempt": 1,
        "strikes": 0,
        "deaths": 0,
        "lane": Lane.URGENT,
        "start_s": None,
        "end_s": None,
        "kind": "document.read",
        "stored_task": {},
        "queued_s": 1.5,
    }
    return ClaimedPart(**(usual | changes))


def page(number: int = 1, **about: Any) -> Page:
    """Return a page, of a `text` or of blocks."""
    return Page.model_validate({"number": number, "width": 600, "height": 800, **_HOW, **about})


def segment(number: int, text: str, start: float = 0, end: float = 30, **about: Any) -> Segment:
    """Return a segment of a video, its times in seconds."""
    times = {"start": timedelta(seconds=start), "end": timedelta(seconds=end)}
    size = {"frames": 8, "width": 640, "height": 360}
    return Segment.model_validate({"number": number, "text": text, **times, **size, **_HOW, **about})
