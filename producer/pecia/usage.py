"""What a fleet has worked on, and what it took: the sums over the accounts that parts keep in their rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from pecia.errors import InvalidOptionError
from pecia.records import Usage, UsageFigures
from pecia.statements import Connection, D_co, Statements, transaction

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
