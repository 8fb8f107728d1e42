"""Files as they come: whole, damaged, too large, or in disguise."""

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pillow_heif
import pypdfium2
import pytest
from PIL import Image

from pecia_schemas.failures import FailureCode
from pecia_schemas.media import MAX_SIDE, PILE_MARK, PageRanges
from pecia_workers.media.decoding import inspect_file, load_page, probe_video
from pecia_workers.media.pages import Limits, MediaError, PageInfo
from pecia_workers.media.pdf import PdfPages
from tests.shared.fixture_types import MakeFile
from tests.shared.hand_made_pdfs import box, document, locked_pdf, stream
from tests.shared.pictures import encoded, marked
from tests.shared.videos import video

LOCKED = locked_pdf(user="user", owner="owner")
pillow_heif.register_heif_opener()


def pdf(*sizes: tuple[float, float], rotate: int = 0) -> bytes:
    document = pypdfium2.PdfDocument.new()
    for width, height in sizes:
        document.new_page(width, height).set_rotation(rotate)
    buffer = io.BytesIO()
    document.save(buffer)
    document.close()
    return buffer.getvalue()


def sizes(pages: tuple[PageInfo, ...]) -> list[tuple[int, int]]:
    return [(page.width, page.height) for page in pages]


def code_of(call: Callable[[], object]) -> FailureCode:
    with pytest.raises(MediaError) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize(("orientation", "corner"), [(1, (5, 5)), (3, (95, 55)), (6, (5, 95)), (8, (55, 5))])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_exif_orientation_is_applied(
    kind: str, orientation: int, corner: tuple[int, int], file: MakeFile, limits: Limits
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = file(encoded(marked(), kind, exif=exif.tobytes()))

    page = load_page(path, 0, limits)

    assert page.pixels.shape[1::-1] == sizes(inspect_file(path, limits))[0]
    red, green, _ = page.pixels[corner].tolist()
    assert red > 200
    assert green < 90
    assert page.rotation == 0


def test_pdf_pages_have_the_fleets_resolution_and_their_rotation(file: MakeFile, limits: Limits) -> None:
    path = file(pdf((72, 144), (720, 360)))
    assert sizes(inspect_file(path, limits)) == [(150, 300), (1500, 750)]
    assert load_page(path, 1, limits).pixels.shape == (750, 1500, 3)
    rotated = file(pdf((72, 144), rotate=90))
    assert sizes(inspect_file(rotated, limits)) == [(300, 150)]
    assert load_page(rotated, 0, limits).pixels.shape == (150, 300, 3)


@pytest.mark.parametrize("size", [(14_400.0, 14_400.0), (1e7, 1e7), (1e7, 1.0), (0.01, 0.01)])
def test_an_absurd_size_is_kept_in_limits(size: tuple[float, float], file: MakeFile, limits: Limits) -> None:
    tight = replace(limits, file_bytes=10**6, page_pixels=10**6, total_pixels=10**7, pages=10, render_dpi=150)
    path = file(pdf(size))
    [(width, height)] = sizes(inspect_file(path, tight))
    assert 0 < width * height <= 10**6
    assert load_page(path, 0, tight).pixels.size <= 3 * 10**6


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (Image.fromarray(np.full((50, 50), 0x8000, dtype=np.uint16)), (128, 128, 128)),
        (Image.new("CMYK", (50, 50), (0, 255, 255, 0)), (255, 0, 0)),
        (Image.new("RGB", (50, 50), (0, 0, 255)).quantize(), (0, 0, 255)),
        (Image.new("RGBA", (50, 50), (0, 0, 0, 0)), (255, 255, 255)),
        (Image.new("LA", (50, 50), (0, 0)), (255, 255, 255)),
        (Image.new("1", (50, 50), 1), (255, 255, 255)),
        (Image.new("F", (50, 50), 200.0), (200, 200, 200)),
    ],
    ids=["16-bit", "cmyk", "palette", "rgba", "grey with alpha", "bilevel", "float"],
)
def test_every_colour_model_becomes_true_rgb(
    image: Image.Image, colour: tuple[int, int, int], file: MakeFile, limits: Limits
) -> None:
    path = file(encoded(image, "TIFF"))
    assert np.abs(load_page(path, 0, limits).pixels[25, 25].astype(int) - colour).max() <= 1


@pytest.mark.parametrize(
    ("white", "kind"),
    [(0x3FF, "uint16"), (0xFFF, "uint16"), (0x3FFF, "uint16"), (0xFFFF, "uint16"), (1.02, "float32")],
    ids=["10 bits", "12 bits", "14 bits", "16 bits", "resampled floats"],
)
def test_white_is_white_whatever_its_number(white: float, kind: str, file: MakeFile, limits: Limits) -> None:
    image = Image.fromarray(np.tile(np.array([0, white], dtype=kind), (100, 50)))
    assert {*load_page(file(encoded(image, "TIFF")), 0, limits).pixels.flat} == {0, 255}


