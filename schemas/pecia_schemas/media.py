"""What kind of file some bytes are, by the bytes alone; where it is, several as one, its pages and how they look."""

import re
import shutil
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, Protocol, Self
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from pecia_schemas import storable

HEAD_BYTES = 1280
"""Number of bytes that `sniff` needs."""


MAX_SIDE = 30_000
"""Maximum width and height of a page in pixels, whatever its header says: encoders and models use 16-bit sides."""


class MediaType(StrEnum):
    """File types that Pecia reads."""

    PNG = "image/png"
    JPEG = "image/jpeg"
    WEBP = "image/webp"
    BMP = "image/bmp"
    GIF = "image/gif"
    TIFF = "image/tiff"
    HEIC = "image/heic"  # HEIF with any codec except AV1
    AVIF = "image/avif"
    JPEG2000 = "image/jp2"  # also a bare codestream
    PPM = "image/x-portable-anymap"  # also PBM and PGM, as text or bytes
    PCX = "image/vnd.zbrush.pcx"
    PDF = "application/pdf"
    PILE = "application/vnd.pecia.pile"  # several files as one document, as the client packs them
    DICOM = "application/dicom"
    MP4 = "video/mp4"  # also QuickTime
    WEBM = "video/webm"
    MATROSKA = "video/x-matroska"
    AVI = "video/x-msvideo"
    MPEG_TS = "video/mp2t"

    @property
    def is_single_image(self) -> bool:
        """Whether the file has exactly one page, so that it need not be cut."""
        return self.startswith("image/") and self is not MediaType.TIFF

    @property
    def is_video(self) -> bool:
        """Whether the file is captioned instead of read."""
        return self.startswith("video/")


_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", MediaType.PNG),
    (b"\xff\xd8\xff", MediaType.JPEG),
    (b"GIF87a", MediaType.GIF),
    (b"GIF89a", MediaType.GIF),
    (b"II*\x00", MediaType.TIFF),
    (b"MM\x00*", MediaType.TIFF),
    (b"II+\x00", MediaType.TIFF),  # BigTIFF
    (b"MM\x00+", MediaType.TIFF),
    (b"\0\0\0\x0cjP  \r\n\x87\n", MediaType.JPEG2000),
    (b"\xff\x4f\xff\x51", MediaType.JPEG2000),
)

PILE_MARK: Final = "pecia-pile"
"""Name of the first, empty file of a pile."""
_PILE: Final = re.compile(rb"PK\x03\x04.{22}\x0a\0..pecia-pile", re.DOTALL)

_RIFF = {b"WEBP": MediaType.WEBP, b"AVI ": MediaType.AVI}
_EBML = b"\x1a\x45\xdf\xa3"
_EBML_BYTES = 64
_DICOM_AT = 128
# A PDF's first line is searched in 1,024 bytes: mail and print systems put other lines before it.
_PDF: Final = re.compile(rb".{0,1019}?%PDF-", re.DOTALL)
_PNM: Final = re.compile(rb"P[1-6]\s+(?:#[^\n]*\n\s*)*\d{1,9}\s+(?:#[^\n]*\n\s*)*\d{1,9}\s")
# Without a preamble, as in files that archives extract from a transfer.
_BARE_DICOM: Final = re.compile(
    rb"\x02\0\0\0UL\x04\0"  # the file's own group
    rb"|\x08\0[\0-\x18]\0(?:CS|DA|TM|UI|UL)"  # the first other group, with value representations
    rb"|\x08\0(?:\0\0\x04\0\0\0|\x05\0.\0\0\0ISO|\x08\0.\0\0\0(?:ORIG|DERI)|\x16\0.\0\0\x001\.2\.)",
    re.DOTALL,
)
_PATTERNS = (
    (_PDF, MediaType.PDF),
    (_PILE, MediaType.PILE),
    (_PNM, MediaType.PPM),
    (_BARE_DICOM, MediaType.DICOM),
)
"""Patterns of files whose signature is too short, too common or not at the start."""
# Signature, version, encoding, bits per plane; sides; 0, planes.
_PCX: Final = re.compile(rb"\n[\0\x02\x03\x05]\x01[\x01\x02\x04\x08].{60}\0[\x01-\x04].{62}", re.DOTALL)
_BMP_HEADERS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})  # bytes of the second header
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide")  # first boxes of MP4 and old QuickTime files
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"mif2", b"msf1"})
_TS_PACKET, _TS_SYNC = 188, 0x47


def sniff(head: bytes) -> MediaType | None:
    """Return the type of a file from its first `HEAD_BYTES` bytes, or None if Pecia does not read it."""
    if _PILE.match(head):  # before the types of its contents
        return MediaType.PILE
    if head[_DICOM_AT : _DICOM_AT + 4] == b"DICM":  # its preamble may look like a TIFF
        return MediaType.DICOM
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return MediaType.BMP
    found = next((media for signature, media in _SIGNATURES if head.startswith(signature)), None)
    found = found or _sniff_container(head)
    found = found or next((media for pattern, media in _PATTERNS if pattern.match(head)), None)
    if found or not _PCX.match(head):
        return found
    left, top, right, bottom = struct.unpack("<4H", head[4:12])
    return MediaType.PCX if left <= right and top <= bottom else None


