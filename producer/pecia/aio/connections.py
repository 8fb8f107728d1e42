"""Connections of a client in one process: Postgres, Redis and the payload store.

What is said to Redis and heard from it can fail no call: Postgres is the truth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from pecia import sources, submission
from pecia.accounts import AccessKeys, Accounts, DeadParts, Trail
from pecia.aio.database import AsyncDatabase
from pecia.aio.waiting import Semaphore, aclosing, attentive, prepare, sleep, within_work
from pecia.configuration import client_name, database_url, no_redis_url, redis_url
from pecia.endpoints import Deliveries, Endpoints
from pecia.errors import DatabaseRefusedError, SubmitError, UnavailableError
from pecia.handles import Accepted
from pecia.records import DocumentFate, Erasure
from pecia.request import Item, Options
from pecia.store import Connection, Store
from pecia.submission import NewJob, Outcomes, Prepared
from pecia.waiting import (
    CONFIRMATION_S,
    LOOK_AT,
    Backlog,
    Breaker,
    Channels,
    Deadline,
    Inheritable,
    batches,
    redis_errors,
)
from pecia_schemas import tracing
from pecia_schemas.messages import CANCEL_CHANNEL, PartMessage, enqueue, job_channel, refused
from pecia_schemas.payloads import PayloadStore, payload_named
from pecia_schemas.settings import ClientSettings
from pecia_schemas.states import JobState, Lane

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline, PubSub

    from pecia.formats import Format
    from pecia.review.statements import Reviews
    from pecia.transitions import Purging, Transitions
    from pecia_schemas.results import Document


_CONNECT_S = 1.0
_CONNECTIONS = 10_000
"""Maximum number of connections: each wait holds one, and the library's own limit is 100."""
_CONNECTING = 10
"""Subscriptions that connect at a time. Among hundreds at once, each would time out waiting for the others."""


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
        timeout, window = self._settings.connect_timeout, self._settings.window
        return AsyncPublisher(partial(redis_url, self._settings), connect_timeout=timeout, window=window)

    def announcements(
        self, job_ids: Collection[UUID], deadline: Deadline
    ) -> AbstractAsyncContextManager[AsyncAnnouncements]:
        """Return announcements about these jobs, with the client's polling interval."""
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


class AsyncPublisher(Breaker):
    """Redis for a client: part messages go out, announcements come in. Either may fail for a while."""

    def __init__(self, locate: Callable[[], str], *, connect_timeout: timedelta, window: int) -> None:
        """`locate` returns the URL; it is called again after each failure."""
        super().__init__(locate)
        self._window = window
        self._connect_s = min(_CONNECT_S, connect_timeout.total_seconds())
        self.connecting = Semaphore(_CONNECTING)
        """Held while a subscription connects."""
        self.redis = self._opened()

    def _opened(self) -> Redis:
        from pecia_schemas.redis_connections import connect_async  # noqa: PLC0415  brings redis, slow to load

        try:
            return connect_async(
                self.url,
                connect_timeout_s=self._connect_s,
                max_connections=_CONNECTIONS,
                decode_responses=True,
            )
        except ValueError:
            raise no_redis_url() from None

    async def reach(self) -> Redis | None:
        """Return the connection to the current Redis, or None during the pause after a failure."""
        if self.resting:
            return None
        if self.has_moved():
            former, self.redis = self.redis, self._opened()
            await former.aclose()
        return self.redis

    async def publish(self, messages: Sequence[PartMessage]) -> Sequence[PartMessage]:
        """Queue the messages for the fleet; return those that Redis may not have."""
        packed: list[list[PartMessage]] = []
        replies = await self._send(lambda pipe: packed.extend(enqueue(pipe, messages, window=self._window)))
        return messages if replies is None else refused(packed, replies)

    async def announce(self, job_ids: Collection[UUID], state: JobState) -> None:
        """Notify all clients that wait for these jobs, and, of cancelled jobs, the workers that run them."""

        def fill(pipe: Pipeline) -> None:
            for job_id in job_ids:
                if state is JobState.CANCELLED:
                    pipe.publish(CANCEL_CHANNEL, str(job_id))
                pipe.publish(job_channel(job_id), state)

        await self._send(fill)

    async def _send(self, fill: Callable[[Pipeline], None]) -> list[Any] | None:
        """Return the replies to the commands that `fill` adds to a pipeline, or None if Redis is unavailable."""
        if (redis := await self.reach()) is None:
            return None
        try:
            async with redis.pipeline(transaction=False) as pipe:
                fill(pipe)
                replies: list[Any] = await attentive(pipe.execute())
        except redis_errors() as error:
            self.failed(error)
            return None
        return replies

    async def close(self) -> None:
        """Close all connections."""
        await self.redis.aclose()


class AsyncAnnouncements:
    """Announcements about some jobs. If Redis is unavailable, only the polling interval passes."""

    def __init__(
        self, bus: AsyncPublisher, job_ids: Collection[UUID], *, poll_s: float, deadline: Deadline
    ) -> None:
        self._bus = bus
        self._channels = Channels(job_ids)
        self._poll_s = poll_s
        self._deadline = deadline
        self._pubsub: PubSub | None = None

    async def wait(self) -> set[UUID]:
        """Return the announced jobs; an empty set means that the caller must check all of them.

        The first call subscribes and returns at once, because earlier announcements were missed.
        """
        heard: set[UUID] = set()
        if self._pubsub is None and await self._subscribe():
            return heard
        pause = self._deadline.within(self._poll_s)
        if (pubsub := self._pubsub) is None:
            await sleep(pause)
            return heard
        try:
            message = await attentive(pubsub.get_message(timeout=pause))
            while message is not None and len(heard) < LOOK_AT:
                heard |= self._channels.announced(message)
                message = await attentive(pubsub.get_message(timeout=0))
        except redis_errors():
            await self._give_up()
        return heard

    async def _subscribe(self) -> bool:
        if (redis := await self._bus.reach()) is None:
            return False
        pubsub: PubSub = redis.pubsub()
        self._pubsub = pubsub
        try:
            async with self._bus.connecting:
                await attentive(pubsub.subscribe(*self._channels.reset()))
                deadline = Deadline(CONFIRMATION_S)
                while not self._channels.confirmed and (left := deadline.within(CONFIRMATION_S)):
                    self._channels.confirm(await attentive(pubsub.get_message(timeout=left)))
                return self._channels.confirmed or await self._give_up()
        except redis_errors():
            return await self._give_up()

    async def _give_up(self) -> bool:
        self._bus.rest()
        await self.aclose()
        return False

    async def aclose(self) -> None:
        """End the subscription."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(*redis_errors()):
                await pubsub.aclose()
