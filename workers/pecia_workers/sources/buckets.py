"""Documents by `s3://`: from the buckets that the settings name, with the fleet's own credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from pecia_schemas.payloads import open_bucket
from pecia_workers.sources.arriving import Arriving, refused, unreachable

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
