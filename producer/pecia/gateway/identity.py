"""Authentication: the key of a request, its rights and its limits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from pecia import arguments
from pecia.accounts import AccessKey, AccessUsage, Scope, parsed
from pecia.aio.client import AsyncClient
from pecia.aio.connections import AsyncConnections
from pecia.aio.job import AsyncJob
from pecia.errors import JobNotFoundError
from pecia.gateway.announcements import GatewayConnections
from pecia.gateway.bounds import Body, KeyLimits, Places, SharedCounts, SharedRate, Spool, Taken
from pecia.gateway.problems import ProblemError, busy, too_many
from pecia.handles import JobView, existing_view
from pecia_schemas.settings import ClientSettings
from pecia_schemas.settings.worker import GatewaySettings
from pecia_schemas.states import Lane

_KNOWN_S: Final = 3.0
"""Time for which a key is cached: after it, a revoked key is refused."""
_MOST_KNOWN: Final = 10_000
_COUNTED_S: Final = 1.0
_SUBMITTING: Final = 4
_LOOKED_UP: Final = (4, 64)
"""First lookups of keys, running and waiting: guessing ids cannot overload Postgres."""
_WAITING_DRAWINGS: Final = 16
_DAY_S: Final = 3_600
COOKIE: Final = "pecia_key"
"""Cookie in which a browser keeps the key of a signed-in user."""
_LOOKS: Final = ("GET", "HEAD")

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="key",
    description="A key from `pecia access create`, as in `Authorization: Bearer pecia_…`.",
)


class GatewayConfiguration(ClientSettings, GatewaySettings):
    """Settings of the gateway, which is itself a client of the fleet."""


class Looks:
    """Looks up jobs of all tenants. Requests that arrive during one query share the next."""

    def __init__(self, connections: AsyncConnections) -> None:
        self._store = connections.store
        self._wanted: set[tuple[str, UUID]] = set()
        self._next: asyncio.Task[dict[tuple[str, UUID], JobView]] | None = None
        self._turn = asyncio.Lock()

    async def view(self, tenant: str, job_id: UUID) -> JobView:
        """Return the current view of a job. Raises `JobNotFoundError` if the tenant has no job with this id."""
        self._wanted.add((tenant, job_id))
        self._next = self._next or asyncio.create_task(self._look())
        views = await asyncio.shield(self._next)
        if (tenant, job_id) not in views:
            raise JobNotFoundError(job_id)
        return views[tenant, job_id]

    async def _look(self) -> dict[tuple[str, UUID], JobView]:
        async with self._turn:
            wanted, self._wanted, self._next = self._wanted, set(), None
            return await self._store.views_of_tenants(wanted)


class TenantClient(AsyncClient):
    """A client that sees only one tenant's jobs, over connections that all clients share."""

    def __init__(self, bearers: Bearers, client: str, tenant: str) -> None:
        super().__init__(settings=bearers.settings)
        self.connections: GatewayConnections = bearers.connections.seen_by(client, tenant)
        self._looks, self._tenant = bearers.looks, tenant

    def _connect(self) -> AsyncConnections:
        return self.connections

    async def job(self, job_id: UUID | str, task: Any = None) -> AsyncJob[Any]:
        """Return the job with this id."""
        identifier = arguments.id_of(job_id)
        view = existing_view(identifier, {identifier: await self._looks.view(self._tenant, identifier)}, task)
        return AsyncJob(self._open, view, created=False)


@dataclass
class Bearer:
    """A recently used API key with its client and limits."""

    key: AccessKey
    client: TenantClient
    looked_up: float
    tokens: float
    filled: float = field(default_factory=time.monotonic)
    limits: KeyLimits = field(default_factory=KeyLimits)
    load: AccessUsage | None = None
    counted: float = 0.0
    under_way: int = 0
    """Documents that are admitted and not written yet, which the count in Postgres lacks."""

    def take(self, rate: float) -> float:
        """Take one request from the key's rate; return the seconds to wait, 0 if it is allowed now."""
        now = time.monotonic()
        self.tokens = min(max(1.0, 2 * rate), self.tokens + (now - self.filled) * rate)
        self.filled = now
        if self.tokens < 1:
            return (1 - self.tokens) / rate
        self.tokens -= 1
        return 0.0

    @asynccontextmanager
    async def admitted(self, documents: Mapping[Lane, int]) -> AsyncIterator[None]:
        """Count the documents that the block submits, by lane: as written once it ends, until the next count.

        Raises `ProblemError` if the key may not submit to the lane, or not so many documents now.
        """
        admitted = 0
        try:
            for lane, count in documents.items():
                if lane not in self.key.lanes:
                    raise ProblemError(
                        HTTPStatus.FORBIDDEN, "lane_forbidden", f"This key may not submit to lane {lane}."
                    )
                self.under_way = await self._admit(count)
                admitted += count
            yield
        finally:
            self.under_way -= admitted
            if self.load is not None:
                self.load = AccessUsage(
                    pages_of_day=self.load.pages_of_day + admitted,
                    pages_in_flight=self.load.pages_in_flight + admitted,
                )

    async def _admit(self, documents: int) -> int:
        """Return the number of documents in flight with these. Raises `ProblemError` if they exceed a limit."""
        key = self.key
        if key.pages_per_day is None and key.pages_in_flight is None:
            return self.under_way + documents
        now = time.monotonic()
        if self.load is None or now - self.counted > _COUNTED_S:
            self.counted = now  # concurrent requests do not count again
            self.load = await self.client.connections.access.load(key)
        more = self.under_way + documents
        if key.pages_per_day is not None and self.load.pages_of_day + more > key.pages_per_day:
            raise _full("pages_per_day", f"{key.pages_per_day} pages a day", _DAY_S)
        if key.pages_in_flight is not None and self.load.pages_in_flight + more > key.pages_in_flight:
            raise _full("pages_in_flight", f"{key.pages_in_flight} pages in flight", 5)
        return more

    async def check_load(self) -> None:
        """Raise `ProblemError` if the key may not submit one more document now. Called before any is received."""
        await self._admit(1)


