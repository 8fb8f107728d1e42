"""How buckets of documents are reached, by who lists them and by who fetches their objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore.store import S3Config

    from pecia_schemas.settings.documents import DocumentSettings


_SCHEME: Final = "s3://"


def in_bucket(where: str) -> tuple[str, str] | None:
    """Return bucket and prefix of `s3://bucket/prefix`, either perhaps empty; None for a place in no bucket."""
    if not where.lower().startswith(_SCHEME):
        return None
    bucket, _, prefix = where[len(_SCHEME) :].partition("/")
    return bucket, prefix


def open_bucket(bucket: str, settings: DocumentSettings, *, retries: int) -> S3Store:
    """Return a bucket as `PECIA_SOURCE_OPTIONS` opens it, without asking it anything."""
    options = _options(settings)
    return S3Store.from_url(
        f"s3://{bucket}",
        config=cast("S3Config", dict(options)),
        client_options={
            "allow_http": options.get("endpoint", "").startswith("http://"),
            "connect_timeout": settings.source_silence,
            "read_timeout": settings.source_silence,
        },
        retry_config={"max_retries": retries},
    )


def _options(settings: DocumentSettings) -> Mapping[str, str]:
    if settings.source_options or not settings.payload_url.startswith("s3://"):
        return settings.source_options
    return settings.payload_options
