"""Deliveries: what webhooks were told, or are to be told, and how each try went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, text

from pecia.errors import InvalidOptionError
from pecia.statements import D_co, Statements, transaction, unrepeatable
from pecia_schemas.duty import UNSIGNED
from pecia_schemas.events import NoticeType
from pecia_schemas.states import DeliveryState

NO_SECRET = "no_secret"  # noqa: S105  a code
"""Why a delivery waits: no webhook worker has `PECIA_WEBHOOK_SECRET`."""

_FOUND = f"""
    SELECT id, job_id, endpoint_id, type, url, state, created_at, next_at, finished_at, last_status,
           CASE WHEN state = 'pending' AND endpoint_id IS NULL AND {UNSIGNED} THEN '{NO_SECRET}' ELSE last_error END
               AS last_error
    FROM deliveries
"""  # noqa: S608  constants

_LIST = text(
    f"""
    {_FOUND}
    WHERE (CAST(:job_id AS uuid) IS NULL OR job_id = :job_id)
      AND (CAST(:endpoint_id AS uuid) IS NULL OR endpoint_id = :endpoint_id)
      AND (CAST(:state AS text) IS NULL OR state = :state)
      AND created_at >= coalesce(CAST(:since AS timestamptz), '-infinity')
    ORDER BY created_at DESC, id LIMIT :limit
    """
)

_ONE = text(f"{_FOUND} WHERE id = :id")

_TRIES = text(
    "SELECT * FROM delivery_attempts WHERE delivery_id = ANY(CAST(:ids AS uuid[])) ORDER BY delivery_id, number"
)

_OVER = text(
    """
    SELECT id FROM deliveries WHERE id = ANY(CAST(:ids AS uuid[])) AND state <> 'pending' ORDER BY id FOR NO KEY UPDATE
    """
)

# Attempts go on being counted: they are the fence. The schedule begins anew.
_REPLAY = text(
    """
    UPDATE deliveries
    SET state = 'pending', replayed_after = attempts, promised_at = now(), next_at = now(), queued = false,
        finished_at = NULL, last_status = NULL, last_error = NULL
    WHERE id = ANY(CAST(:ids AS uuid[]))
    """
)


class DeliveryAttempt(BaseModel):
    """One try, and what came of it."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    number: int
    """Counted from 1."""
    at: datetime
    """When it began."""
    duration: timedelta
    status: int | None = None
    """HTTP; None: there was no answer."""
    error: str | None = None
    """Why it was no delivery, in one word: `http_500`, `timeout`, `unreachable`, …"""
    reply: str | None = None
    """How the answer's body began: at most 512 bytes, the receiver's own words."""


class Delivery(BaseModel):
    """One notice to one receiver."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    id: UUID
    """The `webhook-id`: the same in every try, and after a replay."""
    job_id: UUID | None
    """None: it was a test."""
    endpoint_id: UUID | None
    """None: the webhook came with the job."""
    type: NoticeType
    url: str
    state: DeliveryState
    created_at: datetime
    next_at: datetime | None
    """When it is tried next; None: not at all. While it is tried: when it would come again."""
    finished_at: datetime | None
    last_status: int | None
    last_error: str | None
    """As in an attempt; also `endpoint_gone`, `given_up` or `refused_…`, if it was not tried for that, and `no_secret`
    while it waits because no webhook worker has `PECIA_WEBHOOK_SECRET`."""
    attempts: tuple[DeliveryAttempt, ...] = ()


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
    """The outbox, as a client may see it."""

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
        }
        return _with_attempts(connection, connection.execute(_LIST, asked).mappings().all())

    @transaction
    def one(self, connection: Connection, delivery_id: UUID) -> Delivery:
        """Return a delivery with its attempts. Raises `InvalidOptionError` if there is no such delivery."""
        found = _with_attempts(connection, connection.execute(_ONE, {"id": delivery_id}).mappings().all())
        if not found:
            raise missing(delivery_id)
        return found[0]

    @unrepeatable
    def replay(self, connection: Connection, delivery_ids: Collection[UUID]) -> None:
        """Have deliveries that are over tried again. Raises `InvalidOptionError`, before anything is done."""
        asked = {"ids": list(delivery_ids)}
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
