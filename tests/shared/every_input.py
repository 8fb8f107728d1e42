"""What a mail room may send, good and bad, and what must come of each: the table of `test_every_input.py`."""

import io
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pecia import CaptionVideo, FailureCode, JobState, ReadDocument
from pecia_schemas.tasks import Task
from tests.shared import dicom_files, pictures
from tests.shared import hand_made_pdfs as pdfs
from tests.shared.videos import video

DAMAGED, TOO_LARGE, UNSUPPORTED = FailureCode.DAMAGED, FailureCode.TOO_LARGE, FailureCode.UNSUPPORTED_TYPE
TOO_MANY_PAGES = FailureCode.TOO_MANY_PAGES
TENTHS = range(1, 10)
MANY = 500
"""Frames of a long TIFF."""
POINTS = 10**7
_FLIPPED_BITS, _SIGNATURE = 40, 16


@dataclass(frozen=True)
class Outcome:
    """How a job ends: with so many pages read, with one code, or, if some pages failed, with both."""

    pages: int = 0
    code: FailureCode | None = None

    def __str__(self) -> str:
        told = [f"{self.pages} pages"] if self.pages else []
        return ", ".join([*told, *([self.code] if self.code else [])])

    @property
    def state(self) -> JobState:
        if self.code is None:
            return JobState.SUCCEEDED
        return JobState.PARTIAL if self.pages else JobState.FAILED


@dataclass(frozen=True)
class Input:
    """One row of the table."""

    name: str
    make: Callable[[], bytes | str]
    """Returns the content, or a URL."""
    expected: Outcome
    task: Callable[..., Task[Any]] = ReadDocument
    file_name: str = ""
    """What the file is called, if that is the point; else it is handed over as bytes."""
    options: dict[str, Any] = field(default_factory=dict)
    ends_process: bool = False
    """Whether the process that decodes it is ended, for what it takes or by a library that gives up."""


def good(name: str, make: Callable[[], bytes | str], pages: int = 1, **further: Any) -> Input:
    return Input(name, make, Outcome(pages), **further)


def bad(name: str, make: Callable[[], bytes | str], code: FailureCode, **further: Any) -> Input:
    return Input(name, make, Outcome(0, code), **further)


def _picture(form: str, mode: str = "RGB", **options: Any) -> Callable[[], bytes]:
    return lambda: pictures.encoded(pictures.line(mode), form, **options)


def _noisy(form: str) -> bytes:
    return pictures.encoded(pictures.noise(), form)


WHOLE: dict[str, Callable[[], bytes]] = {
    "PNG": partial(_noisy, "PNG"),
    "JPEG": partial(_noisy, "JPEG"),
    "WebP": partial(_noisy, "WEBP"),
    "TIFF": partial(_noisy, "TIFF"),
    "PDF": lambda: pdfs.scanned_pdf(pictures.noise()),
}
"""Files that are cut and garbled: noise, so that every byte of theirs counts."""


