"""What a request may take: the bytes and the time of its body, and places for work of which little runs at a time."""

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
"""How long nothing of a body may come."""
LEAST_RATE: Final = 16 * 1024
"""Bytes a second that a body comes with, beyond the first `IDLE_S`; time that the server takes does not count."""
_LINGER_S: Final = 5.0
"""How long the rest of a body is thrown away after an answer: closing at once would take the answer from the client."""
_IN_LINE_S: Final = 30.0
"""How long work waits for a place."""


class Body:
    """A request's body on its way in."""

    def __init__(self, scope: Scope, receive: Receive, most: int) -> None:
        headers = Headers(scope=scope)
        self.declared = int(headers.get("content-length", "0"))  # the server has parsed it
        self.complete = not self.declared and "transfer-encoding" not in headers
        """Whether nothing more of it comes."""
        self.count: Callable[[int], None] = lambda _: None
        """Is told how many bytes have come; may raise."""
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
                f"The request's body stalled, or came with less than {LEAST_RATE:,} bytes a second: send it again.",
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
        """Throw away what still comes, for a moment."""
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
    """Admits requests before anything of their bodies is read, and bounds those; after an early answer it closes."""

    def __init__(
        self,
        app: ASGIApp,
        most: Callable[[str], int],
        admit: Callable[[Request], Awaitable[None]] | None = None,
    ) -> None:
        self._app, self._most, self._admit = app, most, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
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
    """Return what sends, and closes the connection if the request's body has not come by then."""
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
    """Places for work of one kind: so many run at a time, some wait in line, and the rest is refused."""

    def __init__(self, running: int, waiting: int, refusal: Callable[[], ProblemError]) -> None:
        self._most = running + waiting
        self._free = asyncio.Semaphore(running)
        self._taken = 0
        self._refusal = refusal

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place, once there is one. Raises the refusal if too many wait, or for too long."""
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
    too_many, "uploads", "This key sends too many documents at a time: send fewer.", 5
)
_too_many_results = partial(
    too_many, "results", "This key has too many results written at a time: get fewer at once.", 5
)
_UPLOADS: Final = (16, 256, _too_many_uploads)
_RESULTS: Final = (4, 64, _too_many_results)
_DRAWN: Final = (1, 3, _too_many_results)


@dataclass
class KeyLimits:
    """What one key has open at a process."""

    uploads: Places = field(default_factory=lambda: Places(*_UPLOADS))
    """Bodies with documents."""
    results: Places = field(default_factory=lambda: Places(*_RESULTS))
    """Results that are put together."""
    drawings: Places = field(default_factory=lambda: Places(*_DRAWN))
    """Those of them with pictures."""
    waits: int = 0
    """Streams, and requests that wait for a job's end."""
    uploading: int = 0
    """Bytes of bodies that came or were declared."""
    elsewhere: Callable[[], Taken] = Taken
    """Returns what it takes at other processes."""

    @contextmanager
    def wait(self, most: int) -> Iterator[None]:
        """Count a wait. Raises `ProblemError` if there are too many."""
        if self.waits + self.elsewhere().waits >= most:
            raise too_many(
                "streams", f"This key has {most} streams and waits open: end some, or ask without `wait`.", 5
            )
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1


class Spool:
    """The bytes of all bodies with documents that are on their way in: they lie in the temporary directory."""

    def __init__(self, most: int, most_of_key: int) -> None:
        self._most, self._most_of_key = most, most_of_key
        self._bytes = 0

    @asynccontextmanager
    async def upload(self, key: KeyLimits, body: Body) -> AsyncIterator[None]:
        """Let a body in once its key has a place. Raises `ProblemError` if there is none, for it or for its bytes."""
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
                        "The gateway takes in as many bytes of documents as it may: send them again later."
                    )

            try:
                count(0)
                body.count = count
                yield
            finally:
                body.count = lambda _: None
                self._bytes -= came
                key.uploading -= counted
