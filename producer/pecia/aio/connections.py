"""What one process of a client holds open: Postgres, Redis and the payload store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pecia import accepting, tracing
from pecia.accounts import Place, TrailPages
from pecia.aio import bulk
from pecia.aio.database import AsyncDatabase, within_work
from pecia.bulk import Item, Outcomes, Prepared, messages
from pecia.configuration import redis_url
from pecia.errors import DatabaseRefusedError, SubmitError, UnavailableError
from pecia.handles import Accepted
from pecia.holdings import Holdings, store_answers
from pecia.records import AuditEntry
from pecia.submission import NewJob, Options
from pecia.tracing import sending
from pecia.waiting import Deadline
from pecia_schemas.messages import PartMessage
from pecia_schemas.payloads import payload_named
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import Lane

if TYPE_CHECKING:
    from pecia.aio.publishing import AsyncAnnouncements, AsyncBus
    from pecia.aio.purging import AsyncPurging


class AsyncAuditTrail(TrailPages[AsyncDatabase]):
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


class AsyncConnections(Holdings[AsyncDatabase]):
    """The three stores of a fleet, opened when they are first needed."""

    def __init__(self, settings: ClientSettings) -> None:
        url, patience = settings.database_url.get_secret_value(), settings.connect_timeout
        super().__init__(settings, AsyncDatabase(url, connect_timeout=patience))
        self.trail = AsyncAuditTrail(self._database)
        self._redis_url = redis_url(settings)

    def seen_by(self, client: str, tenant: str) -> Self:
        """Return the same as a client of that name sees it, for one tenant's jobs. It is not to be closed."""
        self.bus  # noqa: B018  opened once, for all of them
        view = copy(self)
        view._name(client, tenant)  # noqa: SLF001  another of this class
        return view

    @cached_property
    def purging(self) -> AsyncPurging:
        """What erases jobs, by SQLAlchemy, which is slow to load."""
        from pecia.aio.purging import AsyncPurging  # noqa: PLC0415

        return AsyncPurging(self._database, client=self.client)

    @cached_property
    def bus(self) -> AsyncBus:
        """Redis. Who only reads does without it, and without its library, which is slow to load."""
        from pecia.aio.publishing import AsyncBus  # noqa: PLC0415

        timeout, window = self._settings.connect_timeout, self._settings.window
        return AsyncBus(self._redis_url, connect_timeout=timeout, window=window)

    def announcements(self, job_ids: Collection[UUID], deadline: Deadline) -> AsyncAnnouncements:
        """Return the news about these jobs, at the client's own polling interval."""
        from pecia.aio.publishing import AsyncAnnouncements  # noqa: PLC0415  brings redis, slow to load

        return AsyncAnnouncements(self.bus, job_ids, poll_s=self.poll_s, deadline=deadline)

    async def prepared(self, items: Sequence[Item], asked: Options) -> Callable[[], Awaitable[Outcomes]]:
        """Store payloads and return what writes rows, then messages: whatever breaks in between, nothing is lost."""
        prepared = await bulk.prepare(items, self.payloads, asked, self.keys)
        return partial(self._accept, prepared, asked.lane)

    async def _accept(self, prepared: Prepared, lane: Lane) -> Outcomes:
        new = prepared.new
        with tracing.accepting(len(new)):
            accepted = await self._write(new) if new else []
        self.backlog.add(lane, len(new))
        await self.publish(messages(new, accepted))
        return prepared.outcomes(accepted)

    async def _write(self, new: Sequence[NewJob]) -> list[Accepted | SubmitError]:
        """Write jobs and return what became of each. What Postgres refuses is halved until the one job is found."""
        try:
            if len(new) == 1 and new[0].is_simple:
                one = partial(accepting.accept_one, new=new[0], keys=self.keys)
                if (accepted := await self._database.transaction(one, alone=True)) is not None:
                    return [accepted]
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
        """Close what is this process's own, and let go of what is its parent's."""
        try:
            await self._database.dispose(close=not self.are_inherited)
        finally:
            if "bus" in vars(self) and not self.are_inherited:
                await self.bus.close()
