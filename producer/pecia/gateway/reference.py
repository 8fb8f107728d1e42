"""`/docs`: the API description as pages in a browser, with the key of the web page or a key that is typed there."""

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route, request_response

from pecia.review.app import Secured

_VIEWER: Final = "fastapi_swagger"
"""A package that contains the files of Swagger UI. Its Python code is not imported."""
_VIEWER_FILES: Final = ("swagger-ui-bundle.js", "swagger-ui.css")


def reference() -> list[BaseRoute]:
    """Return the routes of the pages, or none if the viewer is not installed."""
    viewer = find_spec(_VIEWER)
    if viewer is None or viewer.origin is None:
        return []
    own = Path(str(files("pecia.gateway"))) / "assets"
    shipped = Path(viewer.origin).parent / "resources"
    served = {
        "/docs": own / "docs.html",
        "/docs/docs.js": own / "docs.js",
        **{f"/docs/{name}": shipped / name for name in _VIEWER_FILES},
    }

    async def send(request: Request) -> Response:
        return FileResponse(served[request.url.path])

    return [Route(path, Secured(request_response(send)), methods=["GET"]) for path in served]
