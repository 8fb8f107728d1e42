"""Damage inside containers: truncated or corrupt streams of a PDF or TIFF, which decoders draw partly.

First the marker or checksum at the end of a complete stream is checked, which is cheap. Only a stream without it is
decoded again, strictly. A kind of stream without such a mark is compared with its decoded pixels.
"""

import io
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import Final

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

_CHUNK: Final = 1 << 20
_MOST_INFLATED: Final = 1 << 28
"""Bytes of one stream after which its rest is not examined."""
_MOST_OBJECTS: Final = 100_000
_JPEG_END: Final = b"\xff\xd9"
_JPEG_START: Final = b"\xff\xd8"
_ENDINGS: Final = tuple(byte * 256 + _JPEG_END for byte in (b"\0", b"\xaa"))
_BEFORE_END: Final = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0xd9")
"""libjpeg's warning of surplus bytes; some programs pad pictures with equal bytes."""
_PADDING: Final = b"\0\t\n\f\r "
_FLUSHED: Final = b"\0\0\xff\xff"
"""End of a deflated stream that was flushed instead of finished."""
_MOST_ZEROS: Final = 1024
_ADLER: Final = 4
_ENOUGH: Final = 0.99
"""Share of its bytes from which a picture counts as complete: some programs leave out a row."""
_TOLERANCE, _SLACK, _UNALIGNED = 0.03, 16, 1
"""Greatest difference of the length of a Group 4 stream from that of its pixels encoded again: as a share, in bytes,
and in bytes for one without an end mark."""
_UNKNOWN: Final = 0xFFFFFFFF  # length or height in JBIG2
_EOL_BITS: Final = 12
_EOFB: Final = 0x001001
_EOFB_BITS, _TAIL = 24, 8
_BAND: Final = 16
"""Rows that are compressed together for the measurement of noise."""
_NOISE, _IMPOSSIBLE = 0.5, 2.0
"""Rows that do not compress below this share are noise; more noise than the stream, by this factor, is damage."""


def is_deflate_cut(content: bytes, least: int | None = None, most: int = _MOST_INFLATED) -> bool:
    """Return whether a Flate stream is corrupt or cut, without `least` bytes before, or has content after `most`."""
    total, check, is_ended, rest = 0, 1, False, b""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    pending = content[2:]
    try:
        while not inflate.eof and total <= _MOST_INFLATED:
            part = inflate.decompress(pending, _CHUNK)
            if not part and not inflate.unconsumed_tail and not inflate.eof:
                break
            if len(set(part[max(0, most - total) :])) > 1:  # more than padding
                return True
            total, check, pending = total + len(part), zlib.adler32(part, check), inflate.unconsumed_tail
        is_ended, rest = inflate.eof or total > _MOST_INFLATED, inflate.unused_data[:_ADLER]
    except zlib.error:
        return least is None or total < least
    if is_ended:  # some programs leave the checksum out
        is_other = inflate.eof and len(rest) == _ADLER and any(rest) and int.from_bytes(rest, "big") != check
        return is_other or (least is not None and total < _ENOUGH * least)
    if least is not None:
        return total < least
    return not content.rstrip(b"\r\n").endswith(_FLUSHED)


def jpeg_2000_area(content: bytes) -> int:
    """Return the pixels that a JPEG 2000 picture has by its own header (ITU-T T.800, A.5.1)."""
    size = re.search(rb"\xff\x4f\xff\x51.{4}(.{16})", content, re.DOTALL)
    right, bottom, left, top = struct.unpack(">4I", size[1] if size else bytes(16))
    return int((right - left) * (bottom - top))


def is_jpeg_broken(content: bytes) -> bool:
    """Return whether a JPEG or JPEG 2000 picture is truncated, or bytes within it are lost or wrong.

    A wrong byte shifts the codes after it, so that usually some are missing at the end, or left over.
    """
    if (_are_codes_wrong if content.startswith(_JPEG_START) else is_zeroed)(content):
        return True
    if content.rstrip(_PADDING).endswith(_JPEG_END):
        return False
    # Of a JPEG that lacks nothing but its end, it does not matter what follows.
    endings = _ENDINGS if content.startswith(_JPEG_START) else (b"",)
    try:
        pixels = [_decoded(content + ending) for ending in endings]
    except Exception:  # noqa: BLE001  a broken picture can break a decoder in any way
        return True
    return any((other != pixels[0]).any() for other in pixels[1:])


