"""Endpoints and deliveries in memory: `pecia.endpoints` and `pecia.deliveries` without SQL."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from pecia.deliveries import Deliveries, missing, unreplayable
from pecia.endpoints import Endpoints, body_of_test
from pecia.endpoints import missing as missing_endpoint
from pecia.records import Delivery, DeliveryAttempt, Endpoint
from pecia.statements import D_co, transaction, unrepeatable
from pecia.testing.memory import Memory
from pecia.testing.records import DeliveryRecord, EndpointRecord, now
from pecia_schemas.events import JobNotice, Webhook, new_secret
from pecia_schemas.ids import new_id
from pecia_schemas.states import DeliveryState

_TAKEN = 204


class MemoryEndpoints(Endpoints[D_co]):
    """The registered endpoints of a fake fleet. They take all that they are told."""

    @unrepeatable
    def add(self, memory: Memory, asked: Webhook) -> Endpoint:
        """Register an endpoint; return it with its secret."""
        record = EndpointRecord(
            id=new_id(),
            url=str(asked.url),
            events=asked.events,
            secret=new_secret(),
            client=self._client,
            created_at=now(),
        )
        memory.endpoints[record.id] = record
        return _as_endpoint(record, record.secret)

    @transaction
    def all(self, memory: Memory) -> list[Endpoint]:
        """Return all endpoints, the oldest first."""
        return [_as_endpoint(record) for record in memory.endpoints.values()]

    @transaction
    def remove(self, memory: Memory, endpoint: UUID) -> None:
        """Forget an endpoint, and what it was told."""
        record = _found(memory, endpoint)
        memory.forget_deliveries([one for one in memory.deliveries.values() if one.endpoint is record])
        del memory.endpoints[endpoint]

    @unrepeatable
    def rotate(self, memory: Memory, endpoint: UUID, overlap: timedelta) -> Endpoint:
        """Give an endpoint a fresh secret, beside which the former one signs for so long."""
        record = _found(memory, endpoint)
        record.former_secret, record.former_until = record.secret, now() + overlap
        record.secret = new_secret()
        return _as_endpoint(record, record.secret)

    @unrepeatable
    def test(self, memory: Memory, endpoint: UUID) -> UUID:
        """Send a test; return its delivery."""
        record = _found(memory, endpoint)
        notice = JobNotice.model_validate({**body_of_test(), "timestamp": now()})
        delivery = DeliveryRecord(
            id=uuid4(), job_id=None, endpoint=record, url=record.url, notice=notice, created_at=now()
        )
        memory.post(delivery)
        return delivery.id


class MemoryDeliveries(Deliveries[D_co]):
    """What a fake fleet has told its receivers."""

    @transaction
    def latest(
        self,
        memory: Memory,
        *,
        job_id: UUID | None,
        endpoint_id: UUID | None,
        state: DeliveryState | None,
        since: datetime | None,
        limit: int | None,
    ) -> list[Delivery]:
        """Return those that fit with their attempts, newest first."""
        found = [
            one
            for one in map(_as_delivery, reversed(memory.deliveries.values()))
            if job_id in (None, one.job_id)
            and endpoint_id in (None, one.endpoint_id)
            and state in (None, one.state)
            and (since is None or one.created_at >= since)
        ]
        return found[:limit]

    @transaction
    def one(self, memory: Memory, delivery_id: UUID) -> Delivery:
        """Return a delivery with its attempts. Raises `InvalidOptionError` if there is no such delivery."""
        if delivery_id not in memory.deliveries:
            raise missing(delivery_id)
        return _as_delivery(memory.deliveries[delivery_id])

    @unrepeatable
    def replay(self, memory: Memory, delivery_ids: Collection[UUID]) -> None:
        """Send deliveries once more. Raises `InvalidOptionError`, before anything is done."""
        for delivery_id in delivery_ids:
            if delivery_id not in memory.deliveries:
                raise unreplayable(delivery_id)
        for delivery_id in dict.fromkeys(delivery_ids):
            memory.post(memory.deliveries[delivery_id])


def _found(memory: Memory, endpoint: UUID) -> EndpointRecord:
    if endpoint not in memory.endpoints:
        raise missing_endpoint(endpoint)
    return memory.endpoints[endpoint]


def _as_endpoint(record: EndpointRecord, secret: str | None = None) -> Endpoint:
    return Endpoint(
        id=record.id,
        url=record.url,
        events=record.events,
        secret=secret,
        former_until=record.former_until,
        client=record.client,
        created_at=record.created_at,
    )


def _as_delivery(record: DeliveryRecord) -> Delivery:
    attempts = [
        DeliveryAttempt(number=number, at=at, duration=timedelta(), status=_TAKEN, reply="")
        for number, at in enumerate(record.tries, 1)
    ]
    return Delivery(
        id=record.id,
        job_id=record.job_id,
        endpoint_id=record.endpoint and record.endpoint.id,
        type=record.notice.type,
        url=record.url,
        state=DeliveryState.DELIVERED,
        created_at=record.created_at,
        next_at=None,
        finished_at=record.tries[-1],
        last_status=_TAKEN,
        last_error=None,
        attempts=tuple(attempts),
    )
