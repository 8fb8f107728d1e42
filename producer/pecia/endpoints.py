"""SQL of registered endpoints, each with its own secret, and of their deliveries and attempts."""

import json
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pecia.errors import EndpointLimitError, InvalidOptionError
from pecia.records import NO_SECRET, Delivery, DeliveryAttempt, Endpoint
from pecia.store import Connection, D_co, Rows, Statements, transaction, unrepeatable
from pecia_schemas.encryption import Keyring
from pecia_schemas.events import NoticeType, Webhook, new_secret, utc
from pecia_schemas.running import UNSIGNED
from pecia_schemas.states import DeliveryState, new_id

# Serializes additions, so that the limit is not exceeded.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('endpoints of ' || coalesce(CAST(:tenant AS text), '')))"

_ADD = """
    INSERT INTO endpoints (id, url, events, secret, client, tenant)
    SELECT :id, :url, :events, CAST(:secret AS jsonb), :client, CAST(:tenant AS text)
    WHERE (SELECT count(*) FROM endpoints WHERE tenant IS NOT DISTINCT FROM CAST(:tenant AS text)) < :most
    RETURNING id
    """

_OWN = "(CAST(:tenant AS text) IS NULL OR endpoints.tenant = :tenant)"

_LIST = f"""
    SELECT endpoints.id, url, events, former_until, client, endpoints.created_at, disabled_at,
           coalesce(failures, 0) AS failures, failing_since, paused_until,
           (SELECT count(*) FROM deliveries
            WHERE state = 'pending' AND receiver = CAST(endpoints.id AS text)) AS waiting
    FROM endpoints LEFT JOIN receivers ON receivers.receiver = CAST(endpoints.id AS text)
    WHERE (CAST(:id AS uuid) IS NULL OR endpoints.id = :id) AND {_OWN}
    ORDER BY endpoints.id
    """  # noqa: S608  a constant

# Deleted before the endpoint: recording an attempt locks in this order.
_REMOVE_DELIVERIES = """
    DELETE FROM deliveries
    WHERE id IN (SELECT id FROM deliveries WHERE endpoint_id = :id ORDER BY id FOR UPDATE)
    """
_REMOVE = "DELETE FROM endpoints WHERE id = :id RETURNING id"
_FORGET = "DELETE FROM receivers WHERE receiver = CAST(CAST(:id AS uuid) AS text)"

_ROTATE = """
    UPDATE endpoints
    SET secret = CAST(:secret AS jsonb), former_secret = secret, former_until = now() + :overlap
    WHERE id = :id RETURNING id
    """

# The test is due before all other deliveries, and also ends a pause.
_TEST = f"""
    WITH woken AS (
        UPDATE receivers SET paused_until = now(), next_due = now()
        WHERE receiver = CAST(CAST(:id AS uuid) AS text) AND paused_until > now()
    ), first AS (
        SELECT least(min(next_at), now()) - interval '1 microsecond' AS at FROM deliveries
        WHERE state = 'pending' AND receiver = CAST(CAST(:id AS uuid) AS text)
    )
    INSERT INTO deliveries (endpoint_id, type, url, next_at, body)
    SELECT endpoints.id, 'webhook.test', url, first.at,
           CAST(:body AS jsonb) || jsonb_build_object('timestamp', {utc("now()")})
    FROM endpoints, first WHERE endpoints.id = :id
    FOR KEY SHARE OF endpoints
    RETURNING id
    """  # noqa: S608  a constant


def body_of_test() -> dict[str, Any]:
    """Return the body of a test notice without its time. Its job does not exist."""
    data = {
        "job_id": str(UUID(int=0)),
        "sequence": 0,
        "kind": NoticeType.TEST,
        "state": "succeeded",
        "lane": "normal",
        "progress": {"total": 0, "done": 0, "failed": 0, "cancelled": 0},
        "failure": None,
        "metadata": {},
        "created_at": "1970-01-01T00:00:00Z",
        "finished_at": None,
    }
    return {"type": NoticeType.TEST, "data": data}


def _missing(endpoint: UUID) -> InvalidOptionError:
    return InvalidOptionError(f"Endpoint {endpoint} does not exist; see `pecia webhook list`.")


