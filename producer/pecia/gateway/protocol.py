"""How the gateway and the review are served: connections whose heads, silence and slow reading are bounded.

What is bounded here comes before a request is known, or after its answer; `bounds` has the body in between.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pecia.gateway import problems
from pecia.gateway.problems import ProblemError

MOST_HEAD: Final = 64 * 1024
"""Bytes of a request's line and headers together."""
HEAD_S: Final = 10.0
"""How long they may take, and how long a new connection may be silent."""
KEEP_ALIVE_S: Final = 5
"""How long a connection may be silent after an answer."""
UNREAD_S: Final = 60.0
"""How long a client may read nothing of an answer that fills its buffers."""
_PIPELINED: Final = 8
"""Requests that may wait behind another one on a connection."""
_GRACE_S: Final = 3
"""How long requests may go on once the server is to stop; then streams break off."""
_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 1024**2
"""What still comes on a refused connection is thrown away: closing at once would take the answer from the client."""


def server(app: ASGIApp, *, connections: int, **more: Any) -> uvicorn.Server:
    """Return what serves the application, with so many connections at a time."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        access_log=False,  # a line for each request would put ids, filters and the review's token into the log
        server_header=False,
        log_level="warning",
        limit_concurrency=connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        **more,
    )
    return uvicorn.Server(config)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. uvicorn's protocol bounds neither the size of a head nor the time it takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = self.limit_concurrency
        self.limit_concurrency = None  # uvicorn's own refusal is no problem that a client knows
        self._in_head, self._head_bytes = True, 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._refused: int | None = None
        """Bytes thrown away since the connection was refused."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the head's time. A connection too many is answered by a refusal alone."""
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            self.app = cast("Any", _busy)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._stop(self._head_timer)
        self._stop(self._unread_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came. What is no request, or has too large a head, ends the connection."""
        if self._refused is not None:
            self._refused += len(data)
            if self._refused > _LINGER_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._time_head()
            self._head_bytes += len(data)
        assert self.parser is not None  # noqa: S101  until the connection is lost
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # to nothing: it is answered as it is
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            problem = error.__context__
            self._refuse(problem if isinstance(problem, ProblemError) else _no_request())
        else:
            if self._in_head and self._head_bytes > MOST_HEAD:
                self._refuse(_large_head())

    def on_headers_complete(self) -> None:
        """Answer the request, unless its head is too large or too many wait before it."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            raise _large_head()
        if len(self.pipeline) >= _PIPELINED:
            raise _no_request()
        self._stop(self._head_timer)
        self._head_timer, self._in_head = None, False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Start the time in which the client has to read."""
        super().pause_writing()
        self._stop(self._unread_timer)
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that time."""
        self._stop(self._unread_timer)
        super().resume_writing()

    def _time_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._end_head)

    def _end_head(self) -> None:
        if self._head_bytes:
            self._refuse(
                ProblemError(
                    HTTPStatus.REQUEST_TIMEOUT,
                    "too_slow",
                    f"A request's headers take at most {HEAD_S:.0f} s: send them at once.",
                )
            )
        else:
            self.transport.close()

    def _refuse(self, error: ProblemError) -> None:
        """Answer and close; within another answer, close."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        self._stop(self._head_timer)
        self._refused = 0
        body = bytes(problems.response_to(error).body)
        head = (
            f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\ncontent-type: {problems.MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def _large_head() -> ProblemError:
    return ProblemError(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "too_large",
        f"A request's line and headers have at most {MOST_HEAD:,} bytes: send fewer or shorter ones.",
    )


def _no_request() -> ProblemError:
    return ProblemError(
        HTTPStatus.BAD_REQUEST, "no_request", "This is no HTTP/1.1 request: check the client."
    )


async def _busy(scope: Any, receive: Any, send: Any) -> None:
    """Answer a connection beyond those that are served."""
    error = problems.busy("The gateway has as many connections as it serves: try again later.")
    error.headers = {**(error.headers or {}), "Connection": "close"}
    await problems.response_to(error)(scope, receive, send)
