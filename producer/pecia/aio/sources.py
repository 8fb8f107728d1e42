"""Sources of tasks on a loop: threads open, hash and measure files; the payload store's own calls write them."""

from __future__ import annotations

from contextlib import ExitStack

from pecia import sources
from pecia.sources import StoredSource
from pecia_schemas.media import PayloadRef, UrlRef
from pecia_schemas.payloads import PayloadStore
from pecia_schemas.threads import finish_in_thread


async def store(payloads: PayloadStore, source: object) -> StoredSource:
    """Put a task's source into the store, unless it is there already or the fleet fetches it, and measure it.

    Raises `InvalidSourceError` if it cannot be read, `PayloadStoreUnavailableError` if it cannot be written.
    """
    if isinstance(source, (PayloadRef, UrlRef)):
        return StoredSource(payload=source)
    with ExitStack() as stack:
        file = await finish_in_thread(stack.enter_context, sources.opened(source))
        start = file.tell()
        with sources.depositing():
            deposit = await payloads.deposit_async(file)
        return await finish_in_thread(sources.measured, file, start, deposit)