def _sniff_container(head: bytes) -> MediaType | None:
    """Distinguish box-based videos and photos by the brands in their first box, and other videos."""
    if head[4:8] in _BOXES:
        end = min(int.from_bytes(head[:4], "big"), len(head))
        brands = head[8:12], *(head[at : at + 4] for at in range(16, end, 4))
        if head[4:8] != b"ftyp" or brands[0] not in _AVIF_BRANDS | _HEIC_BRANDS:
            return MediaType.MP4
        return MediaType.HEIC if _AVIF_BRANDS.isdisjoint(brands) else MediaType.AVIF
    if head.startswith(_EBML):
        return MediaType.WEBM if b"webm" in head[:_EBML_BYTES] else MediaType.MATROSKA
    if len(head) > 2 * _TS_PACKET and set(head[: 3 * _TS_PACKET : _TS_PACKET]) == {_TS_SYNC}:
        return MediaType.MPEG_TS
    return None


URL_SCHEMES = ("http://", "https://", "s3://")
"""Prefixes of addresses that the fleet fetches; other text names a file of this machine."""


class PayloadRef(BaseModel):
    """A file in the payload store."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the content; for an encrypted file the HMAC-SHA-256, which cannot be computed without the key."""
    size: int = Field(ge=0)
    """Size in bytes before encryption."""
    media_type: MediaType | None
    """Type of the content; None if Pecia does not read it."""
    key: str | None = None
    """Name of the key that the file's own key is derived from; None if not encrypted."""
    secret: str | None = Field(default=None, repr=False, exclude_if=lambda secret: secret is None)
    """Key of this file alone, which decrypts it: protect it like the document. None: encrypted under `key`, or not."""


class UrlRef(BaseModel):
    """A file that the fleet fetches. Its URL is never shown, as it may identify a patient and grant access."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(repr=False)
    """`http://`, `https://` or `s3://bucket/key`."""


_RANGE: Final = re.compile(r"\s*([0-9]{1,9})\s*(-)?\s*([0-9]{1,9})?\s*", re.ASCII)
_FORM: Final = "pages are written like '1-3,7,9-': numbers from 1, ascending ranges, separated by commas"


@dataclass(frozen=True, slots=True)
class PageRanges:
    """Pages counted from 1, in ascending order, each once."""

    ranges: tuple[tuple[int, int | None], ...]
    """First and last page of each range; the last may be open."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parsed pages, given in any order. Raises `ValueError`."""
        if len(text) > storable.PAGES:
            raise storable.invalid(f"pages have at most {storable.PAGES:,} characters")
        ranges: list[tuple[int, int | None]] = []
        for one in text.split(","):
            found = _RANGE.fullmatch(one)
            if found is None or (found[3] and not found[2]):
                raise storable.invalid(_FORM)
            first = int(found[1])
            last = int(found[3]) if found[3] else None if found[2] else first
            if first < 1 or (last is not None and last < first):
                raise storable.invalid(_FORM)
            ranges.append((first, last))
        return cls(tuple(_folded(sorted(ranges, key=lambda one: one[0]))))

    def __str__(self) -> str:
        return ",".join(
            str(first) if first == last else f"{first}-{'' if last is None else last}"
            for first, last in self.ranges
        )

    @property
    def last(self) -> int | None:
        """The last page; None if the last range is open."""
        return self.ranges[-1][1]

    def missing_from(self, count: int) -> int | None:
        """Return the first selected page beyond a document's `count` pages; None if it has all of them."""
        beyond = (max(first, count + 1) for first, last in self.ranges if max(first, last or 0) > count)
        return next(beyond, None)

    def length(self, count: int) -> int:
        """Return the number of selected pages in a document with `count` pages, none of them missing."""
        return sum((count if last is None else last) - first + 1 for first, last in self.ranges)

    def indices(self, count: int) -> Iterator[int]:
        """Yield page indices, counted from 0, in a document with `count` pages, none of them missing."""
        for first, last in self.ranges:
            yield from range(first - 1, count if last is None else last)


def _folded(ranges: Sequence[tuple[int, int | None]]) -> Iterator[tuple[int, int | None]]:
    """Yield the ranges, already sorted by first page, with overlapping and adjacent ones joined."""
    first, last = ranges[0]
    for other, end in ranges[1:]:
        if last is None or other <= last + 1:
            last = None if last is None or end is None else max(last, end)
        else:
            yield first, last
            first, last = other, end
    yield first, last