class Endpoints(Statements[D_co]):
    """All endpoints, for a client to read and change."""

    def __init__(self, database: D_co, keys: Keyring, client: str, tenant: str | None, *, most: int) -> None:
        super().__init__(database, keys, client, tenant)
        self._most = most

    @unrepeatable
    def add(self, connection: Connection, values: Webhook) -> Endpoint:
        """Register an endpoint; return it with its secret. Raises `EndpointLimitError`."""
        endpoint, secret = new_id(), new_secret()
        written = {
            "id": endpoint,
            "url": str(values.url),
            "events": list(values.events),
            "secret": self._keys.seal(json.dumps(secret), endpoint),
            "client": self._client,
            "tenant": self._tenant,
            "most": self._most,
        }
        connection.execute(_LOCK, {"tenant": self._tenant})
        if connection.execute(_ADD, written).first() is None:
            raise EndpointLimitError(
                f"The maximum of {self._most} endpoints is reached (PECIA_MAX_ENDPOINTS): "
                "remove an endpoint, or let one receiver take all notices."
            )
        return self._one(connection, endpoint).model_copy(update={"secret": secret})

    @transaction
    def all(self, connection: Connection) -> list[Endpoint]:
        """Return all endpoints, the oldest first."""
        return [
            Endpoint.model_validate(row)
            for row in connection.execute(_LIST, {"id": None, "tenant": self._tenant}).mappings()
        ]

    @transaction
    def remove(self, connection: Connection, endpoint: UUID) -> None:
        """Delete an endpoint and its deliveries, done and pending."""
        self._one(connection, endpoint)
        connection.execute(_REMOVE_DELIVERIES, {"id": endpoint})
        if connection.execute(_REMOVE, {"id": endpoint}).first() is None:
            raise _missing(endpoint)
        connection.execute(_FORGET, {"id": endpoint})

    @unrepeatable
    def rotate(self, connection: Connection, endpoint: UUID, overlap: timedelta) -> Endpoint:
        """Give an endpoint a new secret. During the overlap the former one signs too."""
        self._one(connection, endpoint)
        secret = new_secret()
        sealed = self._keys.seal(json.dumps(secret), endpoint)
        values = {"id": endpoint, "secret": sealed, "overlap": overlap}
        if connection.execute(_ROTATE, values).first() is None:
            raise _missing(endpoint)
        return self._one(connection, endpoint).model_copy(update={"secret": secret})

    @unrepeatable
    def test(self, connection: Connection, endpoint: UUID) -> UUID:
        """Queue a test notice before all other deliveries; return the id of its delivery."""
        self._one(connection, endpoint)
        values = {"id": endpoint, "body": json.dumps(body_of_test())}
        delivery: UUID | None = connection.execute(_TEST, values).scalar()
        if delivery is None:
            raise _missing(endpoint)
        return delivery

    def _one(self, connection: Connection, endpoint: UUID) -> Endpoint:
        row = connection.execute(_LIST, {"id": endpoint, "tenant": self._tenant}).mappings().first()
        if row is None:
            raise _missing(endpoint)
        return Endpoint.model_validate(row)


# A tenant cannot see endpoints without a tenant, which are notified of all jobs: they are the operator's.
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

_LIST_DELIVERIES = f"""
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

# The attempt number continues, because it fences stale workers. The schedule of retries restarts.
_REPLAY = """
    UPDATE deliveries
    SET state = 'pending', replayed_after = attempts, promised_at = now(), next_at = now(), queued = false,
        finished_at = NULL, last_status = NULL, last_error = NULL
    WHERE id = ANY(CAST(:ids AS uuid[]))
    """


class Deliveries(Statements[D_co]):
    """The deliveries of the outbox; with a `tenant`, those of its jobs and endpoints."""

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
        """Return the matching deliveries with their attempts, newest first."""
        values = {
            "job_id": job_id,
            "endpoint_id": endpoint_id,
            "state": state,
            "since": since,
            "limit": limit,
            "tenant": self._tenant,
        }
        return _with_attempts(connection, connection.execute(_LIST_DELIVERIES, values).mappings())

    @transaction
    def one(self, connection: Connection, delivery_id: UUID) -> Delivery:
        """Return a delivery with its attempts. Raises `InvalidOptionError` if the delivery does not exist."""
        found = _with_attempts(
            connection, connection.execute(_ONE, {"id": delivery_id, "tenant": self._tenant}).mappings()
        )
        if not found:
            raise InvalidOptionError(
                f"Delivery {delivery_id} does not exist; `pecia webhook deliveries` shows the deliveries."
            )
        return found[0]

    @unrepeatable
    def replay(self, connection: Connection, delivery_ids: Collection[UUID]) -> None:
        """Send ended deliveries again. Raises `InvalidOptionError`, before any is sent."""
        values = {"ids": list(delivery_ids), "tenant": self._tenant}
        over = set(connection.execute(_OVER, values).scalars())
        for delivery_id in delivery_ids:
            if delivery_id not in over:
                raise InvalidOptionError(
                    f"Delivery {delivery_id} does not exist or has not ended; "
                    "`pecia webhook deliveries` shows the deliveries."
                )
        connection.execute(_REPLAY, values)


def _with_attempts(connection: Connection, rows: Rows) -> list[Delivery]:
    tries: defaultdict[UUID, list[DeliveryAttempt]] = defaultdict(list)
    for row in connection.execute(_TRIES, {"ids": [row["id"] for row in rows]}).mappings():
        tries[row["delivery_id"]].append(
            DeliveryAttempt.model_validate({**row, "duration": timedelta(seconds=row["duration_s"])})
        )
    for row in rows:
        if row["state"] != DeliveryState.PENDING:
            row["next_at"] = None
    return [Delivery.model_validate({**row, "attempts": tries[row["id"]]}) for row in rows]
