"""Keys and usage over HTTP, for a tenant's administrators. No key can create one with more rights than its own."""

from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query

from pecia import arguments, request
from pecia.accounts import AccessUsage
from pecia.gateway.bodies import MadeKey, NewKey, Own
from pecia.gateway.identity import Administrator, Anyone, require
from pecia.gateway.jobs import Since
from pecia.gateway.problems import ProblemError, documented
from pecia.records import Usage

router = APIRouter(tags=["key"])


@router.get("/key", responses=documented())
async def look_at_key(bearer: Anyone) -> Own:
    """Get the rights of this key, and the used amounts of its limits."""
    load: AccessUsage = await bearer.client.connections.access.load(bearer.key)
    return Own(key=bearer.key, **load.model_dump())


@router.get("/keys", responses=documented())
async def list_keys(bearer: Administrator) -> list[Own]:
    """List the tenant's keys, and the used amounts of their limits. The answer contains no secrets."""
    access = bearer.client.connections.access
    keys = await access.all(bearer.key.tenant)
    return [Own(key=key, **(await access.load(key)).model_dump()) for key in keys]


@router.post("/keys", status_code=201, responses=documented(400))
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


@router.delete("/keys/{key_id}", status_code=204, responses=documented(404))
async def revoke_key(bearer: Administrator, key_id: UUID) -> None:
    """Revoke a key of the tenant. Within seconds the gateway refuses it."""
    access = bearer.client.connections.access
    key = await access.one(key_id)
    if key is None or key.tenant != bearer.key.tenant:
        raise ProblemError(HTTPStatus.NOT_FOUND, "key_not_found", f"Key {key_id} does not exist.")
    await access.revoke(key_id)


@router.get("/usage", responses=documented())
async def look_at_tenants_usage(
    bearer: Administrator,
    since: Since = None,
    by: Annotated[
        str | None, Query(description="Group by `document_type`, `kind`, `lane`, `engine` or `metadata:KEY`.")
    ] = None,
) -> Usage:
    """Get the usage of the tenant's parts that have ended since."""
    return await bearer.client.connections.accounts.since(arguments.past(since), by)
