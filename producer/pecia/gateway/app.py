"""The application: its routes, what holds for all of them, and its description."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pecia.aio.connections import AsyncConnections
from pecia.errors import PeciaError
from pecia.gateway import jobs, problems, submitting, webhooks
from pecia.gateway.bodies import Job, Submission, Submitted
from pecia.gateway.identity import Bearers, GatewayConfiguration
from pecia.gateway.problems import Problem, ProblemError

_ABOUT: Final = """
Submit documents and videos, follow them, and get their text. Every request but `/healthz` and this description shows a
key, which sees the jobs of its tenant and no others. Errors are `application/problem+json`.
"""
_WITHOUT_DOCUMENTS: Final = 1024**2
"""Most bytes of any other body: the framework reads and parses it before it is known who asks."""
_SCHEMAS: Final = "#/components/schemas/{model}"


def make_app(settings: GatewayConfiguration) -> FastAPI:
    """Return the gateway of a fleet, as an ASGI application. It connects when it starts."""

    @asynccontextmanager
    async def open_stores(app: FastAPI) -> AsyncIterator[None]:
        connections = AsyncConnections(settings)
        connections.payloads  # noqa: B018  opened once, for the clients of all keys
        app.state.bearers = Bearers(settings, connections)
        try:
            yield
        finally:
            await connections.close()

    app = FastAPI(
        title="Pecia",
        version=version("pecia"),
        description=_ABOUT,
        lifespan=open_stores,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    v1 = APIRouter(prefix="/v1")
    for router in (submitting.router, jobs.router, webhooks.router):
        v1.include_router(router)
    app.include_router(v1)
    app.add_api_route("/healthz", healthy, tags=["gateway"], responses={})
    for kind in (PeciaError, ProblemError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, problems.answer)
    app.add_middleware(_Bounded, most=settings.gateway_max_bytes)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


async def healthy() -> dict[str, str]:
    """Say that the gateway runs. It says nothing of the fleet."""
    return {"status": "ok"}


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document: that of the framework, with the bodies that no route declares by type."""
    if not app.openapi_schema:
        described = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, more = models_json_schema(
            [
                (Submission, "validation"),
                *((answer, "serialization") for answer in (Job, Submitted, Problem)),
            ],
            ref_template=_SCHEMAS,
        )
        schemas = described["components"]["schemas"]
        schemas |= more["$defs"]  # the framework's own lack what of an example is null
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = described
    return app.openapi_schema


class _Bounded:
    """Refuses bodies that are larger than the gateway takes, also those that do not say so."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken, most = 0, self._most
        if not scope.get("path", "").endswith(("/v1/jobs", "/v1/documents")):
            most = min(most, _WITHOUT_DOCUMENTS)

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise ProblemError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    "too_large",
                    f"A request has at most {most:,} bytes: send fewer documents at a time.",
                )
            return message

        await self._app(scope, bounded, send)
