"""Which jobs, batches and dead parts a caller wants to see, in SQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pecia.errors import BatchNotFoundError, InvalidOptionError
from pecia.records import Batch, Counts, DeadPart, Listing
from pecia.statements import Connection, D_co, Statements, transaction
from pecia_schemas.events import JobEvent
from pecia_schemas.failures import FailureCode
from pecia_schemas.states import JobState, as_prefix, is_whole, new_id

_CLOCK_SKEW = timedelta(days=1)  # ids carry the clock of the client that made them
_FIRST_IDS = datetime.fromtimestamp(0, UTC) + _CLOCK_SKEW  # and no time before


def conditions(listing: Listing, tenant: str | None) -> dict[str, dict[str, Any]]:
    """Return the conditions on jobs, in SQL, each with its parameters."""
    found: dict[str, dict[str, Any]] = {}
    if tenant is not None:
        found["jobs.tenant = :tenant"] = {"tenant": tenant}
    if listing.batch is not None:
        found["jobs.batch = :batch"] = {"batch": listing.batch}
    if listing.prefix:
        found["jobs.id BETWEEN :lowest AND :highest"] = range_of(listing.prefix)
    if listing.part is not None:
        found["jobs.id = (SELECT job_id FROM parts WHERE id = :part)"] = {"part": listing.part}
    if listing.states:
        found["jobs.state = ANY(CAST(:states AS text[]))"] = {"states": list(listing.states)}
    if listing.verdicts:
        found[
            """EXISTS (
                SELECT FROM parts AS page WHERE page.job_id = jobs.id AND page.stage = 'read'
                  AND page.verdict = ANY(CAST(:with_verdicts AS text[])))"""
        ] = {"with_verdicts": list(listing.verdicts)}
    if listing.kind is not None:
        found["jobs.kind = :kind"] = {"kind": listing.kind}
    if listing.metadata:
        found["jobs.metadata @> CAST(:metadata AS jsonb)"] = {"metadata": json.dumps(dict(listing.metadata))}
    return found if listing.since is None else found | _since(listing.since)


def _since(since: datetime) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"jobs.created_at >= :since": {"since": since}}
    if since > _FIRST_IDS:
        found["jobs.id >= :oldest"] = {"oldest": _oldest_id(since - _CLOCK_SKEW)}
    return found


def range_of(prefix: str) -> dict[str, UUID]:
    """Return the least and the greatest id that begins so: the primary key finds what lies between them."""
    digits = prefix.replace("-", "")
    return {"lowest": UUID(digits.ljust(32, "0")), "highest": UUID(digits.ljust(32, "f"))}


def sql(wanted: Mapping[str, Mapping[str, Any]]) -> str:
    """Return SQL that is true where all of the conditions are."""
    return " AND ".join(wanted) or "true"


def given(wanted: Mapping[str, Mapping[str, Any]], **others: Any) -> dict[str, Any]:
    """Return the parameters of all the conditions, and the others."""
    return {name: value for parameters in wanted.values() for name, value in parameters.items()} | others


def _oldest_id(since: datetime) -> UUID:
    """Return the least UUIDv7 of that moment: it lets the primary key end the search."""
    return UUID(int=int(since.timestamp() * 1000) << 80)


_OWN = "(CAST(:tenant AS text) IS NULL OR tenant = :tenant)"

_OPEN = """
    INSERT INTO batches (id, name, tenant) VALUES (:id, :name, :tenant)
    ON CONFLICT (coalesce(tenant, ''), name) DO UPDATE SET opened_at = now()
    RETURNING id, name, created_at
    """
_REOPEN = f"UPDATE batches SET opened_at = now() WHERE id = :id AND {_OWN} RETURNING id, name, created_at"  # noqa: S608
_BY_NAME = f"""
    SELECT id, name, created_at FROM batches WHERE name = :name AND {_OWN} ORDER BY tenant NULLS FIRST LIMIT 1
    """  # noqa: S608  constants
_BY_ID = f"""
    SELECT id, name, created_at FROM batches WHERE id BETWEEN :lowest AND :highest AND {_OWN} LIMIT 2
    """  # noqa: S608  as above

_COUNT = """
    SELECT state, count(*) AS jobs, coalesce(sum(total), 0) AS parts, sum(done) AS done, sum(failed) AS failed,
           sum(cancelled) AS cancelled, count(*) FILTER (WHERE total IS NULL) AS uncut
    FROM jobs WHERE {wanted} GROUP BY state
    """
_FAILURES = """
    SELECT parts.failure->>'code' AS code, count(*) AS number FROM parts
    WHERE parts.state = 'failed' AND parts.job_id = ANY(ARRAY(
        SELECT jobs.id FROM jobs WHERE (jobs.failed > 0 OR jobs.state = 'failed') AND {wanted}
    )) GROUP BY 1 ORDER BY 2 DESC, 1
    """


class BatchStatements(Statements[D_co]):
    """What a client asks of batches. With a `tenant` it finds that one's alone."""

    def __init__(self, database: D_co, *, tenant: str | None) -> None:
        super().__init__(database)
        self._tenant = tenant

    @transaction
    def open_batch(self, connection: Connection, name: str | None) -> Batch:
        """Return a new batch, or the one that has this name already; for an id, the batch of it.

        Raises `BatchNotFoundError` for an id that there is not.
        """
        asked = {"id": new_id(), "name": name, "tenant": self._tenant}
        if name and is_whole(name):
            known = connection.execute(_REOPEN, {"id": UUID(name), "tenant": self._tenant}).mappings().first()
            if known is None:
                raise BatchNotFoundError(name)
            return Batch(**known)
        return Batch(**connection.execute(_OPEN, asked).mappings().first())

    @transaction
    def batch(self, connection: Connection, reference: str) -> Batch:
        """Return the batch of this name or id, or the only one whose id begins so. Raises `BatchNotFoundError`."""
        found = connection.execute(_BY_NAME, {"name": reference, "tenant": self._tenant}).mappings().all()
        if not found and (prefix := as_prefix(reference)):
            asked = range_of(prefix) | {"tenant": self._tenant}
            found = connection.execute(_BY_ID, asked).mappings().all()
        if len(found) != 1:
            raise BatchNotFoundError(reference)
        return Batch(**found[0])

    @transaction
    def counts(self, connection: Connection, listing: Listing) -> Counts:
        """Return how far the jobs are."""
        wanted = conditions(listing, self._tenant)
        rows = connection.execute(_COUNT.format(wanted=sql(wanted)), given(wanted)).mappings().all()
        sums = {
            name: sum(int(row[name]) for row in rows)
            for name in ("parts", "done", "failed", "cancelled", "uncut")
        }
        codes = (
            connection.execute(_FAILURES.format(wanted=sql(wanted)), given(wanted))
            if sums["failed"] or any(row["state"] == JobState.FAILED for row in rows)
            else ()
        )
        return Counts(
            states={JobState(row["state"]): row["jobs"] for row in rows},
            failures={FailureCode[code.upper()]: number for code, number in codes},
            **sums,
        )


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
