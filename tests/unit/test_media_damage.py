"""Damage inside containers: whatever of a stream is lost, its page says so; and no whole one does."""

import io
import re
import struct
import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
import pypdfium2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from pecia_schemas.blocks import Doubt, DoubtReason
from pecia_schemas.failures import FailureCode
from pecia_schemas.tasks import Preparation
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits, MediaError, PageImage, Plan
from tests.shared.fixture_types import MakeFile
from tests.shared.hand_made_pdfs import box, deflated, document, picture_pdf, stream, typeset
from tests.shared.pictures import encoded

WIDE, HIGH = 400, 300
_GREY = b"/ColorSpace /DeviceGray "
_EXAMPLES = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def printed(mode: str = "L") -> Image.Image:
    """Return a picture with print from its first rows to its last."""
    image = Image.new("L", (WIDE, HIGH), 255)
    draw = ImageDraw.Draw(image)
    for top in range(2, HIGH - 10, 12):
        draw.text((5, top), f"{top} mg of it, twice a day, for {top * 7} days", fill=0)
    draw.rectangle((0, HIGH - 3, WIDE, HIGH), fill=0)
    return image.convert(mode)


def group4() -> bytes:
    content = encoded(printed("1"), "TIFF", compression="group4")
    with Image.open(io.BytesIO(content)) as image:
        [start], [length] = image.tag_v2[273], image.tag_v2[279]  # type: ignore[attr-defined]
    return content[start : start + length]


_PIXELS = printed().tobytes()
_HALVES = np.frombuffer(_PIXELS, np.uint8).reshape(-1, 2) >> 4
_FAX = b"/DecodeParms << /K -1 /Columns %d /Rows %d >> " % (WIDE, HIGH)
PICTURES = {
    "jpeg": (encoded(printed(), "JPEG"), _GREY + b"/Filter /DCTDecode"),
    "jpeg 2000": (encoded(printed(), "JPEG2000", no_jp2=True), _GREY + b"/Filter /JPXDecode"),
    "flate": (zlib.compress(_PIXELS), _GREY + b"/Filter /FlateDecode"),
    "flate of 4 bits": (
        zlib.compress((_HALVES[:, 0] << 4 | _HALVES[:, 1]).tobytes()),
        b"/BitsPerComponent 4 " + _GREY + b"/Filter /FlateDecode",
    ),
    "flate of 16 bits": (
        zlib.compress(np.repeat(np.frombuffer(_PIXELS, np.uint8), 2).tobytes()),
        b"/BitsPerComponent 16 " + _GREY + b"/Filter /FlateDecode",
    ),
    "flate in hexadecimals": (
        zlib.compress(_PIXELS).hex().encode() + b">",
        _GREY + b"/Filter [/ASCIIHexDecode /FlateDecode]",
    ),
    "not encoded": (_PIXELS, _GREY),
    "group 4": (group4(), b"/BitsPerComponent 1 " + _GREY + b"/Filter /CCITTFaxDecode " + _FAX),
}


def showing(name: str, content: bytes | None = None) -> bytes:
    """Return a PDF that shows a picture, of this content if it is not its own."""
    whole, about = PICTURES[name]
    file = picture_pdf(whole if content is None else content, (WIDE, HIGH), about)
    return file.replace(b"/BitsPerComponent 8", b"", 1) if b"/BitsPerComponent" in about else file


def lines(count: int = 40) -> bytes:
    return typeset([f"Line {number}: {number * 37} mg" for number in range(count)], size=9)


