"""Calls for operators: usage, dead parts, the audit trail, erasure, and keys of the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import UUID

from pecia import arguments, records, request
from pecia.aio.job import AsyncJob, look
from pecia.aio.waiting import AsyncOpening
from pecia_schemas.failures import FailureCode
from pecia_schemas.states import JobState, Lane

if TYPE_CHECKING:
    from pecia.accounts import AccessKey, AccessUsage, Scope, TrailPage
    from pecia.aio.connections import AsyncConnections
    from pecia_schemas.settings import ClientSettings


class AsyncAdmin(AsyncOpening["AsyncConnections"]):
    """Calls of a client for operators; it also opens and closes the connections.

    Behind a gateway only `purge` of named jobs is available; all other calls raise `AccessError`.
    """

    def __init__(
        self,
        database_url: str | None = None,
        redis_url: str | None = None,
        payload_url: str | None = None,
        *,
        api_key: str | None = None,
        settings: ClientSettings | None = None,
    ) -> None:
        from pecia.configuration import resolve  # noqa: PLC0415  brings pydantic-settings, slow to load

        super().__init__()
        self._settings = resolve(
            settings, database_url=database_url, redis_url=redis_url, payload_url=payload_url, api_key=api_key
        )

    async def usage(
        self, *, since: datetime | timedelta | None = None, by: str | None = None
    ) -> records.Usage:
        """Return the work of the fleet and its usage, over parts that ended since a point in time or a duration ago.

        `by` groups them: `document_type`, `kind`, `lane`, `engine`, `tenant`, or `metadata:KEY` by a value of metadata.
        Raises `InvalidOptionError` for any other text.
        """
        return await self._open().accounts.since(arguments.past(since), by)

    async def dead_parts(
        self,
        *,
        job: AsyncJob[Any] | UUID | str | None = None,
        code: FailureCode | str | None = None,
        since: datetime | timedelta | None = None,
        limit: int | None = None,
    ) -> list[records.DeadPart]:
        """Return parts that the fleet gave up although their document may be fine, the latest first.

        Workers died on these parts (`poisoned`), or their last attempt failed with a code that is retried.
        """
        arguments.check_pages(limit)
        job_id = None if job is None else arguments.id_of(job)
        return await self._open().dead.latest(
            job_id=job_id, code=code, since=arguments.past(since), limit=limit
        )

    async def dead_part(self, part_id: UUID | str) -> records.DeadPart:
        """Return one dead part with its events. Raises `InvalidOptionError` if the dead part does not exist."""
        return await self._open().dead.one(arguments.id_of(part_id))

    async def retry_dead(self, parts: Iterable[records.DeadPart | UUID]) -> list[AsyncJob[Any]]:
        """Run dead parts again and return their jobs, reopened. Other failed parts of these jobs stay failed.

        Each job sends another callback when it ends again. Raises `InvalidOptionError` for a part that is not dead,
        before any is run; `RetryRefusedError` at the first job that has not ended.
        """
        named = {part.id if isinstance(part, records.DeadPart) else part for part in parts}
        chosen = await self._open().dead.by_job(named)
        views = await look(self._open(), list(chosen))
        jobs: list[AsyncJob[Any]] = [AsyncJob(self._open, view, created=False) for view in views]
        return [await job.retry(chosen[job.id]) for job in jobs]

    async def purge(
        self,
        jobs: Iterable[AsyncJob[Any] | UUID | str] | None = None,
        *,
        before: datetime | timedelta | None = None,
        metadata: Mapping[str, str] | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> list[records.Erasure]:
        """Erase documents, results, metadata, reasons and callbacks of jobs permanently. Return what was erased.

        The arguments select jobs that match all of them: submitted `before` a point in time or a duration ago, and with
        all of these `metadata` pairs. Jobs that have not ended are cancelled first, without a callback. Jobs that were
        purged before are left out. `reason` is kept in the audit trail: write no document content into it. With
        `dry_run` nothing is erased.

        Raises `InvalidOptionError` if no argument selects jobs, `JobNotFoundError` if a job does not exist.
        """
        connections = self._open()
        job_ids: list[UUID] | None = None
        if jobs is not None:
            job_ids = [view.id for view in await look(connections, [arguments.id_of(job) for job in jobs])]
        selection = arguments.selection(job_ids=job_ids, before=before, metadata=metadata)
        meant = await connections.purging.fitting(selection)
        if dry_run:
            return await connections.purging.look(meant)
        erased, cancelled = await connections.erase(meant, reason)
        await connections.bus.announce(cancelled, JobState.CANCELLED)
        return erased

    def audit(
        self,
        *,
        job: AsyncJob[Any] | UUID | str | None = None,
        client: str | None = None,
        since: datetime | timedelta | None = None,
    ) -> AsyncGenerator[records.AuditEntry, None]:
        """Yield the audit trail, newest first: reads of results, and erasures. Fetched page by page.

        `client` is a client's name (`PECIA_CLIENT_NAME`), `since` a point in time or a duration ago.
        """
        job_id = None if job is None else arguments.id_of(job)
        page = self._open().trail.page
        return self._entries(partial(page, job_id=job_id, client=client, since=arguments.past(since)))

    async def add_key(
        self,
        tenant: str,
        name: str,
        *,
        scopes: Collection[Scope],
        lanes: Collection[Lane] = tuple(Lane),
        pages_per_day: int | None = None,
        pages_in_flight: int | None = None,
        expires: datetime | timedelta | None = None,
    ) -> tuple[AccessKey, str]:
        """Make a key of the gateway. Return it with its text for the user, which only this call returns.

        Raises `InvalidOptionError` for an invalid name.
        """
        return await self._open().access.add(
            tenant=tenant,
            name=name,
            scopes=scopes,
            lanes=lanes,
            pages_per_day=pages_per_day,
            pages_in_flight=pages_in_flight,
            expires_at=request.moment(expires, "expires"),
        )

    async def rotate_key(self, key: UUID, *, overlap: timedelta = timedelta(days=7)) -> tuple[AccessKey, str]:
        """Make a key with the rights of another, which ends after the overlap. Return the same as `add_key`."""
        return await self._open().access.rotate(key, arguments.checked_overlap(overlap))

    async def keys(self, tenant: str | None = None) -> list[tuple[AccessKey, AccessUsage]]:
        """Return the gateway's keys, all or those of one tenant, and how much of its limits each has used."""
        access = self._open().access
        return [(key, await access.load(key)) for key in await access.all(tenant)]

    async def revoke_key(self, key: UUID) -> None:
        """Revoke a key. Raises `InvalidOptionError` if the key does not exist."""
        await self._open().access.revoke(key)

    async def close(self) -> None:
        """Close all connections. A later call opens new ones, on asyncio also in another loop."""
        if (connections := self._take()) is not None:
            await connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _connect(self) -> AsyncConnections:
        if self._settings.gateway_url:
            from pecia.aio.remote import AsyncRemoteConnections  # noqa: PLC0415  as below

            return cast("AsyncConnections", AsyncRemoteConnections(self._settings))
        from pecia.aio.connections import AsyncConnections  # noqa: PLC0415  slow to load

        return AsyncConnections(self._settings)

    async def _entries(
        self, read: Callable[..., Awaitable[TrailPage]]
    ) -> AsyncGenerator[records.AuditEntry, None]:
        page, place = await read()
        while page:
            for entry in page:
                yield entry
            page, place = await read(place)
