"""The ASGI application of the gateway: routes, middleware, and the API description."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from pecia.errors import PeciaError
from pecia.gateway import jobs, problems, submitting, tenants
from pecia.gateway.announcements import GatewayConnections
from pecia.gateway.bodies import Job, Submission, Submitted
from pecia.gateway.bounds import BoundedBodies
from pecia.gateway.identity import Bearers, GatewayConfiguration, authorization_of, bearers_of
from pecia.gateway.openai import batches, files, requests
from pecia.gateway.openai.intake import Intake
from pecia.gateway.openai.requests import MOST_LINE
from pecia.gateway.pages import reference
from pecia.gateway.problems import Problem

_CODES: Final = "\n".join(f"| `{code}` | {meaning} |" for code, meaning in problems.CODES.items())
_ABOUT: Final = f"""
Submit documents and videos, follow them, and get their text. Every request except `/healthz` and this description
needs a key, which has access only to the jobs of its tenant. Errors are `application/problem+json`.

<details><summary>The <code>code</code> of a problem</summary>

| code | meaning |
|---|---|
{_CODES}

</details>
"""
_WITHOUT_DOCUMENTS: Final = 1024**2
"""Maximum size of a body without documents, which is held in memory."""
_TOOLS: Final = "/mcp"
_TOOL_BYTES: Final = 4 * 1024**2
_OPENAI_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"description": "An error in the form of OpenAI's API", "content": {"application/json": {}}}
}
_SCHEMAS: Final = "#/components/schemas/{model}"


def make_app(settings: GatewayConfiguration, *more: BaseRoute) -> FastAPI:
    """Return the gateway of a fleet as an ASGI application, with `more` routes. It connects when it starts."""

    @asynccontextmanager
    async def open_stores(app: FastAPI) -> AsyncIterator[None]:
        connections = GatewayConnections(settings)
        connections.payloads  # noqa: B018  opened once, for all clients
        app.state.bearers = bearers = Bearers(settings, connections)
        app.state.intake = intake = Intake(bearers)
        bearers.shared.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(bearers.close)
            intake.start()
            stack.push_async_callback(intake.close)
            if find_spec("mcp"):
                from pecia.gateway.tools import ToolsOverHttp  # noqa: PLC0415  an extra, slow to load

                app.state.tools = tools = ToolsOverHttp(bearers)
                await stack.enter_async_context(tools.run())
            yield

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
    for router in (submitting.router, jobs.router, tenants.keys, tenants.webhooks):
        v1.include_router(router)
    app.include_router(v1)
    for router in (files.router, batches.router, requests.router):
        app.include_router(router, prefix=problems.OPENAI, tags=["openai"], responses=_OPENAI_ERRORS)
    if find_spec("mcp"):
        app.router.routes.append(Route(_TOOLS, _Tools()))
    app.add_api_route(
        "/healthz", healthy, summary="Check that the gateway runs", tags=["gateway"], responses={}
    )
    app.router.routes += (*reference(), *more)
    for kind in (PeciaError, HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, problems.answer)
    app.add_middleware(BoundedBodies, most=partial(_most_bytes, settings.gateway_max_bytes), admit=_admit)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


class _Tools:
    """Passes requests to the tools for language models, which are created when the gateway starts."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["app"].state.tools(scope, receive, send)


async def healthy() -> dict[str, str]:
    """Answer that the gateway runs. The answer does not depend on the fleet."""
    return {"status": "ok"}


def _described(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document, completed with the bodies that no route declares by type."""
    if not app.openapi_schema:
        described = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, more = models_json_schema(
            [(Submission, "validation"), *((one, "serialization") for one in (Job, Submitted, Problem))],
            ref_template=_SCHEMAS,
        )
        schemas = described["components"]["schemas"]
        schemas |= more["$defs"]  # FastAPI's own drop nulls of examples
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for operation in (one for path in described["paths"].values() for one in path.values()):
            if operation["summary"].istitle():  # FastAPI's, made of the function's name
                operation["summary"] = operation["summary"].capitalize()
        app.openapi_schema = described
    return app.openapi_schema


async def _admit(request: Request) -> None:
    """Admit requests with a valid key; the bodies of others are not read. Raises `ProblemError`."""
    path = request.scope["path"]
    if path.startswith(("/v1/", "/desk/", problems.OPENAI)) or path == _TOOLS:
        request.state.bearer = await bearers_of(request).authenticate(authorization_of(request))


def _most_bytes(most: int, path: str) -> int:
    if path == _TOOLS:
        return min(most, _TOOL_BYTES)
    if path == f"{problems.OPENAI}/chat/completions":
        return min(most, MOST_LINE)
    with_documents = ("/v1/jobs", "/v1/documents", f"{problems.OPENAI}/files")
    return most if path in with_documents else min(most, _WITHOUT_DOCUMENTS)