def written(content: bytes) -> bytes:
    """Return a PDF of a page with this content stream."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = box(595, 842) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >>"
    return document([page], [content, font])


@pytest.fixture
def load(file: MakeFile, limits: Limits) -> Callable[[bytes], PageImage | None]:
    """Return the page of a file; None if it is damaged."""

    def loaded(content: bytes) -> PageImage | None:
        try:
            return load_page(file(content), 0, limits, Plan(steps=(Preparation.BLANK,)))
        except MediaError as error:
            if error.code is not FailureCode.DAMAGED:
                raise
            return None

    return loaded


Load = Callable[[bytes], PageImage | None]


def damage(page: PageImage | None) -> list[Doubt]:
    assert page is not None
    return [doubt for doubt in page.doubts if doubt.reason is DoubtReason.UNCOVERED]


def is_marked(page: PageImage | None) -> bool:
    return page is None or bool(damage(page))


@pytest.mark.parametrize("name", PICTURES)
def test_a_whole_picture_is_not_doubted(name: str, load: Load) -> None:
    assert not damage(load(showing(name)))


@pytest.mark.parametrize("name", PICTURES)
@_EXAMPLES
@given(share=st.floats(0.05, 0.97))
def test_a_picture_that_is_cut_is_doubted_wherever_it_is_cut(name: str, share: float, load: Load) -> None:
    whole, _ = PICTURES[name]
    assert is_marked(load(showing(name, whole[: int(share * len(whole))])))


@pytest.mark.parametrize("is_scan", [True, False], ids=["picture file", "PDF"])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8])  # one place in a thousand shows nothing
def test_a_jpeg_without_some_bytes_within_is_doubted(is_scan: bool, share: float, load: Load) -> None:
    noise = np.random.default_rng(1).normal(0, 12, (HIGH, WIDE))
    scan = Image.fromarray((np.asarray(printed()) * 0.8 + 20 + noise).clip(0, 255).astype(np.uint8))
    whole = encoded(scan, "JPEG", restart_marker_rows=1)  # a restart can tell which codes are missing
    start = int(share * len(whole))
    cut = whole[:start] + whole[start + 200 :]
    shown = (whole, cut) if is_scan else (showing("jpeg", whole), showing("jpeg", cut))
    assert [is_marked(load(content)) for content in shown] == [False, True]


def test_a_jpeg_that_is_filled_up_before_its_end_is_whole(load: Load) -> None:
    whole = encoded(printed(), "JPEG")
    assert not damage(load(whole[:-2] + bytes(40) + whole[-2:]))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "HEIF", "JPEG2000", "PNG", "AVIF"])
def test_a_picture_of_which_a_part_became_zeros_is_doubted(kind: str, load: Load) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (300, 400), dtype=np.uint8)
    whole = encoded(Image.fromarray(noise).convert("RGB"), kind)
    middle, part = len(whole) // 2, len(whole) // 4
    assert not damage(load(whole))
    assert is_marked(load(whole[:middle] + bytes(part) + whole[middle + part :]))


def test_bytes_that_no_pixel_needs_may_be_missing(load: Load) -> None:
    for name, missing in (("flate", 4), ("jpeg", 2), ("group 4", 3)):
        whole, _ = PICTURES[name]
        assert not damage(load(showing(name, whole[:-missing]))), name


def test_a_complete_stream_of_too_few_pixels_is_doubted(load: Load) -> None:
    for share, is_cut in ((0.995, False), (0.6, True)):
        content = zlib.compress(_PIXELS[: int(share * len(_PIXELS))])
        assert is_marked(load(showing("flate", content))) is is_cut


@pytest.mark.parametrize("name", ["jpeg 2000", "flate", "flate in hexadecimals", "not encoded"])
def test_a_picture_that_states_fewer_rows_than_it_has_is_doubted(name: str, load: Load) -> None:
    content, about = PICTURES[name]
    assert is_marked(load(picture_pdf(content, (WIDE, 2 * HIGH // 3), about)))


@pytest.mark.parametrize("padding", [bytes(WIDE * 20), b"\xff" * WIDE * 20, b"\r\n"])
def test_padding_after_a_picture_is_no_lost_part_of_it(padding: bytes, load: Load) -> None:
    assert not damage(load(showing("flate", zlib.compress(_PIXELS + padding))))
    assert not damage(load(showing("not encoded", _PIXELS + padding)))


def test_a_stream_that_was_flushed_and_not_finished_is_whole(load: Load) -> None:
    packer = zlib.compressobj()
    content = packer.compress(lines()) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert not damage(load(written(stream(content, b"/Filter /FlateDecode"))))


@_EXAMPLES
@given(share=st.floats(0.05, 0.99))
def test_a_page_whose_content_is_cut_says_that_text_is_missing(share: float, load: Load) -> None:
    content = zlib.compress(lines())
    cut = content[: int(share * (len(content) - 5))]
    assert is_marked(load(written(stream(cut, b"/Filter /FlateDecode"))))


def test_a_page_whose_content_is_whole_is_not_doubted(load: Load) -> None:
    page = load(written(deflated(lines())))
    assert page is not None
    assert page.blocks
    assert not damage(page)


def test_a_page_says_that_what_it_names_is_not_in_the_file(load: Load) -> None:
    named = box(595, 842) + b" /Resources << /Font << /F 4 0 R >> /XObject << /X 5 0 R >> >> /Contents "
    first, second = stream(lines(3)), stream(b"q 99 0 0 99 0 0 cm /X Do Q")
    font, picture = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>", square_picture()
    files = {
        "nothing is gone": document([named + b"[3 0 R 6 0 R]"], [first, font, picture, second]),
        "a stream of two": document([named + b"[3 0 R 9 0 R]"], [first, font, picture, second]),
        "the only stream": document([named + b"9 0 R"], [first, font, picture, second]),
        "a picture": document(
            [named.replace(b"5 0", b"9 0") + b"[3 0 R 6 0 R]"], [first, font, picture, second]
        ),
    }
    assert [name for name, file in files.items() if not is_marked(load(file))] == ["nothing is gone"]


def test_a_picture_within_the_content_that_is_cut_is_doubted(load: Load) -> None:
    packed = zlib.compress(printed().tobytes())
    head = b"q 400 0 0 300 0 0 cm BI /W %d /H %d /BPC 8 /CS /G /F /Fl ID " % (WIDE, HIGH)
    for content, is_cut in ((packed, False), (packed[: len(packed) // 2], True)):
        assert is_marked(load(written(stream(head + content + b"\nEI Q")))) is is_cut


@pytest.mark.parametrize(
    "content",
    [
        b"BT /F 12 Tf 60 700 Td (Metformin 850 mg) Tj 0 -20 Td (Digoxin 0.2",
        b"BT /F 12 Tf 60 700 Td (10 mg) Tj",
    ],
    ids=["string", "text object"],
)
def test_content_that_is_not_finished_is_doubted(content: bytes, load: Load) -> None:
    finished = content + (b"5 mg) Tj ET" if content.endswith(b"2") else b" ET")
    assert not damage(load(written(deflated(finished))))
    assert is_marked(load(written(deflated(content))))


@pytest.mark.parametrize(
    "content",
    [
        b"BT /F 12 Tf 60 700 Td (a \\( b \\\\) Tj ((850) mg) Tj ET % an open bracket: (",
        b"BT /F 12 Tf 60 700 Td (BT) Tj <28> Tj (5 mg) Tj\nET",
    ],
)
def test_brackets_and_names_within_content_are_no_damage(content: bytes, load: Load) -> None:
    assert not damage(load(written(deflated(content))))


def masked(kind: str, *, cut: bool) -> bytes:
    """Return a PDF of a black picture whose print is its mask."""
    encoded_mask, about = PICTURES[kind]
    encoded_mask = encoded_mask[: len(encoded_mask) // 2] if cut else encoded_mask
    bits = b"" if b"/BitsPerComponent" in about else b"/BitsPerComponent 8 "
    form = b"/Type /XObject /Subtype /Image /Width %d /Height %d " % (WIDE, HIGH)
    is_stencil = b"CCITT" in about or b"JBIG2" in about
    mask = form + (b"/ImageMask true " + about.replace(_GREY, b"") if is_stencil else bits + about)
    picture = form + b"/BitsPerComponent 8 " + _GREY + b"/Filter /FlateDecode /%b 4 0 R"
    page = box(WIDE, HIGH) + b" /Contents 5 0 R /Resources << /XObject << /Im 3 0 R >> >>"
    shown = stream(b"q %d 0 0 %d 0 0 cm /Im Do Q" % (WIDE, HIGH))
    black = stream(zlib.compress(bytes(WIDE * HIGH)), picture % (b"Mask" if is_stencil else b"SMask"))
    return document([page], [black, stream(encoded_mask, mask), shown])


@pytest.mark.parametrize("kind", ["jpeg", "jpeg 2000", "flate", "group 4"])
def test_a_mask_that_is_cut_is_doubted(kind: str, load: Load) -> None:
    assert not damage(load(masked(kind, cut=False)))
    assert is_marked(load(masked(kind, cut=True)))


@pytest.mark.parametrize("options", [0, 1], ids=["one-dimensional", "two-dimensional"])
def test_a_group_3_picture_of_a_pdf_that_is_cut_is_doubted(options: int, load: Load) -> None:
    content = encoded(printed("1"), "TIFF", compression="group3", tiffinfo={278: HIGH, 292: options})
    with Image.open(io.BytesIO(content)) as image:
        [start], [length] = image.tag_v2[273], image.tag_v2[279]  # type: ignore[attr-defined]
    about = _FAX.replace(b"/K -1", b"/K %d /EndOfLine true" % options)
    about = b"/BitsPerComponent 1 " + _GREY + b"/Filter /CCITTFaxDecode " + about
    for share, is_whole in ((1.0, True), (0.9, False), (0.5, False)):
        fax = content[start : start + int(share * length)]
        shown = picture_pdf(fax, (WIDE, HIGH), about).replace(b"/BitsPerComponent 8", b"", 1)
        assert is_marked(load(shown)) != is_whole


def form(value: bytes, shown: bytes | None, *, about: bytes = b"") -> bytes:
    """Return a page with a text field that shows something else than it holds; None: a viewer draws it."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
    drawn = stream(
        b"BT /F 11 Tf 2 6 Td (%b) Tj ET" % (shown or b""),
        b"/Type /XObject /Subtype /Form /BBox [0 0 250 24] /Resources << /Font << /F 4 0 R >> >>",
    )
    look = b"" if shown is None else b"/AP << /N 5 0 R >>"
    field = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (dose) /V (%b) /Rect [60 400 310 424] /F 4 %b %b >>"
    page = box(595, 842) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >> /Annots [6 0 R]"
    fields = b"/AcroForm << /Fields [6 0 R] /DA (/F 11 Tf 0 g) /DR << /Font << /F 4 0 R >> >> >>"
    text = deflated(typeset([f"Line {number} of the form" for number in range(9)]))
    return document([page], [text, font, drawn, field % (value, look, about)], catalogue=fields)


