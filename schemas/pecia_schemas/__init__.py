"""The contract between clients, workers and migrations: tasks, results, states, failures, events."""

from pecia_schemas.events import JobEvent, JobNotice, NoticeData, NoticeType, Progress, Webhook
from pecia_schemas.failures import Failure, FailureCode
from pecia_schemas.ids import new_id
from pecia_schemas.media import MediaType
from pecia_schemas.results import (
    Box,
    Captions,
    Document,
    Line,
    Page,
    PageFailure,
    Segment,
    Timings,
    TokenUsage,
    Verdict,
)
from pecia_schemas.states import JobState, Lane, PartState, Stage
from pecia_schemas.tasks import AnyTask, CaptionVideo, DocumentType, PayloadRef, ReadDocument, Source, Task

__all__ = [
    "AnyTask",
    "Box",
    "CaptionVideo",
    "Captions",
    "Document",
    "DocumentType",
    "Failure",
    "FailureCode",
    "JobEvent",
    "JobNotice",
    "JobState",
    "Lane",
    "Line",
    "MediaType",
    "NoticeData",
    "NoticeType",
    "Page",
    "PageFailure",
    "PartState",
    "PayloadRef",
    "Progress",
    "ReadDocument",
    "Segment",
    "Source",
    "Stage",
    "Task",
    "Timings",
    "TokenUsage",
    "Verdict",
    "Webhook",
    "new_id",
]
