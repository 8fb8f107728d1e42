"""The audit trail: who read which result, and what was erased. Names, ids and times; nothing of a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from pecia.errors import JobErasedError
from pecia.records import AuditAction, AuditEntry
from pecia.statements import Connection, D_co, Statements, transaction

_PAGE = 500

# Read after the result, in the same transaction: a result that is not erased now was whole when it was read.
_NOTE = """
    INSERT INTO reads (job_id, client, what)
    SELECT id, :client, :what FROM jobs WHERE id = :job_id AND erased_at IS NULL
    RETURNING id
    """

_ERASED_AT = "SELECT erased_at FROM jobs WHERE id = :job_id"

# Two tables, each by its own index; `before` is where the last page ended.
_ENTRIES = """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in the trail: after which of its rows the next page begins."""

    before: datetime | None = None
    source: int | None = None
    id: int | None = None

    @classmethod
    def after(cls, row: Mapping[str, Any]) -> Self:
        """Return the place after a row."""
        return cls(before=row["at"], source=row["source"], id=row["id"])


class TrailPages(Statements[D_co]):
    """What the database remembers of reading and erasing, page by page."""

    @transaction
    def page(
        self,
        connection: Connection,
        place: Place,
        *,
        job_id: UUID | None,
        client: str | None,
        since: datetime | None,
    ) -> tuple[list[AuditEntry], Place]:
        """Return the entries that fit and follow the place, newest first, and the place after them."""
        who = client and f"client:{client}"
        asked = {"job_id": job_id, "actor": who, "since": since, "limit": _PAGE, **asdict(place)}
        rows = connection.execute(_ENTRIES, asked).mappings().all()
        return [_entry(dict(row)) for row in rows], Place.after(dict(rows[-1])) if rows else place


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
