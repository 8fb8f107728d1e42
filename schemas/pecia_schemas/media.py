"""What kind of file some bytes are, judged by the bytes alone."""

from __future__ import annotations

from enum import StrEnum

HEAD_BYTES = 512
"""How much of a file `sniff` wants to see."""


class MediaType(StrEnum):
    """The files Pecia reads."""

    PNG = "image/png"
    JPEG = "image/jpeg"
    WEBP = "image/webp"
    BMP = "image/bmp"
    TIFF = "image/tiff"
    PDF = "application/pdf"
    MP4 = "video/mp4"  # QuickTime too
    WEBM = "video/webm"
    MATROSKA = "video/x-matroska"
    AVI = "video/x-msvideo"
    MPEG_TS = "video/mp2t"

    @property
    def is_single_image(self) -> bool:
        """Whether it holds exactly one page, so that it needs no cutting."""
        return self in (MediaType.PNG, MediaType.JPEG, MediaType.WEBP, MediaType.BMP)

    @property
    def is_video(self) -> bool:
        """Whether it is captioned, not read."""
        return self.startswith("video/")


_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", MediaType.PNG),
    (b"\xff\xd8\xff", MediaType.JPEG),
    (b"BM", MediaType.BMP),
    (b"II*\x00", MediaType.TIFF),
    (b"MM\x00*", MediaType.TIFF),
    (b"II+\x00", MediaType.TIFF),  # BigTIFF
    (b"MM\x00+", MediaType.TIFF),
)

_RIFF = {b"WEBP": MediaType.WEBP, b"AVI ": MediaType.AVI}
_EBML = b"\x1a\x45\xdf\xa3"
_EBML_BYTES = 64
_PDF_BYTES = 64
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide")  # what an MP4, or an old QuickTime file, may begin with
_PICTURE_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1"})
_TS_PACKET, _TS_SYNC = 188, 0x47


def sniff(head: bytes) -> MediaType | None:
    """Return the type of a file from its first `HEAD_BYTES` bytes, or None if it is none that Pecia reads."""
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if b"%PDF-" in head[:_PDF_BYTES]:  # some writers put a byte-order mark or blank lines first
        return MediaType.PDF
    found = next((media for signature, media in _SIGNATURES if head.startswith(signature)), None)
    return found or _sniff_video(head)


def _sniff_video(head: bytes) -> MediaType | None:
    if head.startswith(_EBML):
        return MediaType.WEBM if b"webm" in head[:_EBML_BYTES] else MediaType.MATROSKA
    if head[4:8] in _BOXES and head[8:12] not in _PICTURE_BRANDS:
        return MediaType.MP4
    if len(head) > 2 * _TS_PACKET and set(head[: 3 * _TS_PACKET : _TS_PACKET]) == {_TS_SYNC}:
        return MediaType.MPEG_TS
    return None
