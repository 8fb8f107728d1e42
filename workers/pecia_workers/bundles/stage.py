"""The split stage: from the stored pages of a bundle to its documents."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, cast
from uuid import UUID

from pecia_schemas.bundles import Split
from pecia_schemas.results import Page
from pecia_schemas.tasks import ReadBundle
from pecia_workers.bundles.corrections import with_new_pages
from pecia_workers.bundles.splitting import split
from pecia_workers.protocol.parts import ClaimedPart, Done

_PAGES_AT_ONCE: Final = 16

PagesOf = Callable[[UUID, int, int], Awaitable[Sequence[Page]]]
"""Returns a job's read pages in order: up to a number of pages after a page number."""
CorrectedOf = Callable[[ClaimedPart], Awaitable[Split | None]]
"""Returns the documents as people corrected them earlier, or None if they did not."""


class SplitBundle:
    """Splits bundles, each in a thread, with few pages in memory."""

    def __init__(self, pages_of: PagesOf, corrected_of: CorrectedOf) -> None:
        self._pages_of, self._corrected_of = pages_of, corrected_of

    async def __call__(self, part: ClaimedPart) -> Done:
        """Return the documents of the claimed bundle. Raises `DecryptionError`."""
        task, loop = cast("ReadBundle", part.task), asyncio.get_running_loop()
        is_over = False

        async def fetch(after: int) -> Sequence[Page]:
            return () if is_over else await self._pages_of(part.job_id, after, _PAGES_AT_ONCE)

        def pages() -> Iterator[Page]:
            after = 0
            while found := asyncio.run_coroutine_threadsafe(fetch(after), loop).result():
                yield from found
                after = found[-1].number

        try:
            fresh = await asyncio.to_thread(split, pages(), subject=task.subject)
        finally:
            is_over = True  # the thread of a cancelled part ends with the pages that it has
        kept = await self._corrected_of(part)
        return Done(with_new_pages(kept, fresh) if kept else fresh)
