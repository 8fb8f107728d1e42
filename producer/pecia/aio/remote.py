"""Connections of a client behind a gateway: HTTP only."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from pecia.aio import stores
from pecia.aio.waiting import sleep
from pecia.formats import Format
from pecia.records import Erasure
from pecia.remote.calls import Missing
from pecia.request import Item, Options
from pecia.submission import Outcomes
from pecia.waiting import Backlog, Deadline, Inheritable
from pecia_schemas.results import Document
from pecia_schemas.settings import ClientSettings

_SOONEST_S: Final = 0.05


class AsyncPolling:
    """Decides when to query jobs again: soon at first, then at the client's polling interval."""

    def __init__(self, poll_s: float, deadline: Deadline) -> None:
        self._pause, self._poll_s, self._deadline = _SOONEST_S, poll_s, deadline

    async def wait(self) -> set[UUID]:
        """Wait until the next query is due. Return an empty set, which stands for all jobs."""
        pause = self._deadline.within(min(self._pause, self._poll_s))
        self._pause *= 1.5
        await sleep(pause)
        return set()


class AsyncRemoteConnections(Inheritable):
    """Counterpart of `Connections` for a gateway."""

    tenant: None = None
    """None, because the key determines the tenant."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__()
        self._gateway = gateway = stores.AsyncGateway(settings)
        self.client = settings.client_name
        self.poll_s = settings.poll_interval.total_seconds()
        self.backlog = Backlog({})
        self.store = stores.AsyncRemoteStore(gateway)
        self.transitions = stores.AsyncRemoteTransitions(gateway)
        self.reviews = stores.AsyncRemoteReviews(gateway)
        self.accounts = stores.AsyncRemoteAccounts(gateway)
        self.endpoints = stores.AsyncRemoteEndpoints(gateway)
        self.deliveries = stores.AsyncRemoteDeliveries(gateway)
        self.purging = stores.AsyncRemotePurging(gateway)
        self.dead = Missing("dead parts")
        self.trail = Missing("the audit trail")
        self.access = Missing("keys")
        self.payloads = Missing("the payload store")

    def check_drawing(self, form: Format) -> None:
        """Do nothing: the gateway renders."""

    async def drawing(
        self, job_id: UUID, form: Format, *, quality: int, revision: int | None, document: int | None
    ) -> Callable[[Document, Path], None]:
        """Return a function that writes the gateway's rendering of a result with pictures to a file."""
        from pecia.saving import write_bytes  # noqa: PLC0415  most callers write no files

        content = await self.store.drawn(job_id, form, quality=quality, revision=revision, document=document)
        return partial(write_bytes, content)

    @property
    def bus(self) -> Self:
        """This object in place of Redis: waits poll instead."""
        return self

    async def prepared(self, items: Sequence[Item], options: Options) -> Callable[[], Awaitable[Outcomes]]:
        """Submit tasks, and return a function that returns their outcomes."""
        outcomes: Outcomes = await self.store.submit(items, options)

        async def settled() -> Outcomes:
            return outcomes

        return settled

    def announcements(self, _job_ids: Collection[UUID], deadline: Deadline) -> nullcontext[AsyncPolling]:
        """Return the polling schedule of a wait."""
        return nullcontext(AsyncPolling(self.poll_s, deadline))

    async def erase(self, job_ids: Sequence[UUID], reason: str | None) -> tuple[list[Erasure], list[UUID]]:
        """Erase the content of these jobs; return what was erased. The gateway announces cancelled jobs."""
        return await self.purging.erase(job_ids, reason), []

    async def publish(self, *_: object) -> None:
        """Do nothing: the gateway has published the parts."""

    announce = publish

    async def close(self) -> None:
        """Close this process's own resources."""
        if not self.are_inherited:
            await self._gateway.close()
