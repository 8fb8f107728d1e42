"""What a client holds of a fleet behind a gateway: HTTP connections, and nothing else."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from uuid import UUID

import httpx2

from pecia.aio.waiting import run_work, sleep, within_work
from pecia.bulk import Backlog, Outcomes
from pecia.formats import Format
from pecia.records import Erasure
from pecia.remote import stores
from pecia.remote.calls import Caller, http_options
from pecia.submission import Item, Options
from pecia.waiting import Deadline, Inheritable
from pecia_schemas.results import Document
from pecia_schemas.settings import ClientSettings

T = TypeVar("T")

_SOONEST_S: Final = 0.05


class AsyncHttpDatabase:
    """A gateway, where a database would be."""

    def __init__(self, settings: ClientSettings) -> None:
        self._http = httpx2.AsyncClient(**http_options(settings))

    async def transaction(self, work: Callable[[Any], T], *, repeatable: bool = True) -> T:
        """Run `work` and return what it returns."""
        send, pause = within_work(self._http.request), within_work(sleep)
        return await run_work(work, Caller(send, pause, repeatable=repeatable))

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


class AsyncPolling:
    """When to look at some jobs again: soon at first, then at the client's polling interval."""

    def __init__(self, poll_s: float, deadline: Deadline) -> None:
        self._pause, self._poll_s, self._deadline = _SOONEST_S, poll_s, deadline

    async def wait(self) -> set[UUID]:
        """Return when it is time to look at all of them."""
        pause = self._deadline.within(min(self._pause, self._poll_s))
        self._pause *= 1.5
        await sleep(pause)
        return set()


class AsyncRemoteConnections(Inheritable):
    """What takes the place of `Connections`."""

    tenant: None = None
    """The key says which."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__()
        self._database = database = AsyncHttpDatabase(settings)
        self.client = settings.client_name
        self.poll_s = settings.poll_interval.total_seconds()
        self.backlog = Backlog({})
        self.store = stores.RemoteStore(database)
        self.transitions = stores.RemoteTransitions(database)
        self.accounts = stores.RemoteAccounts(database)
        self.endpoints = stores.RemoteEndpoints(database)
        self.deliveries = stores.RemoteDeliveries(database)
        self.purging = stores.RemotePurging(database)
        self.dead = stores.Missing("dead parts")
        self.trail = stores.Missing("the audit trail")
        self.payloads = stores.Missing("the payload store")

    def check_drawing(self, form: Format) -> None:
        """Do nothing: the gateway draws."""

    async def drawing(
        self, job_id: UUID, form: Format, *, quality: int, revision: int | None
    ) -> Callable[[Document, Path], None]:
        """Return what writes a result with the pages' pictures, as the gateway drew it, to a file."""
        from pecia.saving import write_bytes  # noqa: PLC0415  most callers write no files

        content = await self.store.drawn(job_id, form, quality=quality, revision=revision)
        return partial(write_bytes, content)

    @property
    def bus(self) -> Self:
        """What takes the place of Redis: what is awaited looks again by itself."""
        return self

    async def prepared(self, items: Sequence[Item], options: Options) -> Callable[[], Awaitable[Outcomes]]:
        """Submit tasks, and return what returns their outcomes."""
        outcomes: Outcomes = await self.store.submit(items, options)

        async def settled() -> Outcomes:
            return outcomes

        return settled

    def announcements(self, _job_ids: Collection[UUID], deadline: Deadline) -> nullcontext[AsyncPolling]:
        """Return when to look again."""
        return nullcontext(AsyncPolling(self.poll_s, deadline))

    async def erase(self, job_ids: Sequence[UUID], reason: str | None) -> tuple[list[Erasure], list[UUID]]:
        """Erase what these jobs hold; return what that was. The gateway announces what it cancelled."""
        return await self.purging.erase(job_ids, reason), []

    async def publish(self, *_: object) -> None:
        """Do nothing: the gateway has handed them over."""

    announce = publish

    async def close(self) -> None:
        """Close what is this process's own."""
        if not self.are_inherited:
            await self._database.close()