class Ordinals:
    """Ordinals of parts, counted from 0, stored as ranges: a million consecutive ones take two numbers."""

    def __init__(self, ordinals: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for ordinal in ordinals:
            self.add(ordinal)

    @classmethod
    def parse(cls, text: str, most: int) -> Self:
        """Return ordinals for pages counted from 1, none beyond `most`. Raises `ValueError`."""
        ranges = PageRanges.parse(text)
        if ranges.last is None or ranges.last > most:
            raise storable.invalid(f"pages end at {most:,} at the latest")
        parsed = cls()
        for first, last in ranges.ranges:
            parsed._firsts.append(first - 1)
            parsed._lasts.append((last or first) - 1)
        return parsed

    def add(self, ordinal: int) -> None:
        """Add an ordinal."""
        after = bisect_right(self._firsts, ordinal)
        if after and ordinal <= self._lasts[after - 1]:
            return
        follows = bool(after) and self._lasts[after - 1] == ordinal - 1
        precedes = after < len(self._firsts) and self._firsts[after] == ordinal + 1
        if follows and precedes:
            self._lasts[after - 1] = self._lasts.pop(after)
            del self._firsts[after]
        elif follows:
            self._lasts[after - 1] = ordinal
        elif precedes:
            self._firsts[after] = ordinal
        else:
            self._firsts.insert(after, ordinal)
            self._lasts.insert(after, ordinal)

    def copy(self) -> Self:
        """Return a copy that can be changed."""
        copied = type(self)()
        copied._firsts, copied._lasts = self._firsts.copy(), self._lasts.copy()  # noqa: SLF001  of this class
        return copied

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First and last ordinal of each range, in order."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def __contains__(self, ordinal: int) -> bool:
        after = bisect_right(self._firsts, ordinal)
        return bool(after) and ordinal <= self._lasts[after - 1]

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def written(self, most: int) -> str:
        """Return pages, counted from 1: as many of the first ranges as fit into `most` characters."""
        text = str(PageRanges(tuple((first + 1, last + 1) for first, last in self.ranges)))
        return text if len(text) <= most else text[:most].rpartition(",")[0]


_MEMBER_HEADER: Final = 30
"""Bytes before a member's name; the last four give the lengths of the name and the extra field."""


@dataclass(frozen=True, slots=True)
class Pile:
    """Several files as one document, in this order; of a folder those that it holds, as people number them."""

    sources: tuple[Path | bytes | IO[bytes], ...]

    @staticmethod
    def pack(files: Iterable[IO[bytes]], target: IO[bytes]) -> None:
        """Write the rest of each file to a ZIP archive, stored and unnamed. The same files make the same bytes."""
        with ZipFile(target, "w", ZIP_STORED) as archive:
            archive.writestr(ZipInfo(PILE_MARK), b"")
            for number, file in enumerate(files, 1):
                with archive.open(ZipInfo(f"{number:06}"), "w", force_zip64=True) as member:
                    shutil.copyfileobj(file, member, 1024**2)

    @staticmethod
    def members(file: IO[bytes]) -> list[tuple[int, int]]:
        """Return where each file of a pile begins and ends in it. Raises `ValueError` if it is damaged."""
        size = file.seek(0, 2)
        places = []
        try:
            with ZipFile(file) as archive:
                infos = archive.infolist()
        except (BadZipFile, NotImplementedError, ValueError, OSError):
            raise ValueError("The archive is damaged.") from None
        for info in (info for info in infos if info.filename != PILE_MARK):
            file.seek(info.header_offset)
            lengths = file.read(_MEMBER_HEADER)[-4:]
            named = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
            start = info.header_offset + _MEMBER_HEADER + named
            places.append((start, start + info.file_size if info.compress_type == ZIP_STORED else -1))
        if any(not 0 <= start <= end <= size for start, end in places):
            raise ValueError("The archive is damaged.")
        return places


GROUP = "pecia.pages"
"""Entry point group by which the light client finds the decoders."""


class Encoding(StrEnum):
    """Compression of a picture's pixels."""

    RGB = "rgb"
    """JPEG in colour."""
    GREY = "grey"
    """JPEG in grey."""
    BILEVEL = "bilevel"
    """Black and white, ITU-T T.6 (fax group 4), lossless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A page drawn by the fleet's decoders for a client's searchable PDF, as it was read: upright and level."""

    encoding: Encoding
    data: bytes
    """Only pixels, without metadata of the file such as the location of a photo."""
    width: int
    height: int
    dpi: float | None
    """Pixels per inch of paper; None if the document does not state its size."""


class NoPictureError(Exception):
    """The page cannot be decoded; other pages may be."""


class PagePictures(Protocol):
    """Pages of an open document."""

    def __call__(self, number: int, *, rotation: int, skew: float) -> Picture:
        """Return a page (counted from 1) with the clockwise rotation used for reading. Raises `NoPictureError`."""
        ...


class OpenPictures(Protocol):
    """Type of an entry point in the group `pecia.pages`."""

    def __call__(
        self, document: Path, *, password: SecretStr | None, quality: int
    ) -> AbstractContextManager[PagePictures]:
        """Open a document to draw its pages, as JPEG of the given quality (1 to 95) unless they are bilevel.

        Raises `ValueError` for an invalid setting, `ChildProcessError` if nothing can be decoded on this machine.
        """
        ...
