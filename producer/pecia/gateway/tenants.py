"""Keys, usage and webhooks over HTTP, for a tenant's administrators: no key makes one that may more than itself."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Query

from pecia import arguments, request
from pecia.accounts import AccessUsage
from pecia.errors import InvalidOptionError
from pecia.gateway.bodies import MadeKey, NewKey, NewWebhook, Own, Rotation
from pecia.gateway.identity import Administrator, Anyone, require
from pecia.gateway.jobs import Since
from pecia.gateway.problems import ProblemError, documented
from pecia.records import Delivery, Endpoint, Usage
from pecia_schemas.states import DeliveryState

keys, webhooks = APIRouter(tags=["key"]), APIRouter(tags=["webhooks"])

_MOST: Final = 500
"""Deliveries in a list."""


@keys.get("/key", responses=documented())
async def look_at_key(bearer: Anyone) -> Own:
    """Get the rights of this key, and the used amounts of its limits."""
    load: AccessUsage = await bearer.client.connections.access.load(bearer.key)
    return Own(key=bearer.key, **load.model_dump())


@keys.get("/keys", responses=documented())
async def list_keys(bearer: Administrator) -> list[Own]:
    """List the tenant's keys, and the used amounts of their limits. The answer contains no secrets."""
    access = bearer.client.connections.access
    own = await access.all(bearer.key.tenant)
    return [Own(key=key, **(await access.load(key)).model_dump()) for key in own]


@keys.post("/keys", status_code=201, responses=documented(400))
async def make_key(bearer: Administrator, body: NewKey) -> MadeKey:
    """Create a key of the tenant, with at most the rights of this key. Only this answer contains its `secret`."""
    own = bearer.key
    for scope in body.scopes:
        require(bearer, scope)
    lanes = own.lanes if body.lanes is None else body.lanes
    if not set(lanes) <= set(own.lanes):
        raise ProblemError(
            HTTPStatus.FORBIDDEN, "lane_forbidden", "This key may not submit to all of these lanes."
        )
    expires_at = request.moment(body.expires, "expires")
    key, secret = await bearer.client.connections.access.add(
        tenant=own.tenant,
        name=body.name,
        scopes=body.scopes,
        lanes=lanes,
        pages_per_day=_least(own.pages_per_day, body.pages_per_day),
        pages_in_flight=_least(own.pages_in_flight, body.pages_in_flight),
        expires_at=_least(own.expires_at, expires_at),
    )
    return MadeKey(key=key, secret=secret)


def _least(*limits: Any) -> Any:
    """Return the lowest limit, or None without any."""
    return min((limit for limit in limits if limit is not None), default=None)


@keys.delete("/keys/{key_id}", status_code=204, responses=documented(404))
async def revoke_key(bearer: Administrator, key_id: UUID) -> None:
    """Revoke a key of the tenant. Within seconds the gateway refuses it."""
    access = bearer.client.connections.access
    key = await access.one(key_id)
    if key is None or key.tenant != bearer.key.tenant:
        raise ProblemError(HTTPStatus.NOT_FOUND, "key_not_found", f"Key {key_id} does not exist.")
    await access.revoke(key_id)


@keys.get("/usage", responses=documented())
async def look_at_tenants_usage(
    bearer: Administrator,
    since: Since = None,
    by: Annotated[
        str | None, Query(description="Group by `document_type`, `kind`, `lane`, `engine` or `metadata:KEY`.")
    ] = None,
) -> Usage:
    """Get the usage of the tenant's parts that have ended since."""
    return await bearer.client.connections.accounts.since(arguments.past(since), by)


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


@webhooks.get("/webhooks", responses=documented())
async def list_webhooks(bearer: Administrator) -> list[Endpoint]:
    """List the receivers that are notified of the tenant's jobs, with their states."""
    return await bearer.client.endpoints()


@webhooks.post("/webhooks", status_code=201, responses=documented(400, 409))
async def add_webhook(bearer: Administrator, body: NewWebhook) -> Endpoint:
    """Register a receiver. Only this answer contains its `secret`."""
    return await bearer.client.add_endpoint(body.url, events=body.events)


@webhooks.delete("/webhooks/{webhook_id}", status_code=204, responses=documented(404))
async def remove_webhook(bearer: Administrator, webhook_id: UUID) -> None:
    """Delete a receiver and its deliveries."""
    await bearer.client.remove_endpoint(await _found(bearer, webhook_id))


@webhooks.post("/webhooks/{webhook_id}/rotate", responses=documented(400, 404))
async def rotate_webhook(bearer: Administrator, webhook_id: UUID, body: Rotation | None = None) -> Endpoint:
    """Give a receiver a new secret. For `overlap`, notices have both signatures."""
    found = await _found(bearer, webhook_id)
    return await bearer.client.rotate_endpoint(found, overlap=(body or Rotation()).overlap)


@webhooks.post("/webhooks/{webhook_id}/test", status_code=202, responses=documented(404))
async def test_webhook(bearer: Administrator, webhook_id: UUID) -> Delivery:
    """Send a test notice now. Get the delivery for its outcome."""
    return await bearer.client.test_endpoint(await _found(bearer, webhook_id))


@webhooks.get("/deliveries", responses=documented())
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


@webhooks.get("/deliveries/{delivery_id}", responses=documented(404))
async def look_at_delivery(bearer: Administrator, delivery_id: UUID) -> Delivery:
    """Get a delivery with all its attempts."""
    return await _delivery(bearer, delivery_id)


@webhooks.post("/deliveries/{delivery_id}/replay", status_code=202, responses=documented(404, 409))
async def replay_delivery(bearer: Administrator, delivery_id: UUID) -> Delivery:
    """Send an ended delivery again."""
    found = await _delivery(bearer, delivery_id)
    if not found.state.is_terminal:
        raise ProblemError(
            HTTPStatus.CONFLICT, "delivery_not_over", "The delivery has not ended: replay it later."
        )
    await bearer.client.replay([found])
    return await _delivery(bearer, delivery_id)
