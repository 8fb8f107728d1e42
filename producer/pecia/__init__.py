"""Pecia's client: hand documents to a fleet of readers, and get their text.

Names are imported when they are first used, so that `import pecia` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pecia.aio.client import AsyncClient
    from pecia.aio.job import AsyncJob, AsyncJobGroup
    from pecia.client import Client
    from pecia.errors import (
        AccessError,
        BatchNotFoundError,
        ConfigurationError,
        DatabaseRefusedError,
        DatabaseUnavailableError,
        DocumentGoneError,
        GatewayUnavailableError,
        IdempotencyConflictError,
        InvalidFormatError,
        InvalidOptionError,
        InvalidSettingError,
        InvalidSourceError,
        JobCancelledError,
        JobErasedError,
        JobError,
        JobExpiredError,
        JobFailedError,
        JobNotFoundError,
        JobTimeoutError,
        PayloadStoreUnavailableError,
        PeciaError,
        QueueFullError,
        RetryRefusedError,
        SubmitError,
        SubmitManyError,
        UnavailableError,
        WebhookVerificationError,
        WrongLoopError,
    )
    from pecia.formats import Format
    from pecia.job import Job, JobGroup
    from pecia.records import (
        AuditAction,
        AuditEntry,
        Batch,
        Counts,
        DeadPart,
        Delivery,
        DeliveryAttempt,
        DocumentFate,
        Endpoint,
        Erasure,
        Exported,
        FoundPage,
        Percentiles,
        Usage,
        UsageFigures,
    )
    from pecia.saving import ExportFormat
    from pecia.submission import Submission
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
    from pecia_schemas.events import JobEvent, JobNotice, NoticeType, Progress, Webhook
    from pecia_schemas.failures import Failure, FailureCode
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
        Verdict,
    )
    from pecia_schemas.settings import ClientSettings
    from pecia_schemas.states import DeliveryState, JobState, Lane
    from pecia_schemas.tasks import (
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

_HOMES = (
    *("pecia.errors", "pecia_schemas.states", "pecia_schemas.failures", "pecia_schemas.events"),
    *("pecia_schemas.blocks", "pecia_schemas.results", "pecia.records", "pecia.submission", "pecia.client"),
    *("pecia.job", "pecia.aio.client", "pecia.aio.job", "pecia_schemas.tasks", "pecia_schemas.settings"),
    *("pecia.formats", "pecia.saving"),
)
"""Where a name is looked for, in this order: what is slow to load comes late."""

__all__ = [
    "AccessError",
    "AsyncClient",
    "AsyncJob",
    "AsyncJobGroup",
    "AuditAction",
    "AuditEntry",
    "Batch",
    "BatchNotFoundError",
    "Block",
    "BlockKind",
    "Box",
    "CachedFrom",
    "CaptionStyle",
    "CaptionVideo",
    "Captions",
    "Cell",
    "Change",
    "Client",
    "ClientSettings",
    "ConfigurationError",
    "Correction",
    "Counts",
    "DatabaseRefusedError",
    "DatabaseUnavailableError",
    "DeadPart",
    "Delivery",
    "DeliveryAttempt",
    "DeliveryState",
    "Document",
    "DocumentFate",
    "DocumentGoneError",
    "DocumentType",
    "Doubt",
    "DoubtReason",
    "Endpoint",
    "Erasure",
    "ExportFormat",
    "Exported",
    "Failure",
    "FailureCode",
    "Format",
    "FoundPage",
    "GatewayUnavailableError",
    "GenerationOptions",
    "Grounding",
    "IdempotencyConflictError",
    "InvalidFormatError",
    "InvalidOptionError",
    "InvalidSettingError",
    "InvalidSourceError",
    "Job",
    "JobCancelledError",
    "JobErasedError",
    "JobError",
    "JobEvent",
    "JobExpiredError",
    "JobFailedError",
    "JobGroup",
    "JobNotFoundError",
    "JobNotice",
    "JobState",
    "JobTimeoutError",
    "Lane",
    "Line",
    "Mark",
    "MarkKind",
    "MarkState",
    "MergeRule",
    "NoticeType",
    "Page",
    "PageFailure",
    "PayloadStoreUnavailableError",
    "PeciaError",
    "Percentiles",
    "Place",
    "Prefer",
    "Preparation",
    "Preset",
    "Progress",
    "QueueFullError",
    "ReadDocument",
    "ReadingAttempt",
    "RetryRefusedError",
    "Revision",
    "Segment",
    "SegmentFailure",
    "Shrunk",
    "Source",
    "Standing",
    "Submission",
    "SubmitError",
    "SubmitManyError",
    "Summary",
    "Table",
    "Task",
    "UnavailableError",
    "Usage",
    "UsageFigures",
    "Verdict",
    "Webhook",
    "WebhookVerificationError",
    "Witness",
    "Witnessed",
    "Word",
    "WrongLoopError",
]


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        module = import_module(home)
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