@pytest.mark.parametrize("ink", [0, 255], ids=["black", "white"])
def test_print_on_nothing_is_seen_whatever_its_colour(ink: int, file: MakeFile, limits: Limits) -> None:
    image = Image.new("LA", (100, 100), (ink, 0))
    image.paste((ink, 255), (40, 40, 60, 60))
    pixels = load_page(file(encoded(image, "PNG")), 0, limits).pixels
    assert (pixels[50, 50] == ink).all()
    assert (pixels[0, 0] == 255 - ink).all()


def test_white_print_beside_black_print_on_nothing_is_seen(file: MakeFile, limits: Limits) -> None:
    image = Image.new("LA", (100, 100), (0, 0))
    image.paste((0, 255), (10, 10, 30, 30))
    image.paste((255, 255), (60, 60, 80, 80))
    pixels = load_page(file(encoded(image, "PNG")), 0, limits).pixels.astype(int)
    ground = pixels[0, 0, 0]
    assert ground - pixels[20, 20, 0] > 64
    assert pixels[70, 70, 0] - ground > 64


def test_print_that_is_transparent_like_its_paper_is_seen(file: MakeFile, limits: Limits) -> None:
    image = Image.new("LA", (100, 100), (255, 0))
    image.paste((0, 0), (40, 40, 60, 60))
    pixels = load_page(file(encoded(image, "PNG")), 0, limits).pixels
    assert (pixels[50, 50] == 0).all()
    assert (pixels[0, 0] == 255).all()


def test_a_16_bit_png_keeps_its_greys(file: MakeFile, limits: Limits) -> None:
    ramp = np.linspace(0, 0xFFFF, 256).astype(np.uint16)[np.newaxis, :].repeat(100, axis=0)
    path = file(encoded(Image.fromarray(ramp), "PNG"))
    assert load_page(path, 0, limits).pixels[0, :, 0].tolist() == list(range(256))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", FailureCode.EMPTY),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), FailureCode.DAMAGED),
        (b"\xff\xd8\xff\xe0", FailureCode.DAMAGED),
        (b"II*\x00\xff\xff\xff\x7f", FailureCode.DAMAGED),
        (b"II*\x00" + bytes(40), FailureCode.EMPTY),  # a TIFF without frames
        (b"%PDF-1.7\nnothing more", FailureCode.DAMAGED),
    ],
)
def test_a_file_that_is_no_document_gets_a_precise_code(
    content: bytes, code: FailureCode, file: MakeFile, limits: Limits
) -> None:
    assert code_of(lambda: inspect_file(file(content), limits)) is code


