"""Routes of the web page: its files, signing in with a key, and the review of a job.

The browser keeps the key in a cookie that scripts cannot read and that other sites cannot make it send. The page gets
its data from `/v1`, like any other client.
"""

from http import HTTPStatus
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router, request_response
from starlette.types import Receive, Scope, Send

from pecia.accounts import Scope as KeyScope
from pecia.gateway.identity import COOKIE, Bearer, bearers_of, require
from pecia.gateway.pages import Secured, files_at
from pecia.gateway.problems import ProblemError
from pecia.review.app import Desk, Work

_ASSETS: Final = {"/": "web.html", "/web.js": "web.js", "/web.css": "web.css"}
_MOST: Final = 1_000
"""Maximum size of a sign-in request, in bytes."""


class _SignIn(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    key: str


def web_page() -> list[BaseRoute]:
    """Return the routes of the web page, for `make_app` of the gateway."""
    desk = Desk(lambda request: Work(job_ids=(request.path_params["reviewed"],)))
    return [
        *files_at("pecia.web", _ASSETS),
        Route("/session", Secured(request_response(_session)), methods=["GET", "POST", "DELETE"]),
        Mount("/desk/{reviewed:uuid}", _ForReviewers(Secured(Router(desk.routes)))),
    ]


class _ForReviewers:
    """Refuses keys without the scope `review`."""

    def __init__(self, app: Secured) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bearer: Bearer = Request(scope).state.bearer
        require(bearer, KeyScope.REVIEW)
        await self._app(scope, receive, send)


async def _session(request: Request) -> Response:
    """Sign in or out, or answer 204, 205 without a cookie: to look is no error."""
    if request.method == "POST":
        return await _sign_in(request)
    if request.method == "DELETE":
        response = Response(status_code=HTTPStatus.NO_CONTENT)
        response.delete_cookie(COOKIE, path="/")
        return response
    is_known = COOKIE in request.cookies
    return Response(status_code=HTTPStatus.NO_CONTENT if is_known else HTTPStatus.RESET_CONTENT)


async def _sign_in(request: Request) -> Response:
    """Store a valid key in a cookie. Raises `ProblemError` for an invalid key."""
    if request.headers.get("content-type") != "application/json":  # forms of other sites cannot send it
        raise ProblemError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "media_type", "Send the key as application/json."
        )
    try:
        key = _SignIn.model_validate_json((await request.body())[:_MOST]).key
    except ValidationError:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "validation", 'Send {"key": "…"}.') from None
    await bearers_of(request).authenticate(f"Bearer {key}")
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.set_cookie(
        COOKIE, key, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )
    return response
