"""Where a document is, if it is not on this machine: in the payload store, or where the fleet fetches it from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pecia_schemas.media import MediaType

URL_SCHEMES = ("http://", "https://", "s3://")
"""How text begins that names no file of this machine but one that the fleet fetches."""


class PayloadRef(BaseModel):
    """A file in the payload store."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of its content; of an encrypted one the HMAC-SHA-256, which cannot be computed without the key."""
    size: int = Field(ge=0)
    """Bytes, before encryption."""
    media_type: MediaType | None
    """As its content tells; None if it is nothing that Pecia reads."""
    key: str | None = None
    """The name of the key that it is encrypted under; None: it is not."""


class UrlRef(BaseModel):
    """A file that the fleet fetches. Where it lies may tell of whom it is about, and let others in: it is not told."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(repr=False)
    """`http://`, `https://` or `s3://bucket/key`."""
