"""Bounds of requests: the size and time of bodies, and places for work that runs only a few times at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pecia.errors import PeciaError
from pecia.gateway import problems
from pecia.gateway.problems import ProblemError, too_many
from pecia.gateway.sharing import Taken

IDLE_S: Final = 30.0
"""Maximum time without any byte of a body."""
LEAST_RATE: Final = 16 * 1024
"""Minimum rate of a body in bytes a second, after the first `IDLE_S`; the server's own time does not count."""
_LINGER_S: Final = 5.0
"""Time in which the rest of a body is read and dropped after an answer: closing at once would lose the answer."""
_IN_LINE_S: Final = 30.0
"""Time that work waits for a place."""


class Body:
    """The body of a request while it arrives."""

    def __init__(self, scope: Scope, receive: Receive, most: int) -> None:
        headers = Headers(scope=scope)
        self.declared = int(headers.get("content-length", "0"))  # the server has parsed it
        self.complete = not self.declared and "transfer-encoding" not in headers
        """Whether the complete body has arrived."""
        self.count: Callable[[int], None] = lambda _: None
        """Called with the number of newly arrived bytes; may raise."""
        self._receive, self.most = receive, most
        self._taken, self._waited = 0, 0.0

    async def receive(self) -> Message:
        """Return the next message. Raises `ProblemError` if the body is too large or too slow."""
        if self.complete:
            return await self._receive()
        allowed = min(IDLE_S, IDLE_S + self._taken / LEAST_RATE - self._waited)
        began = time.monotonic()
        try:
            async with asyncio.timeout(allowed):
                message = await self._receive()
        except TimeoutError:
            raise ProblemError(
                HTTPStatus.REQUEST_TIMEOUT,
                "too_slow",
                f"The request's body stalled, or arrived with less than {LEAST_RATE:,} bytes a second: send it again.",
            ) from None
        self._waited += time.monotonic() - began
        self.complete = not message.get("more_body", False)
        fresh = len(message.get("body", b""))
        self._taken += fresh
        if self._taken > self.most:
            raise self.too_large()
        self.count(fresh)
        return message

    async def discard(self) -> None:
        """Read and drop the rest of the body, for at most `_LINGER_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while not self.complete:
                    self.complete = not (await self._receive()).get("more_body", False)

    def too_large(self) -> ProblemError:
        """Return the refusal of a body that is, or says that it is, too large."""
        return ProblemError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            f"A request has at most {self.most:,} bytes: send fewer documents at a time.",
        )


class BoundedBodies:
    """Admits requests before their bodies are read, and bounds these. After an early answer, closes the connection."""

    def __init__(
        self,
        app: ASGIApp,
        most: Callable[[str], int],
        admit: Callable[[Request], Awaitable[None]] | None = None,
    ) -> None:
        self._app, self._most, self._admit = app, most, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = Body(scope, receive, self._most(scope["path"]))
        scope.setdefault("state", {})["body"] = body
        app, answering = self._app, _closing(body, send)
        try:
            if self._admit is not None:
                await self._admit(Request(scope))
            if body.declared > body.most:
                raise body.too_large()
        except (ProblemError, PeciaError) as error:
            app = await problems.answer(Request(scope), error)
        await app(scope, body.receive, answering)


def _closing(body: Body, send: Send) -> Send:
    """Return a send function that closes the connection if the body has not arrived when the answer begins."""
    closes = False

    async def sending(message: Message) -> None:
        nonlocal closes
        if message["type"] == "http.response.start" and not body.complete:
            closes = True
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        elif closes and not message.get("more_body", False):
            await send({**message, "more_body": True})
            await body.discard()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await send(message)

    return sending


class HeldResponse(Response):
    """A response that keeps what it took, such as a place, until it is sent or its reader is gone."""

    def __init__(self, response: Response, taken: AsyncExitStack) -> None:
        self._response, self._taken, self.background = response, taken, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._taken:
            await self._response(scope, receive, send)


class Places:
    """Places for work of one kind: some run at a time, some wait, and further work is refused."""

    def __init__(self, running: int, waiting: int, refusal: Callable[[], ProblemError]) -> None:
        self._most = running + waiting
        self._free = asyncio.Semaphore(running)
        self._taken = 0
        self._refusal = refusal

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place, waiting for it if necessary. Raises the refusal if too many wait, or after `_IN_LINE_S`."""
        if self._taken >= self._most:
            raise self._refusal()
        self._taken += 1
        try:
            try:
                async with asyncio.timeout(_IN_LINE_S):
                    await self._free.acquire()
            except TimeoutError:
                raise self._refusal() from None
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._taken -= 1


_too_many_uploads = partial(
    too_many, "uploads", "This key uploads too many documents at a time: send fewer.", 5
)
_too_many_results = partial(
    too_many, "results", "This key has too many results in progress: request fewer at once.", 5
)
_UPLOADS: Final = (16, 256, _too_many_uploads)
_RESULTS: Final = (4, 64, _too_many_results)
_DRAWN: Final = (1, 3, _too_many_results)


@dataclass
class KeyLimits:
    """Limits of one key at a process."""

    uploads: Places = field(default_factory=lambda: Places(*_UPLOADS))
    """Places for bodies with documents."""
    results: Places = field(default_factory=lambda: Places(*_RESULTS))
    """Places for results that are assembled."""
    drawings: Places = field(default_factory=lambda: Places(*_DRAWN))
    """Places for results with pictures, which also need a place of `results`."""
    waits: int = 0
    """Number of streams, and of requests that wait for a job's end."""
    uploading: int = 0
    """Bytes of bodies that have arrived or were declared."""
    elsewhere: Callable[[], Taken] = Taken
    """Returns the resources that the key uses at other processes."""

    @contextmanager
    def wait(self, most: int) -> Iterator[None]:
        """Count a wait. Raises `ProblemError` if there are too many."""
        if self.waits + self.elsewhere().waits >= most:
            raise too_many(
                "streams", f"This key has {most} streams and waits open: close some, or omit `wait`.", 5
            )
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1


class Spool:
    """Counts the bytes of all bodies with documents that are arriving; they are in the temporary directory."""

    def __init__(self, most: int, most_of_key: int) -> None:
        self._most, self._most_of_key = most, most_of_key
        self._bytes = 0

    @asynccontextmanager
    async def upload(self, key: KeyLimits, body: Body) -> AsyncIterator[None]:
        """Accept a body once its key has a place. Raises `ProblemError` if the key or the process has no capacity."""
        async with key.uploads.place():
            came = counted = 0

            def count(fresh: int) -> None:
                nonlocal came, counted
                came += fresh
                more = max(came, body.declared) - counted
                counted += more
                self._bytes += fresh
                key.uploading += more
                if (more or not came) and key.uploading + key.elsewhere().uploading > self._most_of_key:
                    raise _too_many_uploads()
                if self._bytes + (0 if came else counted) > self._most:
                    raise problems.busy(
                        "The gateway receives its maximum bytes of documents: send them again later."
                    )

            try:
                count(0)
                body.count = count
                yield
            finally:
                body.count = lambda _: None
                self._bytes -= came
                key.uploading -= counted
