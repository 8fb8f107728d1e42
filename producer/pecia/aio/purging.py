"""What erases jobs, transaction by transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from pecia.aio.database import AsyncDatabase, within_work
from pecia.records import Erasure, Selection
from pecia.transitions import FIRST, PurgingSteps, batches


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