def _cut(whole: Callable[[], bytes], tenths: int) -> bytes:
    content = whole()
    return content[: len(content) * tenths // 10]


def _last_frame_cut() -> bytes:
    return pictures.fax(3, "raw", "L")[:-40]


def _flipped(whole: Callable[[], bytes]) -> bytes:
    """Flip bits all over the file but in its signature, always the same ones."""
    content, dice = bytearray(whole()), random.Random(0)  # noqa: S311
    for _ in range(_FLIPPED_BITS):
        content[dice.randrange(_SIGNATURE, len(content))] ^= 1 << dice.randrange(8)
    return bytes(content)


def _archive(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "<document/>")
    return file.getvalue()


def pictures_that_are_read() -> Iterator[Input]:
    """Every form of picture; what becomes of their pixels is in tests/unit/test_media_kinds.py."""
    for mode in ("RGB", "L", "P", "1", "LA"):
        yield good(f"PNG, {mode}", _picture("PNG", mode))
    for mode in ("RGB", "L", "CMYK"):
        yield good(f"JPEG, {mode}", _picture("JPEG", mode))
    yield good("JPEG, progressive", _picture("JPEG", progressive=True))
    yield good("WebP", _picture("WEBP"))
    yield good("WebP, lossless", _picture("WEBP", lossless=True))
    yield good("BMP", _picture("BMP"))
    yield good("BMP, 1 bit", _picture("BMP", "1"))
    yield good("GIF", _picture("GIF", "P"))
    yield good("JPEG 2000", _picture("JPEG2000"))
    yield good("JPEG 2000, a bare codestream", _picture("JPEG2000", "L", no_jp2=True))
    for form, mode in {"PBM": "1", "PGM": "L", "PPM": "RGB"}.items():
        yield good(form, _picture("PPM", mode))
    yield good("PCX", _picture("PCX"))
    yield good("PCX, 1 bit", _picture("PCX", "1"))
    yield good("HEIC", _picture("HEIF"))
    yield good("AVIF", _picture("AVIF"))
    for form in ("group3", "group4", "tiff_lzw", "tiff_adobe_deflate", "packbits", "raw"):
        yield good(f"TIFF of 3 frames, {form}", partial(pictures.fax, 3, form), 3)
    yield good("TIFF of 3 frames, JPEG", partial(pictures.fax, 3, "jpeg", "RGB"), 3)
    yield good("TIFF, CMYK", _picture("TIFF", "CMYK"))
    yield good(f"TIFF of {MANY} frames", partial(pictures.tiff_of, MANY, form="group4"), MANY)


def pdfs_that_are_read() -> Iterator[Input]:
    """PDFs as programs, scanners and mail systems make them."""
    yield good("PDF of words", partial(pdfs.text_pdf, ["Written by a program"]))
    yield good("scanned PDF", lambda: pdfs.scanned_pdf(pictures.line()))
    for degrees in (90, 180, 270):
        yield good(f"PDF, /Rotate {degrees}", pdfs.rotated(degrees))
    yield good("PDF of 30 pages", partial(pdfs.blank_pdf, 30), 30)
    yield good("PDF behind a line of the mail system's", lambda: b"X-Fax: 1\r\n" + pdfs.blank_pdf())
    yield good("PDF without a cross-reference table", pdfs.without_crossings)
    yield good("PDF with an owner's password", partial(pdfs.locked_pdf, user="", owner="secret"))
    yield good("PDF with a script and a file in it, which do not matter", pdfs.with_action)
    yield good("PDF with a page of no content", pdfs.blank_pdf)
    yield Input("PDF, one page of three lost", pdfs.with_lost_page, Outcome(2, DAMAGED))
    yield Input("PDF, one picture of two damaged", pdfs.with_damaged_picture, Outcome(1, DAMAGED))


def of_radiology() -> Iterator[Input]:
    """What the archive of a radiology department sends."""

    def capture() -> bytes:
        return dicom_files.secondary_capture(np.asarray(pictures.line("L")))

    def with_pdf() -> bytes:
        return dicom_files.encapsulated_pdf(pdfs.blank_pdf(2))

    yield good("DICOM, secondary capture", capture)
    yield good("DICOM without a preamble", lambda: capture()[132:])
    yield good("DICOM with a PDF in it", with_pdf, 2)
    yield bad("DICOM without a picture", dicom_files.report_without_pixels, UNSUPPORTED)
    yield bad("DICOM cut in half", partial(_cut, capture, 5), DAMAGED)


def with_options() -> Iterator[Input]:
    """Pages that are asked for, passwords that are given."""
    locked = partial(pdfs.locked_pdf, user="user", owner="owner")
    yield bad("PDF with a user's password", locked, FailureCode.ENCRYPTED)
    other = {"password": "other"}
    yield bad("PDF with a user's password, and another one", locked, FailureCode.ENCRYPTED, options=other)
    yield good("PDF with a user's password, given", locked, options={"password": "user"})
    yield good("PDF with an owner's password, given", locked, options={"password": "owner"})
    yield good("pages 2 to 4 and 9 of a PDF", partial(pdfs.blank_pdf, 9), 4, options={"pages": "2-4,9"})
    yield good("the last frame of a TIFF", partial(pictures.tiff_of, 9), options={"pages": "9"})
    beyond = {"pages": "3,10"}
    yield bad("page 10 of 9", partial(pdfs.blank_pdf, 9), FailureCode.NO_SUCH_PAGE, options=beyond)


def under_other_names() -> Iterator[Input]:
    """The content decides, not the name."""
    yield good("PNG called .pdf", _picture("PNG"), file_name="scan.pdf")
    yield good("PDF called .jpg", pdfs.blank_pdf, file_name="photo.jpg")
    yield good("JPEG without a name's end", _picture("JPEG"), file_name="0001")
    yield bad("text called .png", lambda: b"Dear colleague", UNSUPPORTED, file_name="letter.png")


def in_disguise() -> Iterator[Input]:
    """What is none of what Pecia reads; all that is told apart is in tests/unit/test_media_files.py."""
    contents: dict[str, Callable[[], bytes]] = {
        "XML": lambda: b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'b'>]><a>&b;</a>",
        "docx": partial(_archive, "word/document.xml"),
        "random bytes": lambda: random.Random(1).randbytes(5_000),  # noqa: S311
        "an MP4 to be read": partial(video, 1),
    }
    for name, make in contents.items():
        yield bad(name, make, UNSUPPORTED)
    yield bad("nothing", lambda: b"", FailureCode.EMPTY)
    yield bad("a TIFF without frames", lambda: b"II*\0" + bytes(40), FailureCode.EMPTY)
    yield bad("a PDF to be captioned", pdfs.blank_pdf, FailureCode.NO_ENGINE, task=CaptionVideo)