class Bearers:
    """The recently used keys, and the connections that their clients share."""

    def __init__(self, settings: GatewayConfiguration, connections: GatewayConnections) -> None:
        self.settings = settings
        self.connections = connections
        self.looks = Looks(connections)
        self.submitting = asyncio.Semaphore(_SUBMITTING)
        """Held while documents are stored and written; others wait, so that connections stay free for queries."""
        largest = settings.gateway_max_bytes
        self.spool = Spool(
            max(largest, settings.gateway_spool_bytes), max(largest, settings.gateway_upload_bytes)
        )
        drawing = "The gateway renders its maximum number of results: request this one later."
        self.drawings = Places(settings.gateway_drawings, _WAITING_DRAWINGS, partial(busy, drawing))
        looking = "The gateway looks up too many keys at a time: try again later."
        self._lookups = Places(*_LOOKED_UP, partial(busy, looking))
        self._known: dict[UUID, Bearer] = {}
        self._rate = SharedRate(connections.bus, settings.gateway_rate)
        self.shared = SharedCounts(connections.bus, self._count)

    def _count(self) -> dict[UUID, Taken]:
        counts = {
            identifier: Taken(bearer.limits.waits, bearer.limits.uploading)
            for identifier, bearer in self._known.items()
        }
        return {identifier: taken for identifier, taken in counts.items() if any(taken)}

    async def close(self) -> None:
        """Close the connections."""
        await self.shared.close()
        await self.connections.close()

    async def authenticate(self, authorization: str) -> Bearer:
        """Return the key in an `Authorization` header.

        Raises `ProblemError` for an invalid key, or for too many requests a second.
        """
        scheme, token = get_authorization_scheme_param(authorization)
        known = parsed(token) if scheme.lower() == "bearer" else None
        bearer = await self._bearer(known[0]) if known else None
        if known is None or bearer is None or not bearer.key.opens(known[1]):
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "no_key",
                "The key does not exist or was revoked: send `Authorization: Bearer KEY`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        wait = bearer.take(self.settings.gateway_rate)
        if wait or not await self._rate.take(bearer.key.id):
            raise too_many("rate", "This key makes too many requests a second.", max(1, round(wait)))
        return bearer

    async def _bearer(self, identifier: UUID) -> Bearer | None:
        bearer, now = self._known.get(identifier), time.monotonic()
        if bearer and now - bearer.looked_up < _KNOWN_S:
            return bearer
        if bearer:
            key = await self.connections.access.one(identifier)
        else:
            async with self._lookups.place():
                key = await self.connections.access.one(identifier)
            bearer = self._known.get(identifier)
        if key is None:
            self._known.pop(identifier, None)
        elif bearer:
            bearer.key, bearer.looked_up = key, now
        else:
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            client = TenantClient(self, key.client, key.tenant)
            limits = KeyLimits(elsewhere=partial(self.shared.elsewhere, identifier))
            bearer = Bearer(key, client, looked_up=now, tokens=math.inf, limits=limits)
            self._known[identifier] = bearer
        return bearer if key else None


def bearers_of(request: Request) -> Bearers:
    """Return the keys of this gateway."""
    bearers: Bearers = request.app.state.bearers
    return bearers


def authorization_of(request: Request) -> str:
    """Return the `Authorization` header, or one made from the cookie of the web page.

    Raises `ProblemError` if a web page of another origin makes a browser send the cookie to change something.
    """
    header, key = request.headers.get("authorization"), request.cookies.get(COOKIE)
    if header is not None or key is None:
        return header or ""
    origin = urlsplit(request.headers.get("origin", ""))
    if request.method not in _LOOKS and origin.netloc != request.headers.get("host"):
        raise ProblemError(
            HTTPStatus.FORBIDDEN, "foreign_page", "A web page of another origin may not change anything here."
        )
    return f"Bearer {key}"


async def bearer_of(request: Request, _: Annotated[object, Depends(_bearer)]) -> Bearer:
    """Return the key of the request, which `authenticate` found before the body was read."""
    bearer: Bearer = request.state.bearer
    return bearer


def body_of(request: Request) -> Body:
    """Return the counted body of the request."""
    body: Body = request.state.body
    return body


def _full(code: str, limit: str, wait: int) -> ProblemError:
    return too_many(code, f"This key is limited to {limit}, and has reached that.", wait)


def require(bearer: Bearer, scope: Scope) -> None:
    """Raise `ProblemError` if the key lacks this scope."""
    if scope not in bearer.key.scopes:
        raise ProblemError(HTTPStatus.FORBIDDEN, "scope_missing", f"This key lacks the scope `{scope}`.")


def _having(scope: Scope) -> Any:
    """Return a dependency that provides the request's key if it has this scope."""

    async def allowed(bearer: Annotated[Bearer, Depends(bearer_of)]) -> Bearer:
        require(bearer, scope)
        return bearer

    return Depends(allowed)


Submitter = Annotated[Bearer, _having(Scope.SUBMIT)]
Reader = Annotated[Bearer, _having(Scope.READ)]
Reviewer = Annotated[Bearer, _having(Scope.REVIEW)]
Administrator = Annotated[Bearer, _having(Scope.ADMIN)]
Anyone = Annotated[Bearer, Depends(bearer_of)]