@pytest.mark.parametrize(
    "kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "HEIF", "JPEG2000", "PPM", "PCX"]
)
def test_a_picture_cut_in_half_is_damaged(kind: str, file: MakeFile, limits: Limits) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise), kind)
    path = file(whole[: len(whole) // 2])
    assert code_of(lambda: load_page(path, 0, limits)) is FailureCode.DAMAGED


def test_a_pdf_with_a_password_is_encrypted_and_one_without_pages_that_is_opened_next_is_empty(
    file: MakeFile, limits: Limits
) -> None:
    assert code_of(lambda: inspect_file(file(LOCKED), limits)) is FailureCode.ENCRYPTED
    assert code_of(lambda: inspect_file(file(pdf()), limits)) is FailureCode.EMPTY


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_form_that_no_page_shows_says_what_to_do(dynamic: bool, file: MakeFile, limits: Limits) -> None:
    catalogue = b"/AcroForm << /Fields [] /XFA 3 0 R >>" + b" /NeedsRendering true" * dynamic
    path = file(document([box()], [stream(b"<xdp/>")], catalogue=catalogue))
    if dynamic:
        with pytest.raises(MediaError, match=r"unsupported_type: The PDF is a dynamic XFA form.*: print it"):
            inspect_file(path, limits)
    else:
        assert len(inspect_file(path, limits)) == 1


def test_no_file_stays_open_that_cannot_be_read(file: MakeFile, limits: Limits) -> None:
    bad = [file(content) for content in (pdf(), LOCKED, b"%PDF-1.7", b"II*\x00", b"\xff\xd8\xff\xe0")]
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for path in bad * 3:
        code_of(lambda path=path: load_page(path, 0, limits))  # type: ignore[misc]
    assert len(list(descriptors.iterdir())) <= before


def test_a_page_that_is_not_there_is_named_so(file: MakeFile, limits: Limits) -> None:
    for content in (encoded(marked(), "PNG"), encoded(marked(), "TIFF"), pdf((72, 72))):
        path = file(content)
        assert code_of(lambda path=path: load_page(path, 1, limits)) is FailureCode.NO_SUCH_PAGE  # type: ignore[misc]


def test_limits_are_checked_before_anything_is_decoded(file: MakeFile, limits: Limits) -> None:
    sizes = {"file_bytes": 100_000, "page_pixels": 10_000, "total_pixels": 25_000}
    tight = replace(limits, **sizes, pages=3, render_dpi=72)
    frame = marked(100, 90)
    two, three = (encoded(frame, "TIFF", save_all=True, append_images=[frame] * more) for more in (1, 2))

    assert len(inspect_file(file(two), tight)) == 2
    for large in (bytes(100_001), encoded(marked(200, 100), "PNG"), three):
        assert code_of(lambda large=large: inspect_file(file(large), tight)) is FailureCode.TOO_LARGE  # type: ignore[misc]
    path = file(encoded(marked(200, 100), "PNG"))
    assert code_of(lambda: load_page(path, 0, tight)) is FailureCode.TOO_LARGE
    assert code_of(lambda: inspect_file(file(pdf(*[(20, 20)] * 4)), tight)) is FailureCode.TOO_MANY_PAGES


def test_every_limit_is_the_most_that_is_allowed(limits: Limits) -> None:
    narrow = replace(limits, page_pixels=2 * MAX_SIDE)
    checks: list[tuple[Callable[[int], object], float]] = [
        (lambda width: narrow.check_page(width, 1), MAX_SIDE),
        (lambda height: narrow.check_page(1, height), MAX_SIDE),
        (lambda height: narrow.check_page(200, height), 300),
        (limits.check_total, limits.total_pixels),
        (limits.check_bytes, limits.file_bytes),
        (limits.check_video, limits.video_s),
        (limits.check_segments, limits.segments),
        (lambda pages: limits.choose(pages, None), limits.pages),
    ]
    for check, most in checks:
        check(int(most))
        with pytest.raises(MediaError):
            check(int(most) + 1)


WHOLE = encoded(marked(), "PNG")


@pytest.mark.parametrize(
    ("content", "small", "says"),
    [
        (WHOLE, {"file_bytes": 9}, "bytes: 9 are allowed (PECIA_MAX_PAYLOAD_BYTES)."),
        (WHOLE, {"page_pixels": 99}, "99 in all (PECIA_MAX_PAGE_PIXELS) and 30000 a side are allowed."),
        (WHOLE[:-40], {}, "The picture cannot be decoded: it ends early."),
        (b"\x89PNG\r\n\x1a\n" + b"\xff" * 40, {}, "The picture cannot be decoded: its header is broken."),
        (b"BM" + bytes(12) + b"\x28" + bytes(60), {}, "The picture cannot be decoded: its data is broken."),
    ],
    ids=["bytes", "pixels", "cut", "header", "data"],
)
def test_what_is_too_large_is_told_the_limit_and_its_setting_and_what_is_damaged_how(
    content: bytes, small: dict[str, int], says: str, file: MakeFile, limits: Limits
) -> None:
    with pytest.raises(MediaError) as caught:
        load_page(file(content), 0, replace(limits, **small))
    assert caught.value.found.endswith(says)


def test_pages_and_videos_are_told_the_verb_that_is_theirs(file: MakeFile, limits: Limits) -> None:
    with pytest.raises(MediaError, match=r"have it captioned \(`caption`"):
        inspect_file(file(video(1)), limits)
    with pytest.raises(MediaError, match=r"have it read \(`read`"):
        probe_video(file(pdf((100, 100))), limits)


def test_a_replaced_file_is_opened_again(file: MakeFile, limits: Limits) -> None:
    path = file(pdf((72, 72)))
    inspect_file(path, limits)
    file(pdf((144, 144), (72, 72))).replace(path)
    assert sizes(inspect_file(path, limits)) == [(300, 300), (150, 150)]


def test_an_error_holds_neither_the_files_name_nor_its_text(tmp_path: Path, limits: Limits) -> None:
    path = tmp_path / "Alma-Sampleton-scan.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\nAlma Sampleton, positive")
    with pytest.raises(MediaError) as caught:
        load_page(path, 0, limits)
    assert "Sampleton" not in str(caught.value)
    assert caught.value.__cause__ is None


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            # without the time, which ids of tests hold
            archive.writestr(zipfile.ZipInfo(name), "Alma Sampleton")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (zipped("[Content_Types].xml", "word/document.xml"), "an Office document: export it as PDF"),
        (zipped("mimetypeapplication/vnd.oasis.opendocument.text"), "an Office document: export it as PDF"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "an Office document: export it as PDF"),
        (b"{\\rtf1\\ansi Alma}", "an Office document: export it as PDF"),
        (zipped("scan.png"), "an archive: unpack it"),
        (b"\x1f\x8b\x08\0" + bytes(20), "an archive: unpack it"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "PostScript: convert it to PDF"),
        (b"\xc5\xd0\xd3\xc6" + bytes(40), "PostScript: convert it to PDF"),
        (b'<?xml version="1.0"?>\n<svg width="1"/>', "an SVG drawing: export it as PDF"),
        (b"<svg width='1'/>", "an SVG drawing: export it as PDF"),
        (b"\xef\xbb\xbf\n <!DOCTYPE HTML>\n<p>Not found</p>", "a web page, perhaps a server's error message"),
        ("<html>안녕</html>".encode("utf-16"), "a web page, perhaps a server's error message"),
        (b'<?xml version="1.0"?><ClinicalDocument/>', "XML: it is text already"),
        (b"From: a@example.org\r\nMIME-Version: 1.0\r\n\r\n", "an e-mail: send its attachments"),
        ("처방전: Alma Sampleton".encode(), "plain text, which needs no recognition"),
        (b"BMI of 25", "plain text, which needs no recognition"),
        (b"8BPS\0\1", "a picture of a kind that is not read: save it as PNG or JPEG"),
        (b"P5 is the fifth of the group\n", "plain text, which needs no recognition"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "a sound recording"),
        (b"MZ\x90\0\3\0", "a program"),
        (b"\x7fELF\2\1\1" + bytes(200), "a program"),
        (bytes(5_000), "of an unknown kind"),
        (b"%", "plain text, which needs no recognition"),
        (bytes(range(200)), "of an unknown kind"),
    ],
)
def test_a_file_in_disguise_is_told_apart(content: bytes, says: str, file: MakeFile, limits: Limits) -> None:
    with pytest.raises(MediaError) as caught:
        inspect_file(file(content), limits)
    assert str(caught.value).startswith(f"unsupported_type: The file is {says}")
    assert "Sampleton" not in str(caught.value)


