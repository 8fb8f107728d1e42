"""A job as it was when it was last looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from pecia_schemas.encryption import DecryptionError, Keyring, unseal_label
from pecia_schemas.events import Progress
from pecia_schemas.failures import Failure
from pecia_schemas.states import JobState, Lane

COLUMNS: Final = """
    id, kind, lane, state, label, batch, metadata, total, done, failed, cancelled, failure,
    created_at, started_at, finished_at, erased_at
"""
"""What of a row of `jobs` makes a view of it."""


@lru_cache(maxsize=1024)
def progress(total: int | None, done: int, failed: int, cancelled: int) -> Progress:
    """Return the counts as one; jobs that are equally far share it, for there may be many of them."""
    return Progress(total=total, done=done, failed=failed, cancelled=cancelled)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The row of a job, without its task."""

    id: UUID
    kind: str
    lane: Lane
    state: JobState
    progress: Progress
    failure: Failure | None
    label: str | None
    """What the caller calls the document; None also if it is encrypted under a key that is not here."""
    batch: UUID | None
    metadata: Mapping[str, str]
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    erased_at: datetime | None

    @classmethod
    def of(cls, row: Mapping[str, Any], keys: Keyring) -> JobView:
        """Return the view of a row of `jobs`."""
        try:
            label = unseal_label(row["label"], row["id"], keys)
        except DecryptionError:
            label = None
        return cls(
            id=row["id"],
            kind=row["kind"],
            lane=Lane(row["lane"]),
            state=JobState(row["state"]),
            progress=progress(row["total"], row["done"], row["failed"], row["cancelled"]),
            failure=Failure.model_validate(row["failure"]) if row["failure"] else None,
            label=label,
            batch=row["batch"],
            metadata=MappingProxyType(row["metadata"]),
            submitted_at=row["created_at"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            erased_at=row["erased_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A job in the database; `created` is False if its key named it before."""

    view: JobView
    created: bool
    flow: UUID
    """With what it takes turns as one."""
