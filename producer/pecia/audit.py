"""The audit trail: who read which result, and what was erased. Names, ids and times; nothing of a document."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, text

from pecia.database import Database
from pecia.errors import JobErasedError

_PAGE = 500

# Read after the result, in the same transaction: a result that is not erased now was whole when it was read.
_NOTE = text(
    """
    INSERT INTO reads (job_id, client, what)
    SELECT id, :client, :what FROM jobs WHERE id = :job_id AND erased_at IS NULL
    RETURNING id
    """
)

_ERASED_AT = text("SELECT erased_at FROM jobs WHERE id = :job_id")

# Two tables, each by its own index; `before` is where the last page ended.
_ENTRIES = text(
    """
    SELECT * FROM (
        SELECT at, 0 AS source, id, job_id, 'client:' || client AS actor, what, NULL AS reason, NULL AS counts
        FROM reads
        UNION ALL
        SELECT at, 1, id, job_id, actor, 'erased', reason, counts FROM erasures
    ) AS trail
    WHERE at >= coalesce(CAST(:since AS timestamptz), '-infinity')
      AND (CAST(:job_id AS uuid) IS NULL OR job_id = :job_id)
      AND (CAST(:actor AS text) IS NULL OR actor = :actor)
      AND (CAST(:before AS timestamptz) IS NULL
           OR (at, source, id) < (:before, CAST(:source AS int), CAST(:id AS bigint)))
    ORDER BY at DESC, source DESC, id DESC
    LIMIT :limit
    """
)


class AuditAction(StrEnum):
    """What was done with a job's content."""

    RESULT = "result"
    """Its result was read as a whole."""
    PAGES = "pages"
    """Its pages were read one after the other, from then on."""
    ERASED = "erased"
    """Something of it was erased."""


class AuditEntry(BaseModel):
    """One line of the audit trail."""

    model_config = ConfigDict(frozen=True)

    at: datetime
    job_id: UUID
    actor: str
    """`client:NAME`, by the name that the client gave itself, or `upkeep`."""
    action: AuditAction
    reason: str | None = None
    """Why it was erased: what the purge was told, or `retention`."""
    counts: dict[str, int] = Field(default_factory=dict)
    """How much of each was erased."""


class AuditTrail:
    """What the database remembers of reading and erasing, newest first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(
        self, *, job_id: UUID | None, client: str | None, since: datetime | None
    ) -> Iterator[AuditEntry]:
        """Yield what fits, read page by page as it is asked for."""
        asked = {"job_id": job_id, "actor": client and f"client:{client}", "since": since, "limit": _PAGE}
        end: dict[str, Any] = {"before": None, "source": None, "id": None}
        while rows := self._page(asked | end):
            for row in rows:
                yield _entry(row)
            end = {"before": rows[-1]["at"], "source": rows[-1]["source"], "id": rows[-1]["id"]}

    def _page(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        return self._database.transaction(
            lambda connection: [dict(row) for row in connection.execute(_ENTRIES, asked).mappings()]
        )


def note_read(connection: Connection, job_id: UUID, *, client: str, what: AuditAction) -> None:
    """Write down, in the transaction that read it, who has read a job's result. Raises `JobErasedError`."""
    if connection.execute(_NOTE, {"job_id": job_id, "client": client, "what": what}).scalar() is None:
        erased_at = connection.execute(_ERASED_AT, {"job_id": job_id}).scalar()
        if erased_at is not None:
            raise JobErasedError(job_id, erased_at)


def _entry(row: dict[str, Any]) -> AuditEntry:
    return AuditEntry(
        at=row["at"],
        job_id=row["job_id"],
        actor=row["actor"],
        action=row["what"],
        reason=row["reason"],
        counts=row["counts"] or {},
    )
