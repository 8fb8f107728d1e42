"""Parts that the fleet has given up although nothing is wrong with their documents: they wait for a decision."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from pecia.errors import InvalidOptionError
from pecia.records import DeadPart
from pecia.statements import Connection, D_co, Statements, transaction
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import FailureCode

CODES = tuple(code for code in FailureCode if code.retryable or code is FailureCode.POISONED)
"""Failures that another attempt may mend: all attempts at the part are used up, or its workers died on it."""

# Of a job that is not wanted any more, or whose document is gone, nothing waits.
_DEAD = """
    SELECT parts.id, parts.job_id, jobs.state AS job_state, jobs.kind, parts.stage, parts.ordinal, parts.lane,
           parts.failure, parts.attempt AS attempts, parts.strikes, parts.deaths, parts.worker,
           parts.finished_at AS failed_at
    FROM parts JOIN jobs ON jobs.id = parts.job_id
    WHERE parts.state = 'failed' AND parts.failure->>'code' = ANY(CAST(:codes AS text[]))
      AND jobs.state NOT IN ('cancelled', 'expired') AND coalesce(jobs.erased_at, jobs.payload_released_at) IS NULL
"""

_LIST = f"""
    {_DEAD} AND parts.finished_at >= coalesce(CAST(:since AS timestamptz), '-infinity')
      AND (CAST(:job_id AS uuid) IS NULL OR parts.job_id = :job_id)
    ORDER BY parts.finished_at DESC, parts.id LIMIT :limit
    """

_CHOSEN = f"{_DEAD} AND parts.id = ANY(CAST(:part_ids AS uuid[])) ORDER BY parts.id"

_HISTORY = """
    SELECT job_events.* FROM job_events JOIN parts ON parts.id = :part_id AND parts.job_id = job_events.job_id
    WHERE job_events.part_id = :part_id ORDER BY sequence
    """


class DeadParts(Statements[D_co]):
    """All of them, as a client may ask for them."""

    @transaction
    def latest(
        self,
        connection: Connection,
        *,
        job_id: UUID | None,
        code: FailureCode | str | None,
        since: datetime | None,
        limit: int | None,
    ) -> list[DeadPart]:
        """Return those that failed last first. Raises `InvalidOptionError` for a code that is final."""
        if code is not None and code not in CODES:
            raise InvalidOptionError(f"What is dead failed with one of {', '.join(CODES)}; {code} is final.")
        codes = list(CODES if code is None else [code])
        asked = {"codes": codes, "job_id": job_id, "since": since, "limit": limit}
        return [DeadPart.of(dict(row)) for row in connection.execute(_LIST, asked).mappings()]

    @transaction
    def one(self, connection: Connection, part_id: UUID) -> DeadPart:
        """Return the part with its events. Raises `InvalidOptionError` if it is not one of them."""
        (part,) = _chosen(connection, [part_id])
        told = connection.execute(_HISTORY, {"part_id": part_id}).mappings()
        return part.model_copy(update={"events": tuple(JobEvent.model_validate(dict(row)) for row in told)})

    @transaction
    def chosen(self, connection: Connection, part_ids: Collection[UUID]) -> list[DeadPart]:
        """Return the parts. Raises `InvalidOptionError` if there is one among them that is not dead."""
        return _chosen(connection, part_ids)


def _chosen(connection: Connection, part_ids: Collection[UUID]) -> list[DeadPart]:
    asked = {"codes": list(CODES), "part_ids": list(part_ids)}
    parts = [DeadPart.of(dict(row)) for row in connection.execute(_CHOSEN, asked).mappings()]
    for missing in set(part_ids) - {part.id for part in parts}:
        raise InvalidOptionError(f"There is no dead part {missing}; `pecia dead list` shows those there are.")
    return parts
