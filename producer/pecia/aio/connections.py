"""What an asynchronous client holds open: Postgres, Redis and the payload store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import Self
from uuid import UUID

from pecia import tracing
from pecia.aio import bulk
from pecia.aio.database import AsyncDatabase, within_work
from pecia.aio.publishing import AsyncAnnouncements, AsyncBus
from pecia.audit import Place, TrailPages
from pecia.bulk import Item, Outcome, messages
from pecia.configuration import redis_url
from pecia.connections import Holdings, store_answers
from pecia.errors import DatabaseRefusedError, SubmitError, UnavailableError
from pecia.purging import FIRST, PurgingSteps, batches
from pecia.records import AuditEntry, Erasure, Selection
from pecia.review.statements import Reviews
from pecia.submission import NewJob, Options
from pecia.tracing import sending
from pecia.view import Accepted
from pecia.waiting import Deadline
from pecia_schemas.messages import PartMessage
from pecia_schemas.payloads import payload_named
from pecia_schemas.settings import ClientSettings


class AsyncTrail(TrailPages[AsyncDatabase]):
    """What the database remembers of reading and erasing, newest first."""

    async def entries(
        self, *, job_id: UUID | None, client: str | None, since: datetime | None
    ) -> AsyncGenerator[AuditEntry, None]:
        """Yield what fits, read page by page as it is asked for."""
        page, place = await self.page(Place(), job_id=job_id, client=client, since=since)
        while page:
            for entry in page:
                yield entry
            page, place = await self.page(place, job_id=job_id, client=client, since=since)


class AsyncPurging(PurgingSteps[AsyncDatabase]):
    """What a client may erase."""

    async def fitting(self, selection: Selection) -> list[UUID]:
        """Return the jobs that are meant and still hold something."""
        found: list[UUID] = []
        while page := await self.fitting_after(selection, found[-1] if found else FIRST):
            found += page
        return found

    async def look(self, job_ids: Sequence[UUID]) -> list[Erasure]:
        """Return what there is to erase of these jobs."""
        return [found for batch in batches(job_ids) for found in await self.look_at(batch)]

    async def erase(
        self, job_ids: Sequence[UUID], reason: str | None, remove: Callable[[str], Awaitable[None]]
    ) -> tuple[list[Erasure], list[UUID]]:
        """Erase what these jobs hold; return what that was, and which of them were cancelled for it.

        `remove` takes a payload out of the store.
        """
        erased: list[Erasure] = []
        cancelled: list[UUID] = []
        for batch in batches(job_ids):
            purged = await self.empty(batch, reason)
            fates = {name: await self.discard(name, within_work(remove)) for name in purged.documents}
            erased += purged.told(fates)
            cancelled += purged.cancelled
        return erased, cancelled


class AsyncConnections(Holdings[AsyncDatabase]):
    """The three stores of a fleet, opened when they are first needed, for the running loop."""

    def __init__(self, settings: ClientSettings) -> None:
        url, patience = settings.database_url.get_secret_value(), settings.connect_timeout
        super().__init__(settings, AsyncDatabase(url, connect_timeout=patience))
        self.trail = AsyncTrail(self._database)
        self.bus = AsyncBus(redis_url(settings), connect_timeout=patience, window=settings.window)

    def _name(self, client: str, tenant: str | None) -> None:
        super()._name(client, tenant)
        self.purging = AsyncPurging(self._database, client=client)
        self.reviews = Reviews(self._database, self.keys, client=client)

    def seen_by(self, client: str, tenant: str) -> Self:
        """Return the same as a client of that name sees it, for one tenant's jobs. It is not to be closed."""
        view = copy(self)
        view._name(client, tenant)  # noqa: SLF001  another of this class
        return view

    def announcements(self, job_ids: Collection[UUID], deadline: Deadline) -> AsyncAnnouncements:
        """Return the news about these jobs, at the client's own polling interval."""
        return AsyncAnnouncements(self.bus, job_ids, poll_s=self.poll_s, deadline=deadline)

    async def accept(self, items: Sequence[Item], asked: Options) -> Iterable[Outcome]:
        """Payloads first, then rows, then messages: whatever breaks in between, nothing accepted is lost."""
        prepared = await bulk.prepare(items, self.payloads, asked, self.keys)
        new = prepared.new
        with tracing.accepting(len(new)):
            accepted = await self._write(new) if new else []
        self.backlog.add(asked.lane, len(new))
        await self.publish(messages(new, accepted))
        return prepared.outcomes(accepted)

    async def _write(self, new: Sequence[NewJob]) -> list[Accepted | SubmitError]:
        """Write jobs and return what became of each. What Postgres refuses is halved until the one job is found."""
        try:
            return await self.store.accept(new, is_stored=self.holds)
        except DatabaseRefusedError as error:
            if len(new) == 1:
                return [SubmitError(str(error))]
            half = len(new) // 2
            return await self._write(new[:half]) + await self._write(new[half:])

    def holds(self, payload: str) -> bool:
        """Return whether the payload store holds something of that name, to the work of a transaction."""
        with store_answers():
            return within_work(self.payloads.holds_async)(payload_named(payload))

    async def remove(self, payload: str) -> None:
        """Take what has that name out of the payload store."""
        with store_answers():
            await self.payloads.delete_async(payload_named(payload))

    async def publish(self, messages: Sequence[PartMessage]) -> None:
        """Hand accepted parts to the fleet. What cannot be handed over now, the fleet's relay picks up."""
        if not messages:
            return
        with sending(messages):
            left = await self.bus.publish(messages)
        if left:
            with suppress(UnavailableError):  # upkeep misses them in Redis, seconds later
                await self.store.leave_to_relay([message.part for message in left])

    async def close(self) -> None:
        """Close all connections."""
        try:
            await self._database.dispose()
        finally:
            await self.bus.close()
