"""Server-sent events: the events of a job's stream, and how an interrupted stream is resumed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel

from pecia.aio.job import AsyncJob
from pecia.errors import InvalidOptionError, PeciaError
from pecia.gateway.bodies import Job
from pecia.gateway.bounds import HeldResponse
from pecia.gateway.identity import Bearer
from pecia.gateway.problems import of_error
from pecia.records import PartOutcome
from pecia.waiting import ReadEvents, ReadParts
from pecia_schemas import storable
from pecia_schemas.events import JobEvent
from pecia_schemas.media import Ordinals
from pecia_schemas.results import plain
from pecia_schemas.settings.worker import GatewaySettings
from pecia_schemas.states import Stage
from pecia_schemas.threads import end, finish

MEDIA_TYPE: Final = "text/event-stream"
_BEAT_S: Final = 15.0
"""Interval after which an idle stream sends a comment, so that no proxy closes it."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_MOST_PARTS: Final = 1_000_000
_NAMES: Final = {
    Stage.READ: "page",
    Stage.CAPTION: "segment",
    Stage.SUMMARIZE: "summary",
    Stage.SPLIT: "split",
}


def is_wanted(request: Request) -> bool:
    """Whether the client accepts events instead of JSON."""
    return MEDIA_TYPE in request.headers.get("accept", "")


def read_before(last: str | None) -> Ordinals:
    """Return the ordinals of the parts in a `Last-Event-ID`. Raises `InvalidOptionError`."""
    try:
        return Ordinals.parse(last, _MOST_PARTS) if last else Ordinals()
    except ValueError:
        raise _no_id() from None


def number_of(last: str | None) -> int:
    """Return the sequence number in a `Last-Event-ID`. Raises `InvalidOptionError`."""
    if not last:
        return 0
    if not (last.isascii() and last.isdigit() and len(last) <= 18):  # noqa: PLR2004  as a bigint has
        raise _no_id()
    return int(last)


def _no_id() -> InvalidOptionError:
    return InvalidOptionError("Last-Event-ID must be the id of an event of this stream.")


async def of_parts(parts: AsyncGenerator[PartOutcome, None], read: ReadParts) -> AsyncGenerator[bytes, None]:
    """Yield a server-sent event for each part that has ended."""
    sent = read.ordinals.copy()
    async with aclosing(parts) as outcomes:
        async for outcome in outcomes:
            sent.add(outcome.ordinal)
            name: str = _NAMES[outcome.stage]
            data: Any = outcome.content and plain(outcome.content)
            if outcome.failure is not None:
                name, data = (
                    "failed",
                    {
                        "number": outcome.ordinal + 1,
                        "stage": outcome.stage,
                        "failure": outcome.failure.model_dump(mode="json"),
                    },
                )
            if data is not None:
                yield _event(name, data, sent.written(storable.PAGES))


async def of_events(events: AsyncGenerator[JobEvent, None], read: ReadEvents) -> AsyncGenerator[bytes, None]:
    """Yield a server-sent event for each event of the job."""
    async with aclosing(events) as opened:
        async for one in opened:
            yield _event("event", one, str(read.floor))


def stream(
    bearer: Bearer, settings: GatewaySettings, job: AsyncJob[Any], sent: AsyncGenerator[bytes, None]
) -> Response:
    """Return a response that streams these events, and then the state of the job."""

    async def to_the_end() -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(sent) as events:
                async for event in events:
                    yield event
            yield _event("end", Job.of(await job.refresh()))
        except Exception as error:
            yield _event("error", of_error(error))
            if not isinstance(error, PeciaError):
                raise  # to be logged

    counted = AsyncExitStack()
    counted.enter_context(bearer.limits.wait(settings.gateway_streams))
    content = _beating(to_the_end())
    counted.push_async_callback(content.aclose)
    return HeldResponse(StreamingResponse(content, media_type=MEDIA_TYPE, headers=_HEADERS), counted)


async def _beating(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events, and a comment after each `_BEAT_S` without one."""
    async with aclosing(events):
        coming: asyncio.Future[bytes] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(events))
                done, _ = await asyncio.wait([coming], timeout=_BEAT_S)
                if not done:
                    yield b":\n\n"
                    continue
                try:
                    event = coming.result()
                except StopAsyncIteration:
                    return
                coming = None
                yield event
        finally:
            if coming is not None:
                await finish(end(coming))  # even if cancelled again: a running generator cannot be closed


def _event(name: str, data: BaseModel | Any, identifier: str | None = None) -> bytes:
    text = data.model_dump_json() if isinstance(data, BaseModel) else json.dumps(data, ensure_ascii=False)
    named = f"id: {identifier}\n" if identifier is not None else ""
    return f"{named}event: {name}\ndata: {text}\n\n".encode()
