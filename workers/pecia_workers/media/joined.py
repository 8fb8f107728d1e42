"""Videos that were joined end to end: parts of a file with their own clock or headers.

Demuxers trust a file's first headers and timestamps, and never reach anything after such a joint. Sources: ISO/IEC
13818-1, 2.4.3 (packets of transport streams), RFC 8794 (EBML), ISO/IEC 14496-12, 4.2 (boxes).
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.media import MediaType
from pecia_workers.media.files import Part

_PACKET, _SYNC = 188, 0x47
_CHUNK: Final = _PACKET << 16
_SURE: Final = 3
"""Consecutive packets that confirm the start of a packet."""
_CLOCK_HZ: Final = 90_000
_CLOCK_BITS: Final = 33
_BACK_S, _FORTH_S = 0.2, 10.0
"""Jump of timestamps, back or ahead, from which a new clock starts; `dts_delta_threshold` of FFmpeg."""
_EBML: Final = b"\x1a\x45\xdf\xa3"
_MIN_RUN: Final = 4
"""Mean run of one stream's pictures between another's, from which the streams are successive."""
_PROGRAMS: Final = 0
_PES: Final = b"\x00\x00\x01"
_VIDEO: Final = range(0xE0, 0xF0)


class _Stamp(NamedTuple):
    """The start of a picture."""

    place: int
    stream: int
    shown: int
    decoded: int
    programs: int
    """Offset of the last program table before it; -1: none."""


def timed_parts(file: BinaryIO, stream: int) -> list[tuple[Part, float]]:
    """Return the parts of a transport stream whose video has a separate clock, with their seconds.

    `stream`: the packet identifier of the video. After its end, video with another identifier may follow.
    """
    stamps = _shown_together([*_stamps(file)], stream)
    if not stamps:
        return []
    wrap = 1 << _CLOCK_BITS
    decoded = np.array([stamp.decoded for stamp in stamps])
    stamps, decoded = _without_outliers(stamps, decoded)
    steps = (np.diff(decoded) + wrap // 2) % wrap - wrap // 2
    same = np.diff([stamp.stream for stamp in stamps]) == 0
    goes_on = same & (steps > -_BACK_S * _CLOCK_HZ) & (steps < _FORTH_S * _CLOCK_HZ)
    firsts = [0, *(np.flatnonzero(~goes_on) + 1).tolist()]
    usual = float(np.median(steps[goes_on & (steps > 0)])) if (goes_on & (steps > 0)).any() else 0.0
    parts = []
    for first, following in zip(firsts, [*firsts[1:], len(stamps)], strict=True):
        shown = np.array([stamp.shown for stamp in stamps[first:following]]) - stamps[first].decoded
        shown = (shown + wrap // 2) % wrap - wrap // 2
        begins = stamps[first].place
        programs = stamps[first].programs
        is_near = programs > (stamps[first - 1].place if first else -1)
        has_programs = is_near and not (begins - programs) % _PACKET  # else they are of the part before
        part = Part(
            start=0 if not first else programs if has_programs else begins,
            end=stamps[following].place if following < len(stamps) else _size(file),
            head=0 if has_programs or not first else stamps[0].place,
        )
        parts.append((part, float(np.ptp(shown) + usual) / _CLOCK_HZ))
    return parts


def _shown_together(stamps: list[_Stamp], stream: int) -> list[_Stamp]:
    """Return the pictures of one stream, or of several if these are successive rather than parallel."""
    runs = sum(before.stream != after.stream for before, after in pairwise(stamps))
    is_chain = _MIN_RUN * runs < len(stamps)
    return [stamp for stamp in stamps if is_chain or stamp.stream == stream]


def _without_outliers(stamps: list[_Stamp], decoded: NDArray[Any]) -> tuple[list[_Stamp], NDArray[Any]]:
    """Drop single broken timestamps, without which the clock is continuous."""
    wrap, most = 1 << _CLOCK_BITS, _FORTH_S * _CLOCK_HZ
    goes_on = np.diff(decoded) % wrap < most
    goes_past = (decoded[2:] - decoded[:-2]) % wrap < most
    broken = np.zeros(len(decoded), dtype=np.bool_)
    broken[1:-1] = goes_past & ~goes_on[:-1] & ~goes_on[1:]
    return [stamp for stamp, is_broken in zip(stamps, broken, strict=True) if not is_broken], decoded[~broken]


def _stamps(file: BinaryIO) -> Iterator[_Stamp]:
    """Yield the starts of pictures of all streams."""
    programs = -1
    for start, packets in _packets(file):
        head = packets[:, :5].astype(np.int32)
        stream = (head[:, 1] & 0x1F) << 8 | head[:, 2]
        begins = (head[:, 1] & 0xC0) == 0x40  # noqa: PLR2004  a payload's begin, and no error in transport
        for number in np.flatnonzero(begins).tolist():
            place, packet = start + number * _PACKET, packets[number].tobytes()
            if stream[number] == _PROGRAMS:
                programs = place
                continue
            payload = packet[5 + packet[4] if packet[3] & 0x20 else 4 :]
            if payload[:3] != _PES or len(payload) < 14 or payload[3] not in _VIDEO or not payload[7] & 0x80:  # noqa: PLR2004
                continue
            shown = _time(payload[9:14])
            decoded = _time(payload[14:19]) if payload[7] & 0x40 and len(payload) >= 19 else shown  # noqa: PLR2004
            if (shown - decoded) % (1 << _CLOCK_BITS) > _FORTH_S * _CLOCK_HZ:
                shown = decoded  # it is broken: no picture is shown before it is decoded, or long after
            yield _Stamp(place, int(stream[number]), shown, decoded, programs)


def _time(field: bytes) -> int:
    return (field[0] >> 1 & 7) << 30 | field[1] << 22 | field[2] >> 1 << 15 | field[3] << 7 | field[4] >> 1


def _packets(file: BinaryIO) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield runs of consecutive packets, one a row, with the offset of the first; other bytes are skipped."""
    start, descriptor = 0, file.fileno()
    while len(content := os.pread(descriptor, _CHUNK, start)) >= _PACKET:
        data = np.frombuffer(content, np.uint8)
        rows = data[: len(data) // _PACKET * _PACKET].reshape(-1, _PACKET)
        lost = np.flatnonzero(rows[:, 0] != _SYNC)
        count = int(lost[0]) if lost.size else len(rows)
        if count:
            yield start, rows[:count]
            start += count * _PACKET
        if lost.size:
            cut = min(count, 1) * _PACKET  # the last packet may be cut, and the next begin within it
            start -= cut
            rest = data[count * _PACKET - cut :]
            is_sync = rest == _SYNC
            reach = max(1, len(rest) - (_SURE - 1) * _PACKET)
            sure = is_sync[:reach].copy()
            for further in range(1, _SURE):
                following = is_sync[further * _PACKET :][:reach]
                sure[: len(following)] &= following
            places = np.flatnonzero(sure)
            start += int(places[places > 0][0]) if (places > 0).any() else reach


def files_of(file: BinaryIO, media: MediaType) -> list[Part]:
    """Return the files that were joined into one, by their headers; the file itself if it is only one."""
    starts = [*_headers(file, media)] or [0]
    return [Part(start, end) for start, end in zip(starts, [*starts[1:], _size(file)], strict=True)]


def _headers(file: BinaryIO, media: MediaType) -> Iterator[int]:
    """Yield the starts of files, following the elements of the first level."""
    place, size, descriptor = 0, _size(file), file.fileno()
    is_described = False  # whether its track has been described
    while place < size:
        head = os.pread(descriptor, 16, place)
        if media is MediaType.MP4:
            kind, length = head[4:8], int.from_bytes(head[:4], "big")
            if length == 1:
                length = int.from_bytes(head[8:], "big")
            if kind == b"ftyp" and (is_described or not place):
                yield place
            is_described = kind == b"moov" or (is_described and kind != b"ftyp")
        elif media is MediaType.AVI:
            length = 8 + int.from_bytes(head[4:8], "little")
            length += length % 2
            if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
                yield place
        else:
            identifier = 9 - head[0].bit_length()
            width = 9 - head[identifier].bit_length() if identifier < len(head) else 9
            value = int.from_bytes(head[identifier : identifier + width], "big")
            length = identifier + width + (value & ~(1 << 7 * width))
            if value == (1 << 7 * width + 1) - 1:  # not known when it was written
                length = _find(descriptor, _EBML, place + 1) - place
            if head[:4] == _EBML:
                yield place
        if length < 8:  # noqa: PLR2004  to the end of the file, or broken
            return
        place += length


def _find(descriptor: int, sought: bytes, start: int) -> int:
    """Return the offset of the next occurrence of some bytes, or the end of the file."""
    while content := os.pread(descriptor, _CHUNK, start):
        if (place := content.find(sought)) >= 0:
            return start + place
        start += max(1, len(content) - len(sought) + 1)
    return start


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
