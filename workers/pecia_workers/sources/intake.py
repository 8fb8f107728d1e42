"""What a task's URL names, taken into the payload store: once for each job, however many try."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from pecia_schemas import PayloadRef, UrlRef
from pecia_schemas.payloads import PayloadMissingError, PayloadStore, open_bucket
from pecia_schemas.threads import finish
from pecia_workers.ledger.commit import ClaimedPart
from pecia_workers.ledger.ledger import Ledger
from pecia_workers.media.limits import Limits
from pecia_workers.sources.web import Arriving, Web, refused, spooling, unreachable

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

_CHUNK = 1024 * 1024


class Buckets:
    """Fetches objects. What the settings do not name is not asked for, whatever the credentials open."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._total_s = settings.source_timeout.total_seconds()

    async def fetch(self, url: str, arriving: Arriving) -> None:
        """Write the object that a URL names. Raises `MediaError`, which says nothing of the URL."""
        bucket, _, key = url.partition("://")[2].partition("/")
        if not _is_named(bucket, key, self._settings.source_buckets):
            raise refused("The URL's object is in no bucket that PECIA_SOURCE_BUCKETS names.")
        with _telling():
            async with asyncio.timeout(self._total_s):
                # No retries: the part is tried again, by the fleet's schedule.
                found = await obstore.get_async(open_bucket(bucket, self._settings, retries=0), key)
                arriving.announced(found.meta["size"])
                async for chunk in found.stream(min_chunk_size=_CHUNK):
                    await arriving.write(bytes(chunk))


def _is_named(bucket: str, key: str, named: Collection[str]) -> bool:
    """Return whether an object is in a bucket, or below a part of one, that the settings name."""
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        return False
    return any(f"{bucket}/{key}".startswith(f"{name.rstrip('/')}/") for name in named)


@contextmanager
def _telling() -> Iterator[None]:
    """Raise what goes wrong on the way as `MediaError`."""
    try:
        yield
    except TimeoutError:
        raise unreachable("The object store took too long.") from None
    except (FileNotFoundError, NotFoundError, InvalidPathError):
        raise refused("The object store has no such object.") from None
    except (PermissionError, PermissionDeniedError, UnauthenticatedError):
        raise refused("The object store does not let the fleet read the object.") from None
    except (BaseError, OSError) as error:
        raise unreachable(f"The object store does not answer ({type(error).__name__}).") from None


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
