"""Webhooks over HTTP: receivers that are notified of the tenant's jobs, and their deliveries."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query

from pecia.errors import InvalidOptionError
from pecia.gateway.bodies import NewWebhook, Rotation
from pecia.gateway.identity import Administrator
from pecia.gateway.problems import ProblemError, documented
from pecia.records import Delivery, Endpoint
from pecia_schemas.states import DeliveryState

_MOST: Final = 500

router = APIRouter(tags=["webhooks"])


async def _found(bearer: Administrator, endpoint: UUID) -> Endpoint:
    for one in await bearer.client.endpoints():
        if one.id == endpoint:
            return one
    raise ProblemError(HTTPStatus.NOT_FOUND, "webhook_not_found", f"Webhook {endpoint} does not exist.")


async def _delivery(bearer: Administrator, delivery: UUID) -> Delivery:
    try:
        return await bearer.client.delivery(delivery)
    except InvalidOptionError:
        raise ProblemError(
            HTTPStatus.NOT_FOUND, "delivery_not_found", f"Delivery {delivery} does not exist."
        ) from None


@router.get("/webhooks", responses=documented())
async def list_webhooks(bearer: Administrator) -> list[Endpoint]:
    """List the receivers that are notified of the tenant's jobs, with their states."""
    return await bearer.client.endpoints()


@router.post("/webhooks", status_code=201, responses=documented(400, 409))
async def add_webhook(bearer: Administrator, body: NewWebhook) -> Endpoint:
    """Register a receiver. Only this answer contains its `secret`."""
    return await bearer.client.add_endpoint(body.url, events=body.events)


@router.delete("/webhooks/{webhook_id}", status_code=204, responses=documented(404))
async def remove_webhook(bearer: Administrator, webhook_id: UUID) -> None:
    """Delete a receiver and its deliveries."""
    await bearer.client.remove_endpoint(await _found(bearer, webhook_id))


@router.post("/webhooks/{webhook_id}/rotate", responses=documented(400, 404))
async def rotate_webhook(bearer: Administrator, webhook_id: UUID, body: Rotation | None = None) -> Endpoint:
    """Give a receiver a new secret. For `overlap`, notices have both signatures."""
    found = await _found(bearer, webhook_id)
    return await bearer.client.rotate_endpoint(found, overlap=(body or Rotation()).overlap)


@router.post("/webhooks/{webhook_id}/test", status_code=202, responses=documented(404))
async def test_webhook(bearer: Administrator, webhook_id: UUID) -> Delivery:
    """Send a test notice now. Get the delivery for its outcome."""
    return await bearer.client.test_endpoint(await _found(bearer, webhook_id))


@router.get("/deliveries", responses=documented())
async def list_deliveries(  # noqa: PLR0917  FastAPI names them
    bearer: Administrator,
    job_id: UUID | None = None,
    webhook_id: UUID | None = None,
    state: DeliveryState | None = None,
    since: datetime | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = 100,
) -> list[Delivery]:
    """List the deliveries of the tenant's webhooks, done and pending, newest first."""
    return await bearer.client.deliveries(
        job=job_id, endpoint=webhook_id, state=state, since=since, limit=limit
    )


@router.get("/deliveries/{delivery_id}", responses=documented(404))
async def look_at_delivery(bearer: Administrator, delivery_id: UUID) -> Delivery:
    """Get a delivery with all its attempts."""
    return await _delivery(bearer, delivery_id)


@router.post("/deliveries/{delivery_id}/replay", status_code=202, responses=documented(404, 409))
async def replay_delivery(bearer: Administrator, delivery_id: UUID) -> Delivery:
    """Send an ended delivery again."""
    found = await _delivery(bearer, delivery_id)
    if not found.state.is_terminal:
        raise ProblemError(
            HTTPStatus.CONFLICT, "delivery_not_over", "The delivery has not ended: replay it later."
        )
    await bearer.client.replay([found])
    return await _delivery(bearer, delivery_id)
