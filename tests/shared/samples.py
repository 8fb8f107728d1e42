"""What tests need with every field that must be there; a test names those that matter to it."""

from datetime import timedelta
from typing import Any

import numpy as np

from pecia_schemas.results import Page, Segment, Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.protocol.base import EngineRequest

_HOW: dict[str, Any] = {"verdict": Verdict.OK, "engine": "test"}


def page(number: int = 1, **about: Any) -> Page:
    """Return a page, of a `text` or of blocks."""
    return Page.model_validate({"number": number, "width": 600, "height": 800, **_HOW, **about})


def segment(number: int, text: str, start: float = 0, end: float = 30, **about: Any) -> Segment:
    """Return a segment of a video, its times in seconds."""
    times = {"start": timedelta(seconds=start), "end": timedelta(seconds=end)}
    size = {"frames": 8, "width": 640, "height": 360}
    return Segment.model_validate({"number": number, "text": text, **times, **size, **_HOW, **about})


def engine_request(name: str = "page", side: int = 280, **about: Any) -> EngineRequest:
    """Return a request about a black page, so many pixels wide and high."""
    page = np.zeros((side, side, 3), np.uint8)
    usual: dict[str, Any] = {"images": (page,), "workload": DocumentType.LAB_RESULT, "priority": 1}
    return EngineRequest(id=name, **(usual | about))
