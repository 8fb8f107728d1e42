"""Following one job while it runs: its parts as they end, its events as they are written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pecia.aio.completion import announcements, outlast
from pecia.records import PartOutcome
from pecia.waiting import FETCH, Deadline, ReadEvents, ReadParts
from pecia_schemas.events import JobEvent

if TYPE_CHECKING:
    from pecia.aio.connections import AsyncConnections


async def parts(
    connections: AsyncConnections,
    job_id: UUID,
    is_over: Callable[[], Awaitable[bool]],
    deadline: Deadline,
    *,
    in_order: bool,
    read: ReadParts | None = None,
) -> AsyncGenerator[PartOutcome, None]:
    """Yield the parts of a job as they end, in the document's order or in that of ending; not those `read` before.

    `is_over` looks at the job. Raises `JobTimeoutError` at the deadline.
    """
    store, read = connections.store, read or ReadParts()
    async with announcements(connections, [job_id], deadline) as news:
        while True:
            over = await outlast(is_over, deadline)  # asked first: what ended before is among the outcomes
            barrier = await outlast(lambda: store.first_unfinished(job_id), deadline) if in_order else None
            fresh: Sequence[PartOutcome] = ()
            if read.wants_more(barrier):
                fresh = await outlast(
                    lambda: store.outcomes(job_id, skip=read.ordinals, limit=FETCH, read_as=read.read_as),
                    deadline,
                )
            for outcome in read.ready(fresh, barrier):
                yield outcome
            if len(fresh) == FETCH:
                continue
            if over:
                return
            deadline.check(job_id)
            await news.wait()


async def events(
    connections: AsyncConnections,
    job_id: UUID,
    is_over: Callable[[], Awaitable[bool]],
    deadline: Deadline,
    read: ReadEvents | None = None,
) -> AsyncGenerator[JobEvent, None]:
    """Yield each event of a job once, until the job is over. Raises `JobTimeoutError` at the deadline."""
    store, read = connections.store, read or ReadEvents()
    async with announcements(connections, [job_id], deadline) as news:
        while True:
            over = await outlast(is_over, deadline)  # asked first: the event of the end is read next
            fresh = await outlast(lambda: store.events(job_id, after=read.floor, skip=read.recent), deadline)
            for event in fresh:
                read.add(event.sequence)
                yield event
            if over:
                return
            deadline.check(job_id)
            await news.wait()
            read.settle()
