"""What a fleet gets when it fetches a document, and what it tells of one that it does not get."""

import asyncio
import io
from typing import IO, Any, Final

import pytest

from pecia_schemas.failures import FailureCode
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.pages import Limits, MediaError
from pecia_workers.outgoing.sources import Arriving, Buckets, Web

DOCUMENT: Final = b"%PDF-1.7\n" + b"content " * 1_000
LIMIT: Final = 100_000
TOKEN: Final = "Quillfeather"
"""Is in URLs, and in nothing that is told of them."""
REFUSED, UNREACHABLE = FailureCode.SOURCE_REFUSED, FailureCode.SOURCE_UNREACHABLE


def fetch(source: type[Web | Buckets], url: str, into: IO[bytes] | None = None, **settings: Any) -> bytes:
    """Return what a fleet with these settings gets."""
    file = into or io.BytesIO()
    fleet = WorkerSettings.model_validate({"max_payload_bytes": LIMIT, **settings})

    async def story() -> None:
        arriving = Arriving(file, Limits.of(fleet))
        await source(fleet).fetch(url, arriving)
        await arriving.arrived()

    asyncio.run(story())
    return file.read()


def failure(
    source: type[Web | Buckets], url: str, into: IO[bytes] | None = None, **settings: Any
) -> tuple[FailureCode, str]:
    """Return code and sentence of what goes wrong. None of it tells the URL, nor do the errors behind it."""
    with pytest.raises(MediaError) as caught:
        fetch(source, url, into, **settings)
    assert TOKEN not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value.code, caught.value.found
