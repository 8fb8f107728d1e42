"""Waiting for jobs, as `pecia.waiting` decides."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from pecia.aio.concurrency import sleep
from pecia.errors import UnavailableError
from pecia.view import JobView
from pecia.waiting import Deadline, Outage, Pending, batches, in_order

if TYPE_CHECKING:
    from pecia.aio.connections import AsyncConnections
    from pecia.aio.publishing import AsyncAnnouncements

T = TypeVar("T")


def announcements(
    connections: AsyncConnections, job_ids: Collection[UUID], deadline: Deadline
) -> AsyncAnnouncements:
    """Return the news about these jobs, at the client's own polling interval."""
    return connections.announcements(job_ids, deadline)


async def finished(
    connections: AsyncConnections, job_ids: Sequence[UUID], deadline: Deadline
) -> AsyncGenerator[JobView, None]:
    """Yield each job once it is over, as they finish.

    Raises `JobTimeoutError` at the deadline and `JobNotFoundError` if one of them does not exist.
    """
    pending = Pending(job_ids, deadline)
    async with announcements(connections, job_ids, deadline) as news:
        while pending:
            for view in await outlast(lambda: look(connections, pending.look_at), deadline):
                if pending.settle(view):
                    yield view
            if pending:
                pending.check()
                pending.hear(await news.wait())


async def outlast(look: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
    """Return what it finds, looking again while Postgres restarts, for half a minute or to the deadline.

    Raises `UnavailableError` when that is over.
    """
    outage = Outage(deadline)
    while True:
        try:
            return await look()
        except UnavailableError:
            if not (pause := outage.pause()):
                raise
            await sleep(pause)


async def look(connections: AsyncConnections, job_ids: Sequence[UUID]) -> list[JobView]:
    """Return the jobs as they are now. Raises `JobNotFoundError` if one of them does not exist."""
    return [
        view for batch in batches(job_ids) for view in in_order(batch, await connections.store.views(batch))
    ]
