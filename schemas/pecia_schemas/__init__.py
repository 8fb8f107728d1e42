"""The contract between clients, workers and migrations: tasks, results, states, failures, events.

Names are imported when they are first used: who lists jobs needs neither tasks nor results.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pecia_schemas.blocks import (
        Block,
        BlockKind,
        Box,
        Cell,
        Doubt,
        DoubtReason,
        Grounding,
        Line,
        Mark,
        MarkKind,
        MarkState,
        MergeRule,
        Place,
        Source,
        Standing,
        Table,
        Witnessed,
        Word,
    )
    from pecia_schemas.events import JobEvent, JobNotice, NoticeData, NoticeType, Progress, Webhook
    from pecia_schemas.failures import Failure, FailureCode
    from pecia_schemas.media import MediaType, PayloadRef, UrlRef
    from pecia_schemas.results import (
        CachedFrom,
        Captions,
        Change,
        Correction,
        Document,
        Page,
        PageFailure,
        ReadingAttempt,
        Revision,
        Segment,
        SegmentFailure,
        Shrunk,
        Summary,
        Timings,
        TokenUsage,
        Verdict,
    )
    from pecia_schemas.states import JobState, Lane, PartState, Stage, new_id
    from pecia_schemas.tasks import (
        AnyTask,
        CaptionStyle,
        CaptionVideo,
        DocumentType,
        GenerationOptions,
        Prefer,
        Preparation,
        Preset,
        ReadDocument,
        Task,
        Witness,
    )

__all__ = [
    "AnyTask",
    "Block",
    "BlockKind",
    "Box",
    "CachedFrom",
    "CaptionStyle",
    "CaptionVideo",
    "Captions",
    "Cell",
    "Change",
    "Correction",
    "Document",
    "DocumentType",
    "Doubt",
    "DoubtReason",
    "Failure",
    "FailureCode",
    "GenerationOptions",
    "Grounding",
    "JobEvent",
    "JobNotice",
    "JobState",
    "Lane",
    "Line",
    "Mark",
    "MarkKind",
    "MarkState",
    "MediaType",
    "MergeRule",
    "NoticeData",
    "NoticeType",
    "Page",
    "PageFailure",
    "PartState",
    "PayloadRef",
    "Place",
    "Prefer",
    "Preparation",
    "Preset",
    "Progress",
    "ReadDocument",
    "ReadingAttempt",
    "Revision",
    "Segment",
    "SegmentFailure",
    "Shrunk",
    "Source",
    "Stage",
    "Standing",
    "Summary",
    "Table",
    "Task",
    "Timings",
    "TokenUsage",
    "UrlRef",
    "Verdict",
    "Webhook",
    "Witness",
    "Witnessed",
    "Word",
    "new_id",
]

_HOMES = ("states", "failures", "media", "events", "blocks", "results", "tasks")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
