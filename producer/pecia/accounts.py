"""What a fleet has worked on and what it took, and who read or erased what. Names, ids and times; no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from pecia.errors import InvalidOptionError, JobErasedError
from pecia.records import AuditAction, AuditEntry, Usage, UsageFigures
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


_METADATA = "metadata:"
_GROUPS = {
    "document_type": "jobs.task->>'document_type'",
    "kind": "jobs.kind",
    "lane": "parts.lane",
    "engine": "parts.engine",
    "tenant": "jobs.tenant",
}

_SUMS = """
    SELECT grouping(name) = 1 AS total, name, count(DISTINCT job_id) AS jobs, count(*) AS parts,
           count(*) FILTER (WHERE state = 'done' AND stage = 'read') AS pages,
           count(*) FILTER (WHERE state = 'done' AND stage = 'caption') AS segments,
           coalesce(sum(prompt_tokens), 0) AS prompt, coalesce(sum(image_tokens), 0) AS image,
           coalesce(sum(cached_tokens), 0) AS cached, coalesce(sum(output_tokens), 0) AS output,
           coalesce(sum(wasted_tokens), 0) AS wasted,
           count(saved_tokens) AS reused, coalesce(sum(saved_tokens), 0) AS saved,
           coalesce(sum(decode_s), 0) AS decode_s, coalesce(sum(engine_s), 0) AS engine_s,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY queued_s) AS queued_s,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY first_token_s) AS first_token_s
    FROM (
        SELECT parts.*, {name} AS name FROM parts JOIN jobs ON jobs.id = parts.job_id
        WHERE parts.engine IS NOT NULL AND {which}
    ) AS worked
    GROUP BY GROUPING SETS ((name), ())
    ORDER BY name NULLS LAST
"""
_ENDED_SINCE = "parts.finished_at >= coalesce(CAST(:since AS timestamptz), '-infinity')"
_OF_JOB = "parts.job_id = :job_id"


class Accounts(Statements[D_co]):
    """The accounts of all parts, as a client may ask for them."""

    @transaction
    def since(self, connection: Connection, moment: datetime | None, by: str | None) -> Usage:
        """Return the sums over the parts that have ended since. Raises `InvalidOptionError` for an unknown `by`."""
        key = (by or "").removeprefix(_METADATA)
        rows = _rows(connection, _sums(by, _ENDED_SINCE), {"since": moment, "key": key})
        return Usage(
            since=moment,
            by=by,
            total=next(UsageFigures.of(row) for row in rows if row["total"]),
            groups=tuple(UsageFigures.of(row) for row in rows if by and not row["total"]),
        )

    @transaction
    def of_job(self, connection: Connection, job_id: UUID) -> UsageFigures:
        """Return the sums over one job's parts, those that are tried again included."""
        rows = _rows(connection, _sums(None, _OF_JOB), {"job_id": job_id})
        return next(UsageFigures.of(row) for row in rows if row["total"])


def _rows(connection: Connection, query: str, asked: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return connection.execute(query, asked).mappings().all()


def _sums(by: str | None, which: str) -> str:
    if by is None:
        return _SUMS.format(name="CAST(NULL AS text)", which=which)
    if by in _GROUPS:
        return _SUMS.format(name=_GROUPS[by], which=which)
    key = by.removeprefix(_METADATA)
    if key in ("", by):
        raise InvalidOptionError(f"Usage is told apart by {', '.join(_GROUPS)} or {_METADATA}KEY.")
    return _SUMS.format(name="jobs.metadata->>CAST(:key AS text)", which=which)
