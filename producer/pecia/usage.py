"""What a fleet has worked on, and what it took: the sums over the accounts that parts keep in their rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, TextClause, text

from pecia.errors import InvalidOptionError
from pecia.statements import D_co, Statements, transaction
from pecia_schemas.results import TokenUsage

_METADATA = "metadata:"
_GROUPS = {
    "document_type": "jobs.task->>'document_type'",
    "kind": "jobs.kind",
    "lane": "parts.lane",
    "engine": "parts.engine",
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


_COUNTS = ("name", "jobs", "parts", "pages", "segments", "reused", "saved")


class _Figures(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class Percentiles(_Figures):
    """Seconds that half of the parts, and 95 of 100, stayed below."""

    p50: float
    p95: float


class UsageFigures(_Figures):
    """Sums over parts that an engine has worked on, all their attempts counted."""

    name: str | None = None
    """What they have in common, by `Usage.by`; None if they lack it, or for a total."""
    jobs: int
    parts: int
    pages: int
    """Of the parts, the pages that were read."""
    segments: int
    """Of the parts, the stretches of videos that were captioned."""
    reused: int
    """Of the parts, those whose result was that of an earlier reading."""
    saved: int
    """Tokens that those earlier readings took, prompt and output, and that were not spent again."""
    tokens: TokenUsage
    decode_s: float
    """Seconds in which parts were fetched and decoded, side by side."""
    engine_s: float
    """Seconds in which the engine had parts, side by side: ten at a time for one second are ten."""
    queued_s: Percentiles | None
    """How long they waited in their lane; None without parts."""
    first_token_s: Percentiles | None
    """How long the engine took to the first token; None for an engine that cannot tell."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the figures of a row of sums."""
        return cls(
            **{name: row[name] for name in _COUNTS},
            tokens=TokenUsage(**{name: row[name] for name in TokenUsage.model_fields}),
            decode_s=row["decode_s"],
            engine_s=row["engine_s"],
            queued_s=_percentiles(row["queued_s"]),
            first_token_s=_percentiles(row["first_token_s"]),
        )


class Usage(_Figures):
    """What ended since a point in time: all of it, and in groups."""

    since: datetime | None
    by: str | None
    """What the groups are told apart by."""
    total: UsageFigures
    groups: tuple[UsageFigures, ...]
    """In the order of their names; empty without `by`."""


class Accounts(Statements[D_co]):
    """The accounts of all parts, as a client may ask for them."""

    @transaction
    def since(self, connection: Connection, moment: datetime | None, by: str | None) -> Usage:
        """Return the sums over the parts that have ended since. Raises `InvalidOptionError` for an unknown `by`."""
        rows = _rows(connection, _sums(by, _ENDED_SINCE).bindparams(since=moment))
        return Usage(
            since=moment,
            by=by,
            total=next(UsageFigures.of(row) for row in rows if row["total"]),
            groups=tuple(UsageFigures.of(row) for row in rows if by and not row["total"]),
        )

    @transaction
    def of_job(self, connection: Connection, job_id: UUID) -> UsageFigures:
        """Return the sums over one job's parts, those that are tried again included."""
        rows = _rows(connection, _sums(None, _OF_JOB).bindparams(job_id=job_id))
        return next(UsageFigures.of(row) for row in rows if row["total"])


def _rows(connection: Connection, query: TextClause) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _sums(by: str | None, which: str) -> TextClause:
    if by is None:
        return text(_SUMS.format(name="CAST(NULL AS text)", which=which))
    if by in _GROUPS:
        return text(_SUMS.format(name=_GROUPS[by], which=which))
    key = by.removeprefix(_METADATA)
    if key in ("", by):
        raise InvalidOptionError(f"Usage is told apart by {', '.join(_GROUPS)} or {_METADATA}KEY.")
    return text(_SUMS.format(name="jobs.metadata->>CAST(:key AS text)", which=which)).bindparams(key=key)


def _percentiles(seconds: list[float] | None) -> Percentiles | None:
    return Percentiles(p50=seconds[0], p95=seconds[1]) if seconds and seconds[0] is not None else None
