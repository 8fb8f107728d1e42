"""Pages in a browser: their files, and `/docs`, the gateway's description with the web page's key or a typed one."""

from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_VIEWER: Final = "fastapi_swagger"
"""A package that contains the files of Swagger UI. Its Python code is not imported."""


class Secured:
    """Adds headers that make a browser load and run only the page's own files."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


def files_at(package: str, names: Mapping[str, str]) -> list[Route]:
    """Return a route for each path, which answers with a package's file for a browser, or the file of a whole path."""
    folder = Path(str(files(package))) / "assets"

    def route(path: str, file: Path) -> Route:
        async def send(_: Request) -> Response:
            return FileResponse(file)

        return Route(path, Secured(request_response(send)), methods=["GET"])

    return [route(path, folder / name) for path, name in names.items()]


def reference() -> list[Route]:
    """Return the routes of `/docs`; there is none where the viewer is not installed."""
    viewer = find_spec(_VIEWER)
    if viewer is None or viewer.origin is None:
        return []
    shipped = Path(viewer.origin).parent / "resources"
    served = {f"/docs/{name}": str(shipped / name) for name in ("swagger-ui-bundle.js", "swagger-ui.css")}
    return files_at("pecia.gateway", {"/docs": "docs.html", "/docs/docs.js": "docs.js"} | served)