_FORMAT = b"/AA << /F << /S /JavaScript /JS (AFNumber_Format\\(2, 0, 0, 0, '', true\\);) >> >>"


@pytest.mark.parametrize(
    ("content", "doubts"),
    [
        (form(b"Insulin 12 IU", b"Insulin 12 IU"), 0),
        (form(b"Insulin 12 IU", None), 0),
        (form(b"Insulin 12 IU", b"Insulin 72 IU"), 1),
        (form(b"Insulin 12 IU", b""), 1),
        (form(b"1234.5", b"1,234.50", about=_FORMAT), 0),
        (form(b"secret12", b"********", about=b"/Ff 8192"), 0),
    ],
    ids=["as it is", "without a look", "another value", "nothing", "formatted", "password"],
)
def test_a_field_that_shows_another_value_than_it_holds_is_doubted(
    content: bytes, doubts: int, file: MakeFile, limits: Limits
) -> None:
    page = load_page(file(content), 0, limits)
    found = damage(page)
    assert len(found) == doubts
    assert all(doubt.box and doubt.box.bottom - doubt.box.top < 60 for doubt in found)
    assert page.blocks


def noted(note: bytes, *objects: bytes, catalogue: bytes = b"") -> bytes:
    """Return a page with an annotation; `objects` are numbered from 5."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = box(595, 842) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R >> >> /Annots [%b]"
    about = b"<< /Type /Annot /Rect [60 100 260 124] /F 4 %b >>" % note
    return document([page % about], [deflated(lines(9)), font, *objects], catalogue=catalogue)


def look(content: bytes) -> bytes:
    about = b"/Type /XObject /Subtype /Form /BBox [0 0 200 24] /Resources << /Font << /F 4 0 R >> >>"
    return stream(content, about)


@pytest.mark.parametrize(
    ("note", "doubts"),
    [
        (b"/RC (<body><p>Stop &amp; call</p></body>)", 1),
        (b"/RC (<body><p>Stop &amp; call</p></body>) /Contents (Stop & call)", 0),
        (b"/RC (<body><p>Stop &amp; call</p></body>) /AP << /N 5 0 R >>", 0),
    ],
    ids=["alone", "with plain text", "with a look"],
)
def test_a_note_of_rich_text_that_is_not_drawn_is_doubted(note: bytes, doubts: int, load: Load) -> None:
    shown = look(b"BT /F 11 Tf 2 6 Td (Stop & call) Tj ET")
    page = load(noted(b"/Subtype /FreeText /DA (/Helv 11 Tf 0 g) " + note, shown))
    assert len(damage(page)) == doubts


@pytest.mark.parametrize(("state", "value"), [("Yes", "Yes"), ("Off", "Yes"), ("Yes", "Off"), ("Off", "Off")])
def test_a_box_that_is_not_ticked_as_its_field_says_is_doubted(state: str, value: str, load: Load) -> None:
    field = (
        f"/Subtype /Widget /FT /Btn /T (a) /AS /{state} /V /{value} /AP << /N << /Yes 5 0 R /Off 6 0 R >> >>"
    )
    boxes = look(b"0 0 20 20 re 0 0 m 20 20 l S"), look(b"0 0 20 20 re S")
    assert bool(damage(load(noted(field.encode(), *boxes)))) == (state != value)


@pytest.mark.parametrize("listed", ["OFF", "ON"])
def test_an_annotation_of_a_layer_that_is_off_is_doubted(listed: str, load: Load) -> None:
    layers = f"/OCProperties << /OCGs [6 0 R] /D << /{listed} [6 0 R] >> >>".encode()
    shown = look(b"BT /F 11 Tf 2 6 Td (Draft of a plan) Tj ET")
    stamp = b"/Subtype /Stamp /OC 6 0 R /AP << /N 5 0 R >>"
    page = load(noted(stamp, shown, b"<< /Type /OCG /Name (Draft) >>", catalogue=layers))
    assert bool(damage(page)) == (listed == "OFF")


@pytest.mark.parametrize("missing", [False, True])
def test_a_sign_without_its_glyph_in_the_file_is_doubted(missing: bool, load: Load) -> None:
    glyphs = b"/one 5 0 R" if missing else b"/one 5 0 R /five 6 0 R"
    font = b"<< /Type /Font /Subtype /Type3 /FontBBox [0 0 500 700] /FontMatrix [.001 0 0 .001 0 0]"
    font += b" /Encoding << /Differences [49 /one 53 /five] >> /FirstChar 49 /LastChar 53"
    font += b" /Widths [500 0 0 0 500] /CharProcs << %b >> >>" % glyphs
    plain = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    bar = stream(b"500 0 0 0 400 700 d1 100 0 200 700 re f")
    page = box(595, 842) + b" /Contents 3 0 R /Resources << /Font << /F 4 0 R /T 7 0 R >> >>"
    shown = deflated(lines(30) + b"BT /T 11 Tf 300 780 Td (155) Tj ET")
    assert bool(damage(load(document([page], [shown, plain, bar, bar, font])))) == missing


def test_a_form_that_is_cut_is_doubted(load: Load) -> None:
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    whole = zlib.compress(lines())
    about = b"/Type /XObject /Subtype /Form /BBox [0 0 595 842] /Filter /FlateDecode"
    about += b" /Resources << /Font << /F 4 0 R >> >>"
    for content, is_cut in ((whole, False), (whole[: len(whole) // 2], True)):
        page = box(595, 842) + b" /Contents 5 0 R /Resources << /XObject << /X 3 0 R >> >>"
        file = document([page], [stream(content, about), font, stream(b"/X Do")])
        assert is_marked(load(file)) is is_cut


def test_one_strip_of_a_scan_that_is_cut_is_the_place_to_look_at(load: Load) -> None:
    strips = 15
    image = encoded(printed(), "JPEG")
    about = b"/Type /XObject /Subtype /Image /BitsPerComponent 8 /Width %d /Height %d /Filter /DCTDecode "
    pictures = [
        stream(image if strip != 7 else image[: len(image) // 3], about % (WIDE, HIGH) + _GREY)
        for strip in range(strips)
    ]
    names = b" ".join(b"/P%d %d 0 R" % (strip, strip + 4) for strip in range(strips))
    shown = b" ".join(b"q 400 0 0 40 0 %d cm /P%d Do Q" % (40 * strip, strip) for strip in range(strips))
    page = box(400, 600) + b" /Contents 3 0 R /Resources << /XObject << %b >> >>" % names
    loaded = load(document([page], [stream(shown), *pictures]))
    [doubt] = damage(loaded)
    assert loaded is not None
    assert doubt.box is not None
    scale = loaded.pixels.shape[0] / 600
    assert abs(doubt.box.top - (600 - 8 * 40) * scale) <= 2
    assert abs(doubt.box.bottom - (600 - 7 * 40) * scale) <= 2


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_the_place_follows_the_pages_rotation(rotate: int, load: Load) -> None:
    image = encoded(printed(), "JPEG")
    cut, about = image[: len(image) // 2], PICTURES["jpeg"][1]
    described = b"/Type /XObject /Subtype /Image /BitsPerComponent 8 /Width %d /Height %d " % (WIDE, HIGH)
    page = box(400, 600) + b" /Rotate %d /Contents 3 0 R /Resources << /XObject << /P 4 0 R >> >>" % rotate
    shown = stream(b"q 200 0 0 150 0 450 cm /P Do Q 20 20 300 30 re f")  # top left
    [doubt] = damage(load(document([page], [shown, stream(cut, described + about)])))
    assert doubt.box is not None
    wide, high = (600, 400) if rotate % 180 else (400, 600)
    middle = (doubt.box.left + doubt.box.right) / 2 < wide, (doubt.box.top + doubt.box.bottom) / 2 < high
    assert middle == {0: (True, True), 90: (False, True), 180: (False, False), 270: (True, False)}[rotate]


def square_picture() -> bytes:
    return stream(
        bytes(100), b"/Type /XObject /Subtype /Image /Width 10 /Height 10 /BitsPerComponent 8 " + _GREY
    )


_ARITHMETIC: Final = b"\0" + bytes((3, 0xFF, 0xFD, 0xFF, 2, 0xFE, 0xFE, 0xFE))


def jbig2(
    content: bytes, *, coding: bytes = _ARITHMETIC, promised: int | None = None, shown: int = HIGH
) -> bytes:
    """Return a PDF that shows a JBIG2 page of one generic region by these bytes (ITU-T T.88, 7.4.6).

    `shown`: the rows that the PDF states.
    """
    size = struct.pack(">II", WIDE, HIGH)
    page = struct.pack(">IBBBI", 0, 48, 0, 1, 19) + size + bytes(8) + bytes(3)
    head = size + bytes(9) + coding
    length = len(head) + (len(content) if promised is None else promised)
    region = struct.pack(">IBBBI", 1, 38, 0, 1, length) + head + content
    file = picture_pdf(page + region, (WIDE, shown), _GREY + b"/Filter /JBIG2Decode")
    return file.replace(b"/BitsPerComponent 8", b"/BitsPerComponent 1", 1)


def test_a_jbig2_segment_that_ends_early_is_doubted(load: Load) -> None:
    assert is_marked(load(jbig2(b"\x12\x34" * 20 + b"\xff\xac", promised=400)))


def test_a_jbig2_page_of_which_the_pdf_states_fewer_rows_is_doubted(load: Load) -> None:
    assert not damage(load(jbig2(group4(), coding=b"\1")))
    assert is_marked(load(jbig2(group4(), coding=b"\1", shown=HIGH // 2)))


def test_noise_that_a_broken_jbig2_picture_decodes_to_is_doubted(load: Load) -> None:
    noise = np.random.default_rng(1).integers(0, 255, 60, dtype=np.uint8).tobytes()
    assert is_marked(load(jbig2(noise + b"\xff\xac")))


def fax_tiff(rows: int = HIGH) -> bytes:
    return encoded(printed("1"), "TIFF", compression="group4", tiffinfo={278: rows})


@pytest.mark.parametrize("rows", [HIGH, 64])
@_EXAMPLES
@given(share=st.floats(0.05, 0.9))
def test_a_group_4_tiff_whose_rows_are_lost_is_doubted(rows: int, share: float, load: Load) -> None:
    whole = fax_tiff(rows)
    assert not damage(load(whole))
    with Image.open(io.BytesIO(whole)) as image:
        starts, lengths = image.tag_v2[273], image.tag_v2[279]  # type: ignore[attr-defined]
    start = int(starts[0] + share * lengths[0])
    broken = whole[:start] + bytes(starts[0] + lengths[0] - start) + whole[starts[0] + lengths[0] :]
    assert is_marked(load(broken))


@pytest.mark.parametrize("compression", ["group3", "group4"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_whole_fax_is_not_doubted_whichever_way_it_is_turned(
    orientation: int, compression: str, load: Load
) -> None:
    turned = encoded(printed("1"), "TIFF", compression=compression, tiffinfo={274: orientation, 278: 64})
    assert not damage(load(turned))


@pytest.mark.parametrize("lost", ["a strip that is not listed", "a strip without a place", "rows"])
def test_a_tiff_that_lacks_strips_is_doubted(lost: str, load: Load) -> None:
    whole = encoded(printed(), "TIFF", tiffinfo={278: 30})
    assert not damage(load(whole))
    with Image.open(io.BytesIO(whole)) as image:
        count, first = len(image.tag_v2[273]), image.tag_v2[273][0]  # type: ignore[attr-defined]
    assert count == HIGH // 30
    entry, places = struct.pack("<HHI", 273, 4, count), struct.pack("<I", first)
    if lost == "a strip without a place":
        listed = int.from_bytes(whole[whole.index(entry) + 8 :][:4], "little")
        broken = whole[: listed + 4] + bytes(4) + whole[listed + 8 :]
        assert whole[listed:].startswith(places)
    elif lost == "rows":
        whole = encoded(printed(), "TIFF", compression="tiff_lzw", tiffinfo={278: 30})
        stated, fewer = (struct.pack("<HHIHH", 257, 3, 1, rows, 0) for rows in (HIGH, HIGH // 2))
        broken = whole.replace(stated, fewer)
        assert broken != whole
    else:
        broken = whole.replace(entry, struct.pack("<HHI", 273, 4, count - 1))
    assert is_marked(load(broken))


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_a_tiff_whose_jpeg_lost_bytes_is_doubted(share: float, load: Load) -> None:
    noise = np.random.default_rng(4).normal(0, 9, (HIGH, WIDE))
    scan = Image.fromarray(np.clip(np.asarray(printed()) * 0.9 + 12 + noise, 0, 255).astype(np.uint8))
    whole = encoded(scan, "TIFF", compression="jpeg", tiffinfo={278: HIGH})
    assert not damage(load(whole))
    with Image.open(io.BytesIO(whole)) as image:
        [start], [length] = image.tag_v2[273], image.tag_v2[279]  # type: ignore[attr-defined]
    at = start + int(share * length)
    assert is_marked(load(whole[:at] + bytes(400) + whole[at + 400 :]))


def test_a_group_3_tiff_whose_rows_are_lost_is_doubted(load: Load) -> None:
    whole = encoded(printed("1"), "TIFF", compression="group3", tiffinfo={278: HIGH})
    assert not damage(load(whole))
    with Image.open(io.BytesIO(whole)) as image:
        [start], [length] = image.tag_v2[273], image.tag_v2[279]  # type: ignore[attr-defined]
    assert is_marked(
        load(whole[: start + length // 2] + bytes(length - length // 2) + whole[start + length :])
    )


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
@_EXAMPLES
@given(share=st.floats(0.05, 0.9))
def test_a_tiff_whose_strip_is_cut_is_damaged(compression: str, share: float, load: Load) -> None:
    whole = encoded(printed(), "TIFF", compression=compression)
    with Image.open(io.BytesIO(whole)) as image:
        lengths = image.tag_v2[279]  # type: ignore[attr-defined]
    at = whole.rindex(struct.pack("<HHI", 279, 4, len(lengths))) + 8
    cut = int(share * lengths[-1])
    if len(lengths) > 1:
        at = struct.unpack_from("<I", whole, at)[0] + 4 * (len(lengths) - 1)
    broken = whole[:at] + struct.pack("<I", cut) + whole[at + 4 :]
    assert is_marked(load(broken))


def test_a_damaged_page_with_nothing_else_on_it_is_no_blank_page(load: Load) -> None:
    assert load(written(stream(zlib.compress(lines())[:8], b"/Filter /FlateDecode"))) is None


def test_saving_a_page_leaves_the_document_as_it_was(load: Load) -> None:
    file = written(deflated(lines(5)))
    first, second = load(file), load(file)
    assert first is not None
    assert second is not None
    assert (first.pixels == second.pixels).all()
    assert len(pypdfium2.PdfDocument(file)) == len(re.findall(rb"/Type /Page\b(?!s)", file))
