"""Batches: jobs that were submitted together, found by id, by how it begins or by name, and how far they are."""

from __future__ import annotations

from uuid import UUID

from pecia.errors import BatchNotFoundError
from pecia.listing import conditions, given, range_of, sql
from pecia.records import Batch, Counts, Listing
from pecia.statements import Connection, D_co, Statements, transaction
from pecia_schemas.failures import FailureCode
from pecia_schemas.states import JobState, as_prefix, is_whole, new_id

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
