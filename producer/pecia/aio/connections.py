"""Connections of a client in one process: Postgres, Redis and the payload store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pecia import sources, submission
from pecia.accounts import AccessKeys, Accounts, DeadParts, Trail
from pecia.aio.database import AsyncDatabase
from pecia.aio.waiting import aclosing, prepare, within_work
from pecia.configuration import client_name, database_url, redis_url
from pecia.endpoints import Deliveries, Endpoints
from pecia.errors import DatabaseRefusedError, SubmitError, UnavailableError
from pecia.handles import Accepted
from pecia.records import DocumentFate, Erasure
from pecia.request import Item, Options
from pecia.store import Connection, Store
from pecia.submission import NewJob, Outcomes, Prepared
from pecia.waiting import Backlog, Deadline, Inheritable, batches
from pecia_schemas import tracing
from pecia_schemas.messages import PartMessage
from pecia_schemas.payloads import PayloadStore, payload_named
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import Lane

if TYPE_CHECKING:
    from pathlib import Path

    from pecia.aio.publishing import AsyncAnnouncements, AsyncPublisher
    from pecia.formats import Format
    from pecia.review.statements import Reviews
    from pecia.transitions import Purging, Transitions
    from pecia_schemas.results import Document


class AsyncConnections(Inheritable):
    """The three stores of a fleet, each opened at its first use."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        super().__init__()
        redis_url(settings)  # an invalid URL is refused early
        self._database = AsyncDatabase(
            partial(database_url, settings), connect_timeout=settings.connect_timeout
        )
        self.keys = settings.keyring
        self.poll_s = settings.poll_interval.total_seconds()
        """Seconds after which a waiting client queries the jobs without an announcement."""
        self.backlog = Backlog(settings.max_backlog)
        self.trail = Trail(self._database)
        self.dead = DeadParts(self._database)
        self.access = AccessKeys(self._database)
        self._name(client_name(settings), None)

    def _name(self, client: str, tenant: str | None) -> None:
        """Set the client's name, and the only tenant whose jobs are found; None finds all."""
        self.client, self.tenant = client, tenant
        self._asks = asks = self._database, self.keys, client, tenant
        self.store, self.deliveries = Store(*asks), Deliveries(*asks)
        self.accounts = Accounts(*asks)
        self.endpoints = Endpoints(*asks, most=self._settings.max_endpoints)
        for of_the_former in ("transitions", "purging", "reviews"):
            vars(self).pop(of_the_former, None)

    def seen_by(self, client: str, tenant: str) -> Self:
        """Return a view for a client of that name and one tenant's jobs. The caller must not close it."""
        self.bus  # noqa: B018  opened once, for all views
        view = copy(self)
        view._name(client, tenant)  # noqa: SLF001  another of this class
        return view

    @cached_property
    def transitions(self) -> Transitions[AsyncDatabase]:
        """Changes of jobs. Loaded at the first use, because it imports SQLAlchemy, which is slow to load."""
        from pecia.transitions import Transitions  # noqa: PLC0415

        return Transitions(*self._asks)

    @cached_property
    def purging(self) -> Purging[AsyncDatabase]:
        """Erasure of jobs; imports SQLAlchemy too."""
        from pecia.transitions import Purging  # noqa: PLC0415

        return Purging(*self._asks)

    @cached_property
    def reviews(self) -> Reviews[AsyncDatabase]:
        """Reviews of pages and bundles; imports SQLAlchemy too."""
        from pecia.review.statements import Reviews  # noqa: PLC0415

        return Reviews(*self._asks)

    @cached_property
    def payloads(self) -> PayloadStore:
        """The payload store. Raises `PayloadStoreUnavailableError`."""
        return sources.open_payloads(self._settings, self.keys)

    def check_drawing(self, form: Format) -> None:
        """Raise `ConfigurationError` unless this installation can write results with the pages' pictures."""
        from pecia.saving import page_pictures  # noqa: PLC0415  most callers write no files

        page_pictures(form)

    async def drawing(
        self,
        job_id: UUID,
        form: Format,
        *,
        quality: int,
        revision: int | None,  # noqa: ARG002  the result has it
        document: int | None,  # noqa: ARG002  as above
    ) -> Callable[[Document, Path], None]:
        """Return a function that writes a result with the pages' pictures to a file. Raises `DocumentGoneError`."""
        from pecia.saving import write_with_pictures  # noqa: PLC0415  as above

        original = await self.store.original(job_id)
        return partial(write_with_pictures, original, self.payloads, form, quality=quality)

    @cached_property
    def bus(self) -> AsyncPublisher:
        """Redis. A client that only reads neither connects to it nor imports its library, which is slow to load."""
        from pecia.aio.publishing import AsyncPublisher  # noqa: PLC0415

        timeout, window = self._settings.connect_timeout, self._settings.window
        return AsyncPublisher(partial(redis_url, self._settings), connect_timeout=timeout, window=window)

    def announcements(
        self, job_ids: Collection[UUID], deadline: Deadline
    ) -> AbstractAsyncContextManager[AsyncAnnouncements]:
        """Return announcements about these jobs, with the client's polling interval."""
        from pecia.aio.publishing import AsyncAnnouncements  # noqa: PLC0415  brings redis, slow to load

        return aclosing(AsyncAnnouncements(self.bus, job_ids, poll_s=self.poll_s, deadline=deadline))

    async def prepared(self, items: Sequence[Item], options: Options) -> Callable[[], Awaitable[Outcomes]]:
        """Store payloads and return a function that writes rows, then messages. A failure in between loses nothing."""
        prepared = await prepare(items, self.payloads, options, self.keys)
        return partial(self._accept, prepared, options.priority)

    async def _accept(self, prepared: Prepared, lane: Lane) -> Outcomes:
        new = submission.new_jobs(prepared)
        with tracing.span("accept", {"pecia.jobs": len(new)}):
            accepted = await self._write(new) if new else []
        self.backlog.add(lane, len(new))
        await self.publish(submission.messages(new, accepted))
        return submission.outcomes(prepared, accepted)

    async def _write(self, new: Sequence[NewJob]) -> list[Accepted | SubmitError]:
        """Write jobs and return their outcomes. If Postgres refuses a batch, halve it until the faulty job is found."""
        try:
            if len(new) == 1 and new[0].is_simple:
                one = partial(submission.accept_one, new=new[0])
                if (accepted := await self._database.alone(one)) is not None:
                    return [accepted]
            return await self._database.transaction(self._accepting(new))
        except DatabaseRefusedError as error:
            if len(new) == 1:
                return [SubmitError(str(error))]
            half = len(new) // 2
            return await self._write(new[:half]) + await self._write(new[half:])

    def _accepting(self, new: Sequence[NewJob]) -> Callable[[Connection], list[Accepted | SubmitError]]:
        """Return the function that writes jobs in one transaction."""
        return partial(submission.accept, batch=new, keys=self.keys, is_stored=self.holds)

    def holds(self, payload: str) -> bool:
        """Return whether the payload store has a payload of that name. Callable within a transaction."""
        with sources.store_answers():
            return within_work(self.payloads.holds_async)(payload_named(payload))

    async def erase(self, job_ids: Sequence[UUID], reason: str | None) -> tuple[list[Erasure], list[UUID]]:
        """Erase the content of these jobs; return what was erased, and the jobs that were cancelled for it."""
        erased: list[Erasure] = []
        cancelled: list[UUID] = []
        for batch in batches(job_ids, self.purging.AT_ONCE):
            purged = await self.purging.empty(batch, reason)
            fates = {
                name: await self.purging.discard(name, within_work(self._remove))
                for name in set(purged.payloads.values())
                if name is not None
            }
            for one in purged.erasures:
                fate = fates.get(purged.payloads[one.job_id] or "", DocumentFate.ERASED)
                erased.append(one.model_copy(update={"document": fate}))
            cancelled += purged.cancelled
        return erased, cancelled

    async def _remove(self, payload: str) -> None:
        with sources.store_answers():
            await self.payloads.delete_async(payload_named(payload))

    async def publish(self, messages: Sequence[PartMessage]) -> None:
        """Publish accepted parts to the fleet. The fleet's relay publishes those that Redis did not take."""
        if not messages:
            return
        with submission.sending(messages):
            left = await self.bus.publish(messages)
        if left:
            with suppress(UnavailableError):  # upkeep finds them missing in Redis seconds later
                await self.store.leave_to_relay([message.part for message in left])

    async def close(self) -> None:
        """Close this process's own resources, and drop those inherited from its parent without closing them."""
        try:
            await self._database.dispose(close=not self.are_inherited)
        finally:
            if "bus" in vars(self) and not self.are_inherited:
                await self.bus.close()