def by_url() -> Iterator[Input]:
    """Addresses that a fleet does not fetch from."""
    refused = partial(str, "http://169.254.169.254/latest/meta-data")
    yield bad("an address within a cloud", refused, FailureCode.SOURCE_REFUSED)


def broken() -> Iterator[Input]:
    """Files that were whole once."""
    for form, whole in WHOLE.items():
        for tenths in TENTHS:
            yield bad(f"{form} cut at {tenths}0 %", partial(_cut, whole, tenths), DAMAGED)
    yield Input("TIFF of 3 frames, cut in the last", _last_frame_cut, Outcome(2, DAMAGED))
    yield bad("PNG with flipped bits", partial(_flipped, WHOLE["PNG"]), DAMAGED)
    yield bad("scanned PDF with flipped bits", partial(_flipped, WHOLE["PDF"]), DAMAGED)
    for form in ("JPEG", "WebP", "TIFF"):
        yield good(f"{form} with flipped bits, which are wrong pixels", partial(_flipped, WHOLE[form]))


def bombs() -> Iterator[Input]:
    """Files that promise more than they hold, or hold more than they seem to."""
    yield bad("PNG that promises 2.5 gigapixels", partial(pictures.png_promising, 50_000, 50_000), TOO_LARGE)
    yield bad("PNG of no width", partial(pictures.png_promising, 0, 9), DAMAGED)
    yield bad("PNG of 100 megapixels in 12 kB", partial(pictures.png_bomb, 10_000), TOO_LARGE)
    yield bad("PNG with a note of 10 MB", partial(pictures.png_note_bomb, 10**7), DAMAGED)
    promising = pictures.tiff_promising
    yield bad(
        "TIFF of 1,000 frames of 36 megapixels", partial(promising, 6_000, 6_000, frames=1_000), TOO_LARGE
    )
    yield bad("TIFF of 6,000 frames", partial(promising, 40, 40, frames=6_000), TOO_MANY_PAGES)
    yield bad("TIFF whose frames go in a circle", partial(promising, 40, 40, frames=2, loops=True), DAMAGED)
    yield bad("PDF of 6,000 pages", partial(pdfs.blank_pdf, 6_000), TOO_MANY_PAGES)
    yield good("PDF that promises a billion pages and has one", partial(pdfs.false_count, 10**9))
    yield good(f"PDF page of {POINTS} x {POINTS} points", lambda: pdfs.document([pdfs.box(POINTS, POINTS)]))
    endless = {
        f"PDF page with a line of {POINTS} points": partial(pdfs.path_of, POINTS),
        "PDF page with content of 1 GB": partial(pdfs.content_bomb, 1_000),
        "PDF with an object stream of 1 GB": partial(pdfs.object_stream_bomb, 1_000),
        "PDF page of forms of forms, ten thousand million in all": partial(pdfs.forms_of_forms, 9),
    }
    for name, make in endless.items():
        yield bad(name, make, DAMAGED, ends_process=True)
    yield bad("PDF page with a picture of 2.5 gigapixels", partial(pdfs.picture_bomb, 50_000), DAMAGED)
    yield bad("PDF whose page tree holds itself", pdfs.tree_loop, DAMAGED)
    yield bad("PDF whose page tree has 5,000 levels", partial(pdfs.deep_tree, 5_000), DAMAGED)
    yield good("PDF with 100,000 arrays in each other", partial(pdfs.deep_nesting, 100_000))
    yield good("PDF whose cross-reference table leads to itself", pdfs.crossing_loop)
    yield good("PDF whose form shows itself", pdfs.form_loop)
    yield bad("PDF without pages", pdfs.without_pages, FailureCode.EMPTY)


def fonts() -> Iterator[Input]:
    """Fonts that mean no good."""
    yield good("PDF in a font whose letter shows itself", pdfs.letters_of_letters)
    yield good("PDF whose font says 1,000 times what all codes mean", partial(pdfs.unicode_map, 1_000))
    yield good("PDF whose codes are mapped 10,000 times", partial(pdfs.code_map, 10_000))
    for kind in (b"FontFile", b"FontFile2", b"FontFile3"):
        program = random.Random(0).randbytes(100_000)  # noqa: S311
        yield good(f"PDF whose {kind.decode()} is noise", partial(pdfs.font_program, program, kind))
    yield good("PDF with a font of 100 MB", lambda: pdfs.font_program(bytes(100 * 10**6)))


EVERY_INPUT = (
    *pictures_that_are_read(),
    *pdfs_that_are_read(),
    *of_radiology(),
    *with_options(),
    *under_other_names(),
    *in_disguise(),
    *by_url(),
    *broken(),
    *bombs(),
    *fonts(),
)
