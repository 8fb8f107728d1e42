"""HTTP connections of the gateway and the review, with bounds on request heads, idle time and slow readers.

These bounds apply before a request is parsed and after its answer; those of `bounds` apply to the body.
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
"""Maximum size of a request line with its headers, in bytes."""
HEAD_S: Final = 10.0
"""Time in which a new connection must send the head of a request."""
KEEP_ALIVE_S: Final = 5
"""Idle time after an answer before a connection is closed."""
UNREAD_S: Final = 60.0
"""Time in which a client must read some of an answer that fills its buffers."""
_PIPELINED: Final = 8
"""Requests that may wait behind another one on a connection."""
_GRACE_S: Final = 3
"""Time in which requests may finish after the server is told to stop; then streams are cut off."""
_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 1024**2
"""Bytes that are still read from a refused connection and dropped: closing at once would lose the answer."""


def server(app: ASGIApp, *, connections: int, **more: Any) -> uvicorn.Server:
    """Return a server for the application, with a maximum number of connections."""
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
    """One connection. Unlike uvicorn's own protocol, it bounds the size and the time of a head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = self.limit_concurrency
        self.limit_concurrency = None  # uvicorn's own refusal is not a problem document
        self._in_head, self._head_bytes = True, 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._refused: int | None = None
        """Bytes dropped since the connection was refused; None if it was not."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the head. A connection beyond the limit only gets a refusal."""
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            self.app = cast("Any", _busy)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop(self._head_timer)
        self._stop(self._unread_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. An invalid request or a head that is too large ends the connection."""
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
        except httptools.HttpParserUpgrade:  # upgrades are not supported: answer the request itself
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            problem = error.__context__
            self._refuse(problem if isinstance(problem, ProblemError) else _no_request())
        else:
            if self._in_head and self._head_bytes > MOST_HEAD:
                self._refuse(_large_head())

    def on_headers_complete(self) -> None:
        """Start answering the request, unless its head is too large or too many requests wait before it."""
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
        """Start the timer in which the client must read."""
        super().pause_writing()
        self._stop(self._unread_timer)
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer in which the client must read."""
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
                    f"A request's headers may take at most {HEAD_S:.0f} s: send them at once.",
                )
            )
        else:
            self.transport.close()

    def _refuse(self, error: ProblemError) -> None:
        """Send the refusal and close the connection; in the middle of another answer, only close."""
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
        f"A request's line and headers may have at most {MOST_HEAD:,} bytes: send fewer or shorter headers.",
    )


def _no_request() -> ProblemError:
    return ProblemError(
        HTTPStatus.BAD_REQUEST, "no_request", "This is not a valid HTTP/1.1 request: check the client."
    )


async def _busy(scope: Any, receive: Any, send: Any) -> None:
    """Answer a connection beyond the limit."""
    error = problems.busy("The gateway has its maximum number of connections: try again later.")
    error.headers = {**(error.headers or {}), "Connection": "close"}
    await problems.response_to(error)(scope, receive, send)
