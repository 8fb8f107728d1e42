"""Bounds of requests: the size and time of bodies, and places for work that runs only a few times at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
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
        self._receive, self._most = receive, most
        self._taken, self._waited = 0, 0.0

    def check_declared(self) -> None:
        """Raise `ProblemError` if the declared size is too large."""
        if self.declared > self._most:
            raise self._too_large()

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
        if self._taken > self._most:
            raise self._too_large()
        self.count(fresh)
        return message

    async def discard(self) -> None:
        """Read and drop the rest of the body, for at most `_LINGER_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while not self.complete:
                    self.complete = not (await self._receive()).get("more_body", False)

    def _too_large(self) -> ProblemError:
        return ProblemError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            f"A request may have at most {self._most:,} bytes: send fewer documents at a time.",
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
            body.check_declared()
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


class Places:
    """Places for work of one kind: some run at a time, some wait, and further work is refused."""

    def __init__(self, running: int, waiting: int) -> None:
        self._most = running + waiting
        self._free = asyncio.Semaphore(running)
        self._taken = 0

    @asynccontextmanager
    async def place(self, refusal: Callable[[], ProblemError]) -> AsyncIterator[None]:
        """Hold a place, waiting for it if necessary. Raises the refusal if too many wait, or after `_IN_LINE_S`."""
        if self._taken >= self._most:
            raise refusal()
        self._taken += 1
        try:
            try:
                async with asyncio.timeout(_IN_LINE_S):
                    await self._free.acquire()
            except TimeoutError:
                raise refusal() from None
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._taken -= 1


_UPLOADS: Final = (16, 256)
_RESULTS: Final = (4, 64)
_DRAWN: Final = (1, 3)


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
        refusal = partial(
            too_many, "uploads", "This key uploads too many documents at a time: send fewer.", 5
        )
        async with key.uploads.place(refusal):
            came, counted = 0, body.declared

            def count(fresh: int) -> None:
                nonlocal came, counted
                came += fresh
                more = max(0, came - counted)
                counted += more
                self._bytes += fresh
                key.uploading += more
                if more and key.uploading + key.elsewhere().uploading > self._most_of_key:
                    raise refusal()
                if self._bytes > self._most:
                    raise self._full()

            if key.uploading + body.declared + key.elsewhere().uploading > self._most_of_key:
                raise refusal()
            if self._bytes + body.declared > self._most:
                raise self._full()
            key.uploading += body.declared
            try:
                body.count = count
                yield
            finally:
                body.count = lambda _: None
                self._bytes -= came
                key.uploading -= counted

    def _full(self) -> ProblemError:
        return problems.busy("The gateway receives its maximum bytes of documents: send them again later.")