def is_zeroed(content: bytes) -> bool:
    """Return whether zeros took the place of a part of a compressed picture; WebP has some where a page is white."""
    return bytes(max(_MOST_ZEROS, len(content) // 8)) in content


def _are_codes_wrong(content: bytes) -> bool:
    """Return whether libjpeg reports inconsistent codes in a JPEG; ignores codes that it cannot read at all."""
    try:
        colours = simplejpeg.decode_jpeg_header(content)[2]
        into = "CMYK" if colours in ("CMYK", "YCCK") else "GRAY"
        simplejpeg.decode_jpeg(content, into, fastdct=True, min_height=1, min_width=1, min_factor=8)
    except ValueError as error:
        complaint = str(error)
        if padded := _BEFORE_END.match(complaint):
            length = int(padded[1])
            return len(set(content[: content.rfind(_JPEG_END)][-length:])) > 1
        return complaint.startswith("Corrupt JPEG data")
    return False


def _decoded(content: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(content), formats=["JPEG", "JPEG2000"]) as image:
        return np.asarray(image)


def is_jbig2_broken(content: bytes, pixels: NDArray[np.bool_]) -> bool:
    """Return whether a JBIG2 picture is truncated, has further rows, or too few bytes for the noise in its pixels."""
    return _is_jbig2_cut(content, len(pixels)) or _noise_bytes(pixels) > _IMPOSSIBLE * len(content)


def _is_jbig2_cut(content: bytes, rows: int = _UNKNOWN) -> bool:
    """Return whether the segments declare more bytes than exist (ITU-T T.88, 7.2), or the page more rows (7.4.8)."""
    at = 0
    while at < len(content.rstrip(b"\r\n")):
        try:
            number, flags, referred = struct.unpack_from(">IBB", content, at)
            at += 6
            if referred >> 5 == 7:  # noqa: PLR2004  the long form
                count = struct.unpack_from(">I", content, at - 1)[0] & 0x1FFFFFFF
                at += 3 + (count + 8) // 8
            else:
                count = referred >> 5
            at += count * (1 if number <= 256 else 2 if number <= 65536 else 4)  # noqa: PLR2004
            at += 4 if flags & 0x40 else 1
            (length,) = struct.unpack_from(">I", content, at)
            if flags & 0x3F == 48 and rows < struct.unpack_from(">I", content, at + 8)[0] < _UNKNOWN:  # noqa: PLR2004
                return True
        except struct.error:
            return True
        if length == _UNKNOWN:
            return False
        at += 4 + length
    return at > len(content)


def _noise_bytes(pixels: NDArray[np.bool_]) -> int:
    """Return the compressed size of the bands of a picture that are noise."""
    packed = np.packbits(pixels, axis=1)
    bands = (packed[top : top + _BAND].tobytes() for top in range(0, len(packed), _BAND))
    return sum(len(band) for band in bands if len(zlib.compress(band, 1)) > _NOISE * len(band))


def is_fax_broken(content: bytes, pixels: NDArray[np.bool_]) -> bool:
    """Return whether a Group 4 picture, or strip, differs from its decoded pixels.

    Equal pixels encode to equal lengths in any program; the colour of white follows from the start.
    """
    encoded = max(as_fax(pixels), as_fax(~pixels), key=lambda other: _common_start(content, other))
    longer = len(encoded) - len(content)
    if not _has_end(content):
        longer -= _EOFB_BITS // 8
        if longer > _UNALIGNED:
            return True
    return abs(longer) > _SLACK + _TOLERANCE * len(content)


def has_line_ends(content: bytes) -> bool:
    """Return whether a Group 3 picture begins with an end of line."""
    return 0 < int.from_bytes(content[:2], "big") < 1 << 16 - _EOL_BITS + 1


def has_lost_rows(content: bytes, rows: int) -> bool:
    """Return whether a Group 3 strip has fewer ends of lines than rows (ITU-T T.4, 4.1.2: 11 zeros, and a one)."""
    ones = np.flatnonzero(np.unpackbits(np.frombuffer(content, np.uint8)))
    return int((np.diff(ones, prepend=-1) >= _EOL_BITS).sum()) < _ENOUGH * rows


def _common_start(content: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(content, other, strict=False)))


def _has_end(tail: bytes) -> bool:
    """Return whether the bytes end with the end of a facsimile block (ITU-T T.6, 2.4.1.1), at any bit."""
    bits = int.from_bytes(tail.rstrip(b"\r\n\0")[-_TAIL:] + b"\0", "big")
    return any((bits >> shift) & ((1 << _EOFB_BITS) - 1) == _EOFB for shift in range(2 * _TAIL))


def as_fax(pixels: NDArray[np.bool_]) -> bytes:
    """Return light and dark as Group 4 encodes them, in one strip."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "TIFF", compression="group4", tiffinfo={278: len(pixels)})
    with Image.open(file) as written:
        [start], [length] = written.tag_v2[273], written.tag_v2[279]  # type: ignore[attr-defined]
    return file.getvalue()[start : start + length]


class SavedPage:
    """The objects of one page of a PDF, from a file of this page saved by pdfium: decrypted, without object streams."""

    def __init__(self, file: bytes) -> None:
        self._objects = dict(_objects(file))

    def has_lost_content(self, *, is_expected: bool, pictures: int) -> bool:
        """Return whether content of the page is lost. `is_expected`: it must have content; `pictures`: those drawn.

        That is, a content stream, or a form's, is truncated or corrupt; a referenced stream or picture is absent; or an
        inline picture cannot be parsed.
        """
        contents = self._contents()
        streams = [
            (number in contents, about, content)
            for number, (about, content) in self._objects.items()
            if content and (number in contents or b"/Subtype/Form" in about)
        ]
        if is_expected and self._objects and not contents & self._objects.keys():
            return True
        if any(re.search(_DEFLATED, about) and is_deflate_cut(content) for _, about, content in streams):
            return True
        shown = [(is_own, _inflated(about, content)) for is_own, about, content in streams]
        names = {name for _, content in shown for name in _SHOWN.findall(content)}
        abouts = b" ".join(about for about, _ in self._objects.values())
        if any(not re.search(rb"/%s\s*(?:\d+ 0 R|<<)" % re.escape(name), abouts) for name in names):
            return True
        if _are_unfinished([content for _, content in shown]):
            return True
        return sum(len(_INLINE.findall(content)) for is_own, content in shown if is_own) > pictures

    def _pictures(self, width: int, height: int) -> Iterator[bytes]:
        """Yield the dictionaries of pictures of this size."""
        for about, _ in self._objects.values():
            if re.search(rb"/Width %d\b" % width, about) and re.search(rb"/Height %d\b" % height, about):
                yield about

    def component_bits(self, width: int, height: int) -> int:
        """Return the fewest bits of a component of a picture of this size, 8 if no picture states them."""
        bits = (re.search(rb"/BitsPerComponent (\d+)", about) for about in self._pictures(width, height))
        return min((int(stated[1]) for stated in bits if stated), default=8)

    def has_broken_mask(self, width: int, height: int) -> bool:
        """Return whether the mask of a picture of this size is truncated or corrupt."""
        abouts = self._pictures(width, height)
        masks = [int(mask[1]) for about in abouts if (mask := re.search(rb"/S?Mask (\d+) 0 R", about))]
        return any(_is_mask_broken(*self._objects[mask]) for mask in masks if mask in self._objects)

    def _contents(self) -> set[int]:
        """Return the numbers of the page's own content streams."""
        contents: set[int] = set()
        for about, _ in self._objects.values():
            if re.search(rb"/Type/Page\b", about) and (listed := re.search(_CONTENTS, about)):
                contents |= _references(listed[1])
        for number in [*contents]:  # their array may be an object of its own
            about, _ = self._objects.get(number, (b"", b""))
            contents |= _references(about) if about.startswith(b"[") else set()
        return contents

    def has_group4(self, width: int, height: int) -> bool:
        """Return whether each facsimile picture of this size is encoded in plain Group 4."""
        parameters = [
            self._resolved(about) for about in self._pictures(width, height) if b"/CCITTFaxDecode" in about
        ]
        return bool(parameters) and all(
            re.search(rb"/K -", about) and not re.search(rb"/EncodedByteAlign true", about)
            for about in parameters
        )

    def _resolved(self, about: bytes) -> bytes:
        reference = re.search(rb"/DecodeParms\s*\[?\s*(\d+) 0 R", about)
        return self._objects.get(int(reference[1]), (b"", b""))[0] if reference else about


_CONTENTS: Final = rb"/Contents\s*(\[[^\]]*\]|\d+ 0 R)"
_DEFLATED: Final = rb"/Filter\s*(/FlateDecode|\[\s*/FlateDecode\s*\])"
_SHOWN: Final = re.compile(rb"/([^\s/<>\[\](){}%]+)\s+Do\b")
_INLINE: Final = re.compile(rb"(?:^|\s)BI\s*/[^()]{1,300}?\sID\s")


_TEXT_OBJECT: Final = re.compile(rb"(?<![\w*'\"/.])(?:(BT)|ET)(?![\w*'\"])")
_STRING: Final = re.compile(rb"\((?:[^()\\]|\\.)*\)", re.DOTALL)
_DEEPEST: Final = 8  # brackets within brackets


def _are_unfinished(contents: Sequence[bytes]) -> bool:
    """Return whether content ends within a string or text object; False for binary content."""
    begun = 0
    for content in contents:
        if not content or _INLINE.search(content):
            return False
        plain = content
        for _ in range(_DEEPEST):
            plain = _STRING.sub(b"", plain) if b"(" in plain else plain
        plain = re.sub(rb"%[^\r\n]*", b"", plain)
        if b"(" in plain:
            return True
        begun += sum(1 if mark[1] else -1 for mark in _TEXT_OBJECT.finditer(plain))
    return begun > 0


def _is_mask_broken(about: bytes, content: bytes) -> bool:
    if re.search(_DEFLATED, about):
        return is_deflate_cut(content)
    if re.search(rb"/Filter\s*\[?\s*/(?:DCT|JPX)Decode", about):
        return is_jpeg_broken(content)
    if b"/JBIG2Decode" in about:
        return _is_jbig2_cut(content)
    size = re.search(rb"/Width (\d+)", about), re.search(rb"/Height (\d+)", about)
    if b"/CCITTFaxDecode" not in about or not re.search(rb"/K -", about) or not all(size):
        return False
    tags, (width, height) = ImageFileDirectory_v2(), (int(side[1]) for side in size if side)
    tags.update({256: width, 257: height, 258: 1, 259: 4, 262: 0, 273: 0, 278: height, 279: len(content)})
    picture = b"II*\0\x08\0\0\0" + tags.tobytes(8) + content  # which moves the strip behind the directory
    try:
        with Image.open(io.BytesIO(picture), formats=["TIFF"]) as image:
            return is_fax_broken(content, np.asarray(image))
    except Exception:  # noqa: BLE001  as above
        return True


def _inflated(about: bytes, content: bytes) -> bytes:
    """Return a decoded content stream, empty for other encodings than Flate."""
    if not re.search(_DEFLATED, about):
        return b"" if b"/Filter" in about else content
    with suppress(zlib.error):
        return zlib.decompressobj().decompress(content, _MOST_INFLATED)
    return b""


def _references(about: bytes) -> set[int]:
    return {int(number) for number in re.findall(rb"(\d+) 0 R", about)}


def _objects(page: bytes) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yield the number of each object of a PDF that pdfium saved, with its dictionary and the bytes of its stream."""
    start = re.search(rb"startxref\s+(\d+)\s+%%EOF\s*$", page[-64:])
    if not start:
        return
    offsets = re.findall(rb"(\d{10}) 00000 n", page[int(start[1]) :])[:_MOST_OBJECTS]
    ends: Sequence[int] = sorted([*map(int, offsets), int(start[1])])
    for begin, end in pairwise(ends):
        if head := re.compile(rb"(\d+) 0 obj\s*").match(page, begin):
            body = page.find(b"stream\r\n", head.end(), end)
            about = page[head.end() : end if body < 0 else body]
            length = re.search(rb"/Length (\d+)", about)
            content = page[body + 8 : body + 8 + int(length[1])] if body >= 0 and length else b""
            yield int(head[1]), (about, content)