PAGES = 100
SIDE = 1000  # pixels
SCAN_BYTES = 1_000_000


def long_scan(path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    scan = encoded(Image.fromarray(noise), "JPEG", quality=95)
    assert len(scan) > SCAN_BYTES
    document = pypdfium2.PdfDocument.new()
    for _ in range(PAGES):
        picture = pypdfium2.PdfImage.new(document)
        picture.load_jpeg(io.BytesIO(scan), inline=True)
        picture.set_matrix(pypdfium2.PdfMatrix().scale(100, 100))
        page = document.new_page(100, 100)
        page.insert_obj(picture)
        page.gen_content()
        page.close()
    document.save(path)
    document.close()
    return path


def memory_kib() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


@pytest.mark.gate
def test_memory_does_not_grow_with_the_pages_of_a_pdf(tmp_path: Path, limits: Limits) -> None:
    with long_scan(tmp_path / "scan.pdf").open("rb") as file:
        document = PdfPages(file, limits)
        document.pixels(0)
        before = memory_kib()

        for index in range(PAGES):
            document.pixels(index)

        grown = (memory_kib() - before) * 1024
        document.close()
    assert grown < PAGES * SCAN_BYTES / 2


def pile(*files: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr(zipfile.ZipInfo(PILE_MARK), b"")
        for number, content in enumerate(files):
            archive.writestr(str(number), content)
    return buffer.getvalue()


def test_files_in_one_are_one_document_and_each_fails_alone(file: MakeFile, limits: Limits) -> None:
    grey, broken = encoded(Image.new("L", (40, 30), 99), "PNG"), b"\x89PNG\r\n\x1a\nbroken"
    nested = pile(grey)
    path = file(pile(grey, pdf((72, 36), (36, 72)), broken, b"", nested, grey))
    assert sizes(inspect_file(path, limits))[:3] == [(40, 30), (150, 75), (75, 150)]
    assert [info.index for info in inspect_file(path, limits, PageRanges.parse("3,7"))] == [2, 6]
    assert load_page(path, 2, limits).pixels.shape == (150, 75, 3)
    failed = [code_of(partial(load_page, path, index, limits)) for index in (3, 4, 5, 7)]
    assert failed == [
        *(FailureCode.DAMAGED, FailureCode.EMPTY, FailureCode.UNSUPPORTED_TYPE, FailureCode.NO_SUCH_PAGE)
    ]
    assert load_page(path, 6, limits).pixels.shape == (30, 40, 3)


def test_an_archive_that_is_no_pile_of_files_as_they_are_is_refused(file: MakeFile, limits: Limits) -> None:
    whole = pile(b"a" * 100)
    for number, content in enumerate(
        (pile(b"a" * 100, compression=zipfile.ZIP_DEFLATED), whole[:-30], pile())
    ):
        path = file(content)
        expected = FailureCode.EMPTY if number == 2 else FailureCode.DAMAGED
        assert code_of(partial(inspect_file, path, limits)) is expected
