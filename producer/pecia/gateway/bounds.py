"""Bounds of requests: size and time of bodies, places for work that runs only a few times at once, counts of keys.

All processes of a gateway share the counts through Redis, which counts requests; each process announces its own waits
and bytes in transfer by Pub/Sub. Without Redis each process counts alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pecia.aio.connections import AsyncPublisher
from pecia.errors import PeciaError
from pecia.gateway import problems
from pecia.gateway.problems import ProblemError, too_many
from pecia_schemas.threads import end

log = logging.getLogger(__name__)

CHANNEL: Final = "pecia:gateway"
_EVERY_S: Final = 1.0
_STALE_S: Final = 3.5
"""Age after which a process's announcement is dropped."""
_RETRY_S: Final = 30.0
_MOST_PROCESSES: Final = 256
_PATIENCE_S: Final = 1.0
"""Time that a request waits for its count."""


class Taken(NamedTuple):
    """Resources that a key uses."""

    waits: int = 0
    uploading: int = 0
    """Bytes of request bodies with documents."""


class SharedRate:
    """Limits a key's requests over all processes together. After a failure Redis is not used for a while."""

    def __init__(self, bus: AsyncPublisher, rate: float) -> None:
        self._bus = bus
        window = max(2, math.ceil(1 / rate))
        self._limit = RateLimitItemPerSecond(max(1, round(window * rate)), window, namespace="rate")
        self._redis: Redis | None = None
        self._rests_until = 0.0

    async def take(self, key: UUID) -> bool:
        """Count a request; return whether it is allowed. If Redis does not answer, every request is."""
        if time.monotonic() < self._rests_until or (redis := await self._bus.reach()) is None:
            return True
        if redis is not self._redis:
            self._redis = redis
            pool: Any = redis.connection_pool  # this pool verifies servers and follows failovers
            self._limiter = FixedWindowRateLimiter(
                RedisStorage("redis://", implementation="redispy", key_prefix=CHANNEL, connection_pool=pool)
            )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._limiter.hit(self._limit, str(key))
        except (RedisError, OSError, TimeoutError):
            self._rests_until = time.monotonic() + _RETRY_S
            return True


class SharedCounts:
    """Announces this process's counts, and receives those of the others."""

    def __init__(self, bus: AsyncPublisher, count: Callable[[], Mapping[UUID, Taken]]) -> None:
        self._bus, self._count = bus, count
        self._name = str(uuid4())
        self._heard: dict[str, tuple[float, dict[str, Taken]]] = {}
        self._complained = False
        self._task: asyncio.Task[None] | None = None

    def elsewhere(self, key: UUID) -> Taken:
        """Return the resources that a key uses at other processes, by their recent announcements."""
        fresh = time.monotonic() - _STALE_S
        known = [counts[str(key)] for at, counts in self._heard.values() if at > fresh and str(key) in counts]
        return Taken(*(sum(numbers) for numbers in zip(*known, strict=True))) if known else Taken()

    def start(self) -> None:
        """Begin to announce and to receive."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop announcing and receiving."""
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        while True:
            pubsub: PubSub = self._bus.redis.pubsub()
            try:
                await pubsub.subscribe(CHANNEL)
                while True:
                    await self._announce()
                    await self._hear(pubsub)
            except (RedisError, OSError) as error:
                if not self._complained:
                    self._complained = True
                    log.warning(
                        "The gateway cannot share its counts by Redis (%s): each process limits keys by itself. Check "
                        "that Redis runs, and that its account may use the channel %s.",
                        type(error).__name__,
                        CHANNEL,
                    )
            finally:
                with suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(_RETRY_S)

    async def _announce(self) -> None:
        counts = {str(key): taken for key, taken in self._count().items()}
        await self._bus.redis.publish(CHANNEL, json.dumps({"process": self._name, "counts": counts}))

    async def _hear(self, pubsub: PubSub) -> None:
        """Receive announcements for a second."""
        until = time.monotonic() + _EVERY_S
        while (remaining := until - time.monotonic()) > 0:
            message: dict[str, Any] | None = await pubsub.get_message(
                ignore_subscribe_messages=True, timeout=remaining
            )
            if message is not None:
                self._take(message["data"])

    def _take(self, data: str) -> None:
        """Store another process's announcement. Invalid messages are ignored."""
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            said = json.loads(data)
            name = str(said["process"])
            counts = {
                str(key): Taken(*(max(0, int(number)) for number in taken))
                for key, taken in said["counts"].items()
            }
            now = time.monotonic()
            for gone in [other for other, (at, _) in self._heard.items() if at < now - _STALE_S]:
                del self._heard[gone]
            if name != self._name and len(self._heard) < _MOST_PROCESSES:
                self._heard[name] = now, counts


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
