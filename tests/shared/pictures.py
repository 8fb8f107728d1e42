"""Pictures in every form that Pecia reads, and those that are not what they say."""

import io
import random
import struct
import zlib
from typing import Any

import pillow_heif
from PIL import Image, ImageDraw, ImageFont

pillow_heif.register_heif_opener()

LINE = "Seen by doctor"
_STRIP_OFFSETS, _STRIP_SIZES = 273, 279


def line(mode: str = "RGB") -> Image.Image:
    """A small page with one line of print."""
    image = Image.new("L", (240, 80), "white")
    ImageDraw.Draw(image).text((20, 25), LINE, fill="black", font=ImageFont.load_default(22))
    return image.convert(mode)


def noise(width: int = 160, height: int = 120) -> Image.Image:
    """Grey noise, always the same."""
    return Image.frombytes("L", (width, height), random.Random(0).randbytes(width * height))  # noqa: S311


def note(number: int = 1, width: int = 240, height: int = 80) -> Image.Image:
    """A few words on white: noise would be a blank page. Each number makes another page."""
    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).text((width / 8, height / 4), f"Ward {number}", fill="black", font_size=width / 7)
    return image


def marked(width: int = 60, height: int = 100) -> Image.Image:
    """Return a white picture whose top left corner is red."""
    image = Image.new("RGB", (width, height), "white")
    image.paste((255, 0, 0), (0, 0, width // 3, height // 3))
    return image


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def tiff_of(frames: int, *, side: int = 40, form: str | None = None) -> bytes:
    blank = Image.new("1", (side, side), 1)
    return encoded(blank, "TIFF", save_all=True, append_images=[blank] * (frames - 1), compression=form)


def fax(frames: int, form: str, mode: str = "1") -> bytes:
    """A TIFF of that many frames, the first with the line."""
    others = [Image.new(mode, (40, 40), "white")] * (frames - 1)
    return encoded(line(mode), "TIFF", save_all=True, append_images=others, compression=form)


def png_promising(width: int, height: int) -> bytes:
    """A PNG whose header promises what never comes."""
    small = encoded(Image.new("RGB", (1, 1)), "PNG")
    return small[:8] + _chunk(b"IHDR", struct.pack(">II", width, height) + small[24:29]) + small[33:]


def png_bomb(side: int) -> bytes:
    """A whole PNG of `side` x `side` black pixels, one bit each."""
    row = bytes(1 + side // 8)
    packer, packed = zlib.compressobj(9), bytearray()
    for _ in range(side):
        packed += packer.compress(row)
    packed += packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", bytes(packed)) + _chunk(b"IEND", b"")
    )


def png_note_bomb(size: int) -> bytes:
    """A PNG with a compressed note that unpacks to `size` bytes."""
    whole = encoded(line("L"), "PNG")
    note = b"Comment\x00\x00" + zlib.compress(bytes(size), 9)
    return whole[:33] + _chunk(b"zTXt", note) + whole[33:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def tiff_promising(width: int, height: int, *, frames: int = 1, loops: bool = False) -> bytes:
    """A TIFF whose frames promise so many pixels and share one strip of a few bytes; `loops`: the last leads back."""
    strip_at, each = 8, 2 + 12 * 8 + 4
    first = strip_at + 16
    file = bytearray(b"II*\x00" + struct.pack("<I", first) + bytes(16))
    for frame in range(frames):
        last = frame == frames - 1
        following = (first if loops else 0) if last else first + each * (frame + 1)
        entries = (
            *((256, 4, width), (257, 4, height), (258, 3, 1), (259, 3, 4), (262, 3, 0)),
            *((_STRIP_OFFSETS, 4, strip_at), (278, 4, height), (_STRIP_SIZES, 4, 16)),
        )
        file += struct.pack("<H", len(entries))
        file += b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
        file += struct.pack("<I", following)
    return bytes(file)
