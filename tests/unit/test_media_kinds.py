"""Each kind of picture in the forms that scanners, phones and fax servers give it."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pillow_heif
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import HEAD_BYTES, MediaType, PageRanges, sniff
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media import images
from pecia_workers.media.decoding import inspect_file
from pecia_workers.media.pages import Limits, MediaError
from tests.shared.decoded import page_pixels
from tests.shared.fixture_types import MakeFile
from tests.shared.pictures import encoded, marked

LIMITS = Limits.of(WorkerSettings())
pillow_heif.register_heif_opener()


def numbered(count: int, **options: Any) -> bytes:
    """A TIFF whose frames are as wide as their numbers, from 11."""
    first, *others = (Image.new("L", (11 + number, 20), number % 256) for number in range(count))
    return encoded(first, "TIFF", save_all=True, append_images=others, **options)


def as_text(image: Image.Image) -> bytes:
    """A PPM as its text form writes it, with a comment."""
    samples = " ".join(map(str, image.tobytes()))
    return f"P3\n# a scanner\n{image.width} {image.height}\n255\n{samples}\n".encode()


def deep_tiff(samples: NDArray[np.uint16], photometric: int, order: str = "<") -> bytes:
    """A TIFF of 16 bits a sample, uncompressed, as Pillow does not write it."""
    height, width, count = samples.shape
    content = samples.astype(f"{order}u2").tobytes()
    fields = [
        *((256, "I", [width]), (257, "I", [height]), (258, "H", [16] * count), (259, "H", [1])),
        *((262, "H", [photometric]), (273, "I", [0]), (277, "H", [count])),
        *((278, "I", [height]), (279, "I", [len(content)])),
    ]
    behind = 8 + 2 + 12 * len(fields) + 4
    bits = struct.pack(f"{order}{count}H", *[16] * count)
    places = {258: behind, 273: behind + len(bits)}
    entries = b""
    for tag, form, values in fields:
        packed = struct.pack(f"{order}{len(values)}{form}", *values)
        if len(packed) > 4 or tag == 273:
            packed = struct.pack(f"{order}I", places[tag])
        kind = 3 if form == "H" else 4
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(fields))
    return head + entries + bytes(4) + bits + content


def corner_and_middle(path: Path) -> tuple[list[int], list[int]]:
    (page,) = inspect_file(path, LIMITS)
    assert (page.width, page.height) == (60, 100)
    pixels = page_pixels(path, 0, LIMITS)
    return pixels[3, 3].tolist(), pixels[60, 40].tolist()


CMYK = marked().convert("CMYK")
OTHER = Image.new("RGB", (60, 100))
KINDS = {
    "jpeg": (MediaType.JPEG, encoded(marked(), "JPEG", quality=95)),
    "progressive": (MediaType.JPEG, encoded(marked(), "JPEG", quality=95, progressive=True)),
    "cmyk jpeg": (MediaType.JPEG, encoded(CMYK, "JPEG", quality=95)),
    "gif": (MediaType.GIF, encoded(marked(), "GIF")),
    "animation": (MediaType.GIF, encoded(marked(), "GIF", save_all=True, append_images=[OTHER])),
    "palette": (MediaType.PNG, encoded(marked().quantize(8), "PNG")),
    "webp": (MediaType.WEBP, encoded(marked().convert("RGBA"), "WEBP", lossless=True)),
    "heic": (MediaType.HEIC, encoded(marked(), "HEIF", quality=95)),
    "tiled heic": (MediaType.HEIC, encoded(marked(), "HEIF", quality=95, tile_size=64)),
    "avif": (MediaType.AVIF, encoded(marked(), "AVIF", quality=95)),
    "jpeg 2000": (MediaType.JPEG2000, encoded(marked(), "JPEG2000")),
    "jpeg 2000 codestream": (MediaType.JPEG2000, encoded(marked(), "JPEG2000", no_jp2=True)),
    "ppm": (MediaType.PPM, encoded(marked(), "PPM")),
    "ppm as text": (MediaType.PPM, as_text(marked())),
    "pcx": (MediaType.PCX, encoded(marked(), "PCX")),
    **{
        f"tiff, {one}": (MediaType.TIFF, encoded(marked(), "TIFF", compression=one))
        for one in ("raw", "tiff_lzw", "jpeg", "tiff_adobe_deflate", "packbits", "zstd")
    },
    "bigtiff": (MediaType.TIFF, encoded(marked(), "TIFF", big_tiff=True)),
    "cmyk tiff": (MediaType.TIFF, encoded(CMYK, "TIFF", compression="tiff_lzw")),
    "cmyk jpeg in tiff": (MediaType.TIFF, encoded(CMYK, "TIFF", compression="jpeg", quality=95)),
}


@pytest.mark.parametrize(("media", "content"), KINDS.values(), ids=KINDS)
def test_a_red_corner_stays_red_in_every_kind(media: MediaType, content: bytes, file: MakeFile) -> None:
    assert sniff(content[:HEAD_BYTES]) is media
    corner, middle = corner_and_middle(file(content))
    assert np.abs(np.subtract(corner, (255, 0, 0))).max() <= 12
    assert np.abs(np.subtract(middle, (255, 255, 255))).max() <= 12


@pytest.mark.parametrize("compression", ["group3", "group4"])
def test_a_fax_is_black_on_white(compression: str, file: MakeFile) -> None:
    page = Image.new("1", (60, 100), 1)
    page.paste(0, (0, 0, 20, 33))
    assert corner_and_middle(file(encoded(page, "TIFF", compression=compression))) == ([0] * 3, [255] * 3)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("photometric", "samples", "colour"),
    [
        (2, (0x8000, 0, 0xFFFF), (128, 0, 255)),
        (5, (0, 0xFFFF, 0, 0), (255, 0, 255)),
        (1, (0x4000,), (64, 64, 64)),
    ],
    ids=["rgb", "cmyk", "black is zero"],
)
def test_sixteen_bits_are_scaled_to_eight(
    photometric: int, samples: tuple[int, ...], colour: tuple[int, ...], order: str, file: MakeFile
) -> None:
    deep = np.full((100, 60, len(samples)), samples, dtype=np.uint16)
    corner, _ = corner_and_middle(file(deep_tiff(deep, photometric, order)))
    assert np.abs(np.subtract(corner, colour)).max() <= 1


def test_of_sixteen_bits_zero_may_be_white_where_pillow_knows_it(file: MakeFile) -> None:
    deep = np.full((100, 60, 1), 0x4000, dtype=np.uint16)
    assert corner_and_middle(file(deep_tiff(deep, 0)))[0] == [191, 191, 191]
    with pytest.raises(MediaError, match="unsupported_type: The TIFF stores its colours"):
        page_pixels(file(deep_tiff(deep, 0, ">")), 0, LIMITS)


def test_the_colours_of_a_palette_may_have_8_bits_where_16_are_due(file: MakeFile) -> None:
    image = Image.fromarray(np.full((100, 60), 7, dtype=np.uint8))
    image.putpalette([0, 0, 0] * 7 + [255, 200, 3])
    content = encoded(image, "TIFF")
    entry = content.index(struct.pack("<HHI", 320, 3, 768)) + 8
    (start,) = struct.unpack_from("<I", content, entry)
    colours = np.frombuffer(content[start : start + 2 * 768], "<u2") >> 8
    content = content[:start] + colours.tobytes() + content[start + 2 * 768 :]
    assert corner_and_middle(file(content))[0] == [255, 200, 3]


def test_a_jpeg_of_twelve_bits_says_what_is_the_matter(file: MakeFile) -> None:
    content = bytearray(encoded(marked(), "JPEG"))
    content[content.index(b"\xff\xc0") + 4] = 12
    with pytest.raises(MediaError, match="unsupported_type: The JPEG has 12 bits a sample"):
        inspect_file(file(bytes(content)), LIMITS)


def test_photos_films_and_text_are_told_apart_by_their_first_bytes() -> None:
    def head(*brands: bytes) -> bytes:
        body = b"ftyp" + brands[0] + bytes(4) + b"".join(brands[1:])
        return struct.pack(">I", 4 + len(body)) + body + b"\0\0\0\x08free"

    assert sniff(head(b"heic", b"mif1")) is MediaType.HEIC
    assert sniff(head(b"mif1", b"heic")) is MediaType.HEIC
    assert sniff(head(b"mif1", b"avif")) is MediaType.AVIF
    assert sniff(head(b"avif", b"mif1")) is MediaType.AVIF
    assert sniff(head(b"isom", b"avif")) is MediaType.MP4
    assert sniff(head(b"qt  ")) is MediaType.MP4
    assert sniff(b"G" * HEAD_BYTES) is MediaType.MPEG_TS
    assert sniff(b"Good morning, " * 40) is None


def test_a_pdf_may_have_lines_of_a_mail_or_printing_system_before_it() -> None:
    assert sniff(b"\x1b%-12345X@PJL ENTER LANGUAGE=PDF\r\n" * 20 + b"%PDF-1.4\n") is MediaType.PDF
    assert sniff(encoded(marked(), "PNG") + b"%PDF-1.4") is MediaType.PNG
    assert sniff(b" " * 1_100 + b"%PDF-1.4") is None


def test_the_last_frame_of_a_tiff_is_read_alone(file: MakeFile, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    def counted(file: IO[bytes]) -> TiffImageFile:
        opened.append(file)
        return TiffImageFile(file)

    monkeypatch.setattr(images, "TiffImageFile", counted)
    path = file(numbered(500))

    assert (page_pixels(path, 499, LIMITS) == 499 % 256).all()
    assert len(opened) == 1
    some = inspect_file(path, LIMITS, PageRanges.parse("3,400-402"))
    assert [page.index for page in some] == [2, 399, 400, 401]
    assert len(opened) == 5


def test_a_frame_that_is_described_badly_fails_alone(file: MakeFile) -> None:
    content = bytearray(numbered(3))
    second = _directories(content)[1]
    struct.pack_into("<HHI", content, second + 2, 256, 99, 1)  # a width of no known type
    path = file(bytes(content))
    assert [page.width for page in inspect_file(path, LIMITS)] == [11, 11, 13]
    assert (page_pixels(path, 2, LIMITS) == 2).all()
    with pytest.raises(MediaError, match="damaged"):
        page_pixels(path, 1, LIMITS)


def test_of_a_tiff_that_was_cut_the_frames_before_are_pages_and_one_more_fails(file: MakeFile) -> None:
    whole = numbered(5)
    path = file(whole[: _directories(whole)[3] + 1])
    assert len(inspect_file(path, LIMITS)) == 4
    assert (page_pixels(path, 2, LIMITS) == 2).all()
    with pytest.raises(MediaError, match="damaged"):
        page_pixels(path, 3, LIMITS)


def test_a_tiff_whose_frames_go_in_a_circle_ends(file: MakeFile) -> None:
    content = bytearray(numbered(2))
    first, second = _directories(content)
    struct.pack_into("<I", content, _end_of_directory(content, second), first)
    assert len(inspect_file(file(bytes(content)), LIMITS)) == 2


def _directories(content: bytes | bytearray) -> list[int]:
    found = [struct.unpack_from("<I", content, 4)[0]]
    while following := struct.unpack_from("<I", content, _end_of_directory(content, found[-1]))[0]:
        found.append(following)
    return found


def _end_of_directory(content: bytes | bytearray, at: int) -> int:
    return int(at + 2 + 12 * struct.unpack_from("<H", content, at)[0])


@pytest.mark.parametrize(
    ("pages", "limits", "outcome"),
    [
        ("2-3", LIMITS, [1, 2]),
        ("4-", replace(LIMITS, pages=2), [3, 4]),
        ("1,3,5", replace(LIMITS, pages=3), [0, 2, 4]),
        ("2-4", replace(LIMITS, pages=2), FailureCode.TOO_MANY_PAGES),
        ("2-", replace(LIMITS, pages=3), FailureCode.TOO_MANY_PAGES),
        ("6", LIMITS, FailureCode.NO_SUCH_PAGE),
        ("4-6", LIMITS, FailureCode.NO_SUCH_PAGE),
        ("6-", LIMITS, FailureCode.NO_SUCH_PAGE),
        ("1-", replace(LIMITS, pages=5), [0, 1, 2, 3, 4]),
    ],
)
def test_the_limit_of_pages_is_about_those_that_are_asked_for(
    pages: str, limits: Limits, outcome: list[int] | FailureCode, file: MakeFile
) -> None:
    path = file(numbered(5))
    try:
        found: list[int] | FailureCode = [
            page.index for page in inspect_file(path, limits, PageRanges.parse(pages))
        ]
    except MediaError as error:
        found = error.code
    assert found == outcome


def test_a_single_picture_has_the_first_page_alone(file: MakeFile) -> None:
    path = file(encoded(marked(), "PNG"))
    assert len(inspect_file(path, LIMITS, PageRanges.parse("1-"))) == 1
    with pytest.raises(MediaError, match="no_such_page: Page 2 was asked for, of 1 in the document"):
        inspect_file(path, LIMITS, PageRanges.parse("1-2"))
