"""What kind of file some bytes are, judged by the bytes alone."""

from __future__ import annotations

from enum import StrEnum

HEAD_BYTES = 64
"""How much of a file `sniff` wants to see."""


class MediaType(StrEnum):
    """The files Pecia reads."""

    PNG = "image/png"
    JPEG = "image/jpeg"
    WEBP = "image/webp"
    BMP = "image/bmp"
    TIFF = "image/tiff"
    PDF = "application/pdf"

    @property
    def is_single_image(self) -> bool:
        """Whether it holds exactly one page, so that it needs no cutting."""
        return self not in (MediaType.TIFF, MediaType.PDF)


_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", MediaType.PNG),
    (b"\xff\xd8\xff", MediaType.JPEG),
    (b"BM", MediaType.BMP),
    (b"II*\x00", MediaType.TIFF),
    (b"MM\x00*", MediaType.TIFF),
    (b"II+\x00", MediaType.TIFF),  # BigTIFF
    (b"MM\x00+", MediaType.TIFF),
)


def sniff(head: bytes) -> MediaType | None:
    """Return the type of a file from its first `HEAD_BYTES` bytes, or None if it is none that Pecia reads."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return MediaType.WEBP
    if b"%PDF-" in head:  # some writers put a byte-order mark or blank lines first
        return MediaType.PDF
    return next((media for signature, media in _SIGNATURES if head.startswith(signature)), None)
