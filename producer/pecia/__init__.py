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
        ConfigurationError,
        DatabaseRefusedError,
        DatabaseUnavailableError,
        DocumentGoneError,
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
        DeadPart,
        Delivery,
        DeliveryAttempt,
        DocumentFate,
        Endpoint,
        Erasure,
        Percentiles,
        Usage,
        UsageFigures,
    )
    from pecia_schemas.events import JobEvent, JobNotice, NoticeType, Progress, Webhook
    from pecia_schemas.failures import Failure, FailureCode
    from pecia_schemas.results import (
        CachedFrom,
        Captions,
        Change,
        Document,
        Line,
        Page,
        PageFailure,
        ReadingAttempt,
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
        Preparation,
        Preset,
        ReadDocument,
        Task,
    )

_HOMES = {
    "pecia.aio.client": ["AsyncClient"],
    "pecia.aio.job": ["AsyncJob", "AsyncJobGroup"],
    "pecia.client": ["Client"],
    "pecia.errors": [
        "ConfigurationError",
        "DatabaseRefusedError",
        "DatabaseUnavailableError",
        "DocumentGoneError",
        "IdempotencyConflictError",
        "InvalidFormatError",
        "InvalidOptionError",
        "InvalidSettingError",
        "InvalidSourceError",
        "JobCancelledError",
        "JobErasedError",
        "JobError",
        "JobExpiredError",
        "JobFailedError",
        "JobNotFoundError",
        "JobTimeoutError",
        "PayloadStoreUnavailableError",
        "PeciaError",
        "QueueFullError",
        "RetryRefusedError",
        "SubmitError",
        "SubmitManyError",
        "UnavailableError",
        "WebhookVerificationError",
        "WrongLoopError",
    ],
    "pecia.formats": ["Format"],
    "pecia.job": ["Job", "JobGroup"],
    "pecia.records": [
        "AuditAction",
        "AuditEntry",
        "DeadPart",
        "Delivery",
        "DeliveryAttempt",
        "DocumentFate",
        "Endpoint",
        "Erasure",
        "Percentiles",
        "Usage",
        "UsageFigures",
    ],
    "pecia_schemas.events": ["JobEvent", "JobNotice", "NoticeType", "Progress", "Webhook"],
    "pecia_schemas.failures": ["Failure", "FailureCode"],
    "pecia_schemas.results": [
        "CachedFrom",
        "Captions",
        "Change",
        "Document",
        "Line",
        "Page",
        "PageFailure",
        "ReadingAttempt",
        "Segment",
        "SegmentFailure",
        "Shrunk",
        "Summary",
        "Verdict",
    ],
    "pecia_schemas.settings": ["ClientSettings"],
    "pecia_schemas.states": ["DeliveryState", "JobState", "Lane"],
    "pecia_schemas.tasks": [
        "CaptionStyle",
        "CaptionVideo",
        "DocumentType",
        "GenerationOptions",
        "Preparation",
        "Preset",
        "ReadDocument",
        "Task",
    ],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncJobGroup",
    "AuditAction",
    "AuditEntry",
    "CachedFrom",
    "CaptionStyle",
    "CaptionVideo",
    "Captions",
    "Change",
    "Client",
    "ClientSettings",
    "ConfigurationError",
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
    "Endpoint",
    "Erasure",
    "Failure",
    "FailureCode",
    "Format",
    "GenerationOptions",
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
    "NoticeType",
    "Page",
    "PageFailure",
    "PayloadStoreUnavailableError",
    "PeciaError",
    "Percentiles",
    "Preparation",
    "Preset",
    "Progress",
    "QueueFullError",
    "ReadDocument",
    "ReadingAttempt",
    "RetryRefusedError",
    "Segment",
    "SegmentFailure",
    "Shrunk",
    "SubmitError",
    "SubmitManyError",
    "Summary",
    "Task",
    "UnavailableError",
    "Usage",
    "UsageFigures",
    "Verdict",
    "Webhook",
    "WebhookVerificationError",
    "WrongLoopError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
