"""What `import pecia` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from typing import get_type_hints

import pytest

import pecia
from pecia import errors

PUBLIC = [
    "AsyncClient",
    "AsyncJob",
    "AsyncJobGroup",
    "AuditAction",
    "AuditEntry",
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
    "Failure",
    "FailureCode",
    "Format",
    "FoundPage",
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
    "Mark",
    "MarkKind",
    "MarkState",
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
    "Source",
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
    "Word",
    "WrongLoopError",
]


def test_the_public_names_are_these() -> None:
    assert sorted(pecia.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(pecia))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pecia, name).__name__ == name


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Klient"):
        _ = pecia.Klient  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_pecia_imports_nothing_that_costs() -> None:
    script = "import sys; import pecia; print([m for m in ('sqlalchemy', 'redis', 'pydantic') if m in sys.modules])"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PeciaError)
    }
    told = {word.strip(":") for word in (errors.__doc__ or "").split() if word.endswith("Error")}
    assert names == told - {"ValueError", "LookupError", "RuntimeError", "TimeoutError"}


@pytest.mark.parametrize("name", ["submit", "submit_many"])
def test_submits_take_the_same_options(name: str) -> None:
    hints = get_type_hints(getattr(pecia.Client, name))
    assert {"priority", "webhook", "metadata", "not_before", "expires"} <= set(hints)
