"""What a task's URL names, taken into the payload store: once for each job, however many try."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pecia_schemas import PayloadRef, UrlRef
from pecia_schemas.payloads import PayloadMissingError, PayloadStore
from pecia_schemas.threads import finish
from pecia_workers.ledger import ClaimedPart, Ledger
from pecia_workers.media.limits import Limits
from pecia_workers.sources.arriving import Arriving, spooling
from pecia_workers.sources.buckets import Buckets
from pecia_workers.sources.web import Web

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings


class Intake:
    """Fetches documents by URL, each to a file without a name in `directory`, and from there into the store."""

    def __init__(
        self, store: PayloadStore, ledger: Ledger, directory: Path, settings: WorkerSettings
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._directory = directory
        self._limits = Limits.of(settings)
        self._web = Web(settings)
        self._buckets = Buckets(settings)

    async def __call__(self, part: ClaimedPart) -> PayloadRef:
        """Return the document of a claimed part, fetched if it has to be.

        Raises `MediaError` if it cannot be fetched, `PartLostError` if the part is not this worker's any more: then
        the job has not changed.
        """
        source = part.task.source
        if not isinstance(source, UrlRef):
            return part.payload
        if document := await self._ledger.document_of(part):
            return document
        with _nameless(self._directory) as file:
            arriving = Arriving(file, self._limits)
            fetcher = self._buckets if source.url.lower().startswith("s3://") else self._web
            await fetcher.fetch(source.url, arriving)
            await arriving.arrived()
            # Even if the caller is cancelled meanwhile: what is in the store must be known.
            return await finish(self._keep(part, file))

    async def _keep(self, part: ClaimedPart, file: IO[bytes]) -> PayloadRef:
        while True:
            file.seek(0)
            reference = (await self._store.deposit_async(file)).reference
            try:
                return await self._ledger.take_in(part, reference, self._store.holds_async)
            except PayloadMissingError:  # the same document was erased at this very moment
                continue


@contextmanager
def _nameless(directory: Path) -> Iterator[IO[bytes]]:
    with spooling():
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed below
    try:
        yield file
    finally:
        with suppress(OSError):  # what found no room on the disk finds none now
            file.close()
