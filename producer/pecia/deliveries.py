"""Deliveries: what webhooks were told, or are to be told, and how each try went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pecia.errors import InvalidOptionError
from pecia.records import NO_SECRET, Delivery, DeliveryAttempt
from pecia.statements import Connection, D_co, Statements, transaction, unrepeatable
from pecia_schemas.duty import UNSIGNED
from pecia_schemas.states import DeliveryState

# A tenant is not told of the endpoints that are told of all jobs: these are the operator's.
_OF_TENANT = """CASE WHEN endpoint_id IS NULL
    THEN EXISTS (SELECT FROM jobs WHERE jobs.id = job_id AND jobs.tenant = :tenant)
    ELSE EXISTS (SELECT FROM endpoints WHERE endpoints.id = endpoint_id AND endpoints.tenant = :tenant) END"""

_FOUND = f"""
    SELECT id, job_id, endpoint_id, type, url, state, created_at, next_at, finished_at, last_status,
           CASE WHEN state = 'pending' AND endpoint_id IS NULL AND {UNSIGNED} THEN '{NO_SECRET}' ELSE last_error END
               AS last_error
    FROM deliveries
    WHERE (CAST(:tenant AS text) IS NULL OR {_OF_TENANT})
"""  # noqa: S608  constants

_LIST = f"""
    {_FOUND}
      AND (CAST(:job_id AS uuid) IS NULL OR job_id = :job_id)
      AND (CAST(:endpoint_id AS uuid) IS NULL OR endpoint_id = :endpoint_id)
      AND (CAST(:state AS text) IS NULL OR state = :state)
      AND created_at >= coalesce(CAST(:since AS timestamptz), '-infinity')
    ORDER BY created_at DESC, id LIMIT :limit
    """

_ONE = f"{_FOUND} AND id = :id"

_TRIES = "SELECT * FROM delivery_attempts WHERE delivery_id = ANY(CAST(:ids AS uuid[])) ORDER BY delivery_id, number"

_OVER = f"""
    SELECT id FROM deliveries
    WHERE id = ANY(CAST(:ids AS uuid[])) AND state <> 'pending'
      AND (CAST(:tenant AS text) IS NULL OR {_OF_TENANT})
    ORDER BY id FOR NO KEY UPDATE
    """  # noqa: S608  a constant

# Attempts go on being counted: they are the fence. The schedule begins anew.
_REPLAY = """
    UPDATE deliveries
    SET state = 'pending', replayed_after = attempts, promised_at = now(), next_at = now(), queued = false,
        finished_at = NULL, last_status = NULL, last_error = NULL
    WHERE id = ANY(CAST(:ids AS uuid[]))
    """


def missing(delivery: UUID) -> InvalidOptionError:
    """Return what is raised for a delivery that is not there."""
    return InvalidOptionError(
        f"There is no delivery {delivery}; `pecia webhook deliveries` shows those there are."
    )


def unreplayable(delivery: UUID) -> InvalidOptionError:
    """Return what is raised for a delivery that is not over, or not there."""
    return InvalidOptionError(
        f"There is no delivery {delivery} that is over; `pecia webhook deliveries` shows those there are."
    )


class Deliveries(Statements[D_co]):
    """The outbox, as a client may see it; with a `tenant` what that one's jobs and endpoints promised."""

    def __init__(self, database: D_co, *, tenant: str | None = None) -> None:
        super().__init__(database)
        self._tenant = tenant

    @transaction
    def latest(
        self,
        connection: Connection,
        *,
        job_id: UUID | None,
        endpoint_id: UUID | None,
        state: DeliveryState | None,
        since: datetime | None,
        limit: int | None,
    ) -> list[Delivery]:
        """Return those that fit with their attempts, newest first."""
        asked = {
            "job_id": job_id,
            "endpoint_id": endpoint_id,
            "state": state,
            "since": since,
            "limit": limit,
            "tenant": self._tenant,
        }
        return _with_attempts(connection, connection.execute(_LIST, asked).mappings().all())

    @transaction
    def one(self, connection: Connection, delivery_id: UUID) -> Delivery:
        """Return a delivery with its attempts. Raises `InvalidOptionError` if there is no such delivery."""
        found = _with_attempts(
            connection, connection.execute(_ONE, {"id": delivery_id, "tenant": self._tenant}).mappings().all()
        )
        if not found:
            raise missing(delivery_id)
        return found[0]

    @unrepeatable
    def replay(self, connection: Connection, delivery_ids: Collection[UUID]) -> None:
        """Have deliveries that are over tried again. Raises `InvalidOptionError`, before anything is done."""
        asked = {"ids": list(delivery_ids), "tenant": self._tenant}
        over = set(connection.execute(_OVER, asked).scalars())
        for delivery_id in delivery_ids:
            if delivery_id not in over:
                raise unreplayable(delivery_id)
        connection.execute(_REPLAY, asked)


def _with_attempts(connection: Connection, rows: Any) -> list[Delivery]:
    tries: defaultdict[UUID, list[DeliveryAttempt]] = defaultdict(list)
    for row in connection.execute(_TRIES, {"ids": [row["id"] for row in rows]}).mappings():
        tries[row["delivery_id"]].append(
            DeliveryAttempt.model_validate({**row, "duration": timedelta(seconds=row["duration_s"])})
        )
    return [Delivery.model_validate({**row, **_next(row), "attempts": tries[row["id"]]}) for row in rows]


def _next(row: Any) -> dict[str, datetime | None]:
    return {"next_at": row["next_at"] if row["state"] == DeliveryState.PENDING else None}
