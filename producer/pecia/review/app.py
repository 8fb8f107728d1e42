"""The review page: served by `pecia review` on loopback, behind a token in its address, and by the gateway."""

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from pecia import saving
from pecia.aio.connections import AsyncConnections
from pecia.formats.facsimile import for_browsers, thumbnail
from pecia.gateway.bodies import SplitCorrection
from pecia.gateway.identity import Bearer, bearers_of
from pecia.gateway.pages import Secured, files_at
from pecia.records import Listing
from pecia.review.correcting import Decision
from pecia.review.layout import shown
from pecia.sources import Original, at_hand
from pecia_schemas.media import NoPictureError
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.results import Page
from pecia_schemas.threads import finish_in_thread

_ASSETS: Final = {"/": "review.html", "/bundle": "bundle.html"} | {
    f"/{name}": name for name in ("review.js", "review.css", "bundle.js", "bundle.css")
}
B = TypeVar("B", bound=BaseModel)

_KEPT: Final = 6
"""Pictures in memory: the browser requests the next page's picture in advance."""
_QUALITY: Final = 85


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The pages of a review: doubtful pages of some jobs, or randomly drawn ones."""

    listing: Listing = field(default_factory=Listing)
    job_ids: tuple[UUID, ...] = ()
    limit: int = 500
    sample: int | None = None
    """Number of pages to draw, or None for doubtful pages."""
    seed: int = 0


class _Body(Decision):
    revision: int


def review_of(work: Work, token: str) -> Mount:
    """Return the routes of a review, for `make_app` of the gateway."""
    desk = Desk(lambda _: work)
    return Mount("/review/{token}", Secured(_Guarded(Router(desk.routes), token)))


class _Guarded:
    """Answers 404 without the token, or for a host name that is not loopback, as another site's page would use."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        given = request.path_params["token"].encode()
        local = request.url.hostname in ("127.0.0.1", "::1", "localhost")
        if local and hmac.compare_digest(given, self._token):
            await self._app(scope, receive, send)
        else:
            await Response("Not found.", 404)(scope, receive, send)


class Desk:
    """Answers the requests of a review: with a token for all jobs, with a key only for its tenant's jobs."""

    def __init__(self, work: Callable[[Request], Work]) -> None:
        self._work = work
        self._drawing = asyncio.Lock()  # one process that decodes at a time
        self._pictures: OrderedDict[tuple[UUID, int], tuple[str, bytes]] = OrderedDict()
        self._seen: dict[tuple[UUID, int], Page] = {}
        """The last page that was read."""

    @property
    def routes(self) -> list[Route]:
        """The routes, relative to a path that ends with a slash."""
        page = "/api/pages/{job:uuid}/{number:int}"
        return [
            Route("/api/pages", self.pages),
            Route(page, self.look),
            Route(page, self.decide, methods=["POST"]),
            Route("/api/bundles/{job:uuid}", self.look_at_split),
            Route("/api/bundles/{job:uuid}", self.correct, methods=["POST"]),
            Route("/pictures/{job:uuid}/{number:int}", self.picture),
            *files_at("pecia.review", _ASSETS),
        ]

    async def pages(self, request: Request) -> Response:
        """Answer with the pages to review."""
        work, reviews = self._work(request), _connections(request).reviews
        for job_id in work.job_ids:
            await _check_owner(request, job_id)
        if work.sample is None:
            found = await reviews.doubtful(work.listing, work.job_ids, work.limit)
        else:
            found = await reviews.sample(work.listing, work.job_ids, work.sample, work.seed, reviewed=False)
        return JSONResponse([page.model_dump(mode="json") for page in found])

    async def look(self, request: Request) -> Response:
        """Answer with the current state of a page."""
        return JSONResponse(shown(await self._look(request)))

    async def _look(self, request: Request) -> Page:
        """Return the current state of a page; the audit trail records the access."""
        place = await _place(request)
        _, page = await _connections(request).reviews.look(*place)
        self._seen = {place: page}
        return page

    async def decide(self, request: Request) -> Response:
        """Write a person's decision about a page, and answer with the page."""
        body = await _body(request, _Body)
        place = await _place(request)
        return JSONResponse(shown(await _connections(request).reviews.revise(*place, body.revision, body)))

    async def look_at_split(self, request: Request) -> Response:
        """Answer with the current documents of a bundle."""
        job_id = await _job(request)
        split = await _connections(request).reviews.look_at_split(job_id)
        return JSONResponse(split.model_dump(mode="json"))

    async def correct(self, request: Request) -> Response:
        """Write a correction of a bundle's documents, and answer with them."""
        body = await _body(request, SplitCorrection)
        split = await _connections(request).reviews.correct(await _job(request), body.change, body.revision)
        return JSONResponse(split.model_dump(mode="json"))

    async def picture(self, request: Request) -> Response:
        """Answer with a page's picture, or with `?small` a thumbnail; 404 if it cannot be rendered."""
        key, connections = await _place(request), _connections(request)
        async with self._drawing:
            if key not in self._pictures:
                page = self._seen.get(key) or await self._look(request)
                original = await connections.store.original(key[0])
                try:
                    drawn = await finish_in_thread(_drawn, original, connections.payloads, page)
                except (NoPictureError, ChildProcessError):
                    raise HTTPException(404) from None
                self._pictures[key] = drawn
                if len(self._pictures) > _KEPT:
                    self._pictures.popitem(last=False)
            media_type, data = self._pictures[key]
            if "small" in request.query_params:
                media_type, data = "image/jpeg", await finish_in_thread(thumbnail, data)
        return Response(data, media_type=media_type)


def _bearer(request: Request) -> Bearer | None:
    return getattr(request.state, "bearer", None)


def _connections(request: Request) -> AsyncConnections:
    bearer = _bearer(request)
    return bearer.client.connections if bearer else bearers_of(request).connections


async def _body(request: Request, kind: type[B]) -> B:
    """Return the body of a request. Only application/json is accepted, which forms of other sites cannot send."""
    if request.headers.get("content-type") != "application/json":
        raise HTTPException(415)
    text = await request.body()
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        raise HTTPException(422) from None


async def _job(request: Request) -> UUID:
    """Return the job of the request. Raises `JobNotFoundError` if the key's tenant does not have it."""
    job_id: UUID = request.path_params["job"]
    await _check_owner(request, job_id)
    return job_id


async def _place(request: Request) -> tuple[UUID, int]:
    """Return the job and page of the request. Raises the errors of `_job`."""
    return await _job(request), request.path_params["number"]


async def _check_owner(request: Request, job_id: UUID) -> None:
    if bearer := _bearer(request):
        await bearer.client.job(job_id)


def _drawn(original: Original, payloads: PayloadStore, page: Page) -> tuple[str, bytes]:
    opening = saving.page_pictures()
    with (
        at_hand(original, payloads) as path,
        opening(path, password=original.password, quality=_QUALITY) as pictures,
    ):
        return for_browsers(pictures(page.number, rotation=page.rotation, skew=page.skew))
