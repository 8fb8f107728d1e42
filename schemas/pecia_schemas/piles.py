"""Several files as one document: a ZIP archive that stores them uncompressed, in page order, without names."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from pecia_schemas.media import PILE_MARK

_HEADER: Final = 30
"""Bytes before a member's name; the last four give the lengths of the name and the extra field."""


@dataclass(frozen=True, slots=True)
class Pile:
    """Files that form one document, in this order; a folder stands for its files, in natural order of their names."""

    sources: tuple[Path | bytes | IO[bytes], ...]


def pack(files: Iterable[IO[bytes]], target: IO[bytes]) -> None:
    """Write the rest of each file to one archive. The same files produce the same bytes."""
    with ZipFile(target, "w", ZIP_STORED) as archive:
        archive.writestr(ZipInfo(PILE_MARK), b"")
        for number, file in enumerate(files, 1):
            with archive.open(ZipInfo(f"{number:06}"), "w", force_zip64=True) as member:
                shutil.copyfileobj(file, member, 1024**2)


def members(file: IO[bytes]) -> list[tuple[int, int]]:
    """Return the start and end offsets of each file in an archive. Raises `ValueError` if it is damaged."""
    size = file.seek(0, 2)
    places = []
    try:
        with ZipFile(file) as archive:
            infos = archive.infolist()
    except (BadZipFile, NotImplementedError, ValueError, OSError):
        raise ValueError("The archive is damaged.") from None
    for info in infos:
        if info.filename == PILE_MARK:
            continue
        file.seek(info.header_offset)
        lengths = file.read(_HEADER)[-4:]
        named = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        start = info.header_offset + _HEADER + named
        places.append((start, start + info.file_size if info.compress_type == ZIP_STORED else -1))
    if any(not 0 <= start <= end <= size for start, end in places):
        raise ValueError("The archive is damaged.")
    return places
