"""Glyphs that are not what a text layer says they are: any font, any two of them, one among thousands."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pecia_schemas.blocks import text_of
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media import recognition
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits
from pecia_workers.media.text_layer import Distrust, TextLayer, text_layer
from tests.shared import hand_made_pdfs as pdfs

SCALE: Any = 150 / 72  # typed as int there
LINES = (
    "Metformin 850 mg was continued, ramipril 2.5 mg begun, 25 \u00b5g of levothyroxine.",
    "Follow-up in 6 weeks, creatinine 137, potassium 4.2, glucose 96 and pulse 104.",
    "Quick brown foxes jump over lazy dogs; oxygen 93 %, weight 71 kg, age 68 years.",
)
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral")
DIGITS = "0123456789"


def font(name: str) -> bytes:
    return files("matplotlib").joinpath("mpl-data", "fonts", "ttf", f"{name}.ttf").read_bytes()


def pdf_in(name: str, means: Mapping[str, str], *, size: float = 10, lines: Sequence[str] = LINES) -> bytes:
    """Return a page whose font is in the file, and what the file says that its letters stand for."""
    content = pdfs.typeset([line[: int(900 / size)] for line in lines], size=size, left=30)
    return pdfs.written_pdf(content, means=means, program=font(name))


def layer_of(pdf: bytes) -> TextLayer:
    with pypdfium2.PdfDocument(pdf) as document:
        page = document[0]
        bitmap = page.render(scale=SCALE, rev_byteorder=True, fill_color=(255, 255, 255, 255))
        return text_layer(page, np.array(bitmap.to_numpy()[:, :, :3]))


def is_found(layer: TextLayer) -> bool:
    return layer.distrust is Distrust.MISNAMED or any(doubt.on_value for doubt in layer.misreadings)


@pytest.mark.parametrize("name", FONTS)
@pytest.mark.parametrize("size", [8, 11, 16])
def test_a_font_that_says_what_it_draws_is_trusted(name: str, size: float) -> None:
    layer = layer_of(pdf_in(name, {}, size=size))
    assert (layer.distrust, layer.misreadings) == (None, ())


@given(
    st.sampled_from(FONTS),
    st.sampled_from(DIGITS),
    st.sampled_from(DIGITS),
    st.booleans(),
    st.integers(8, 16),
)
def test_any_digit_that_is_misnamed_is_found(
    name: str, drawn: str, said: str, swapped: bool, size: int
) -> None:
    assume(drawn != said)
    assume(any(drawn in line[: int(900 / size)] for line in LINES))
    means = {drawn: said, said: drawn} if swapped else {drawn: said}
    assert is_found(layer_of(pdf_in(name, means, size=size)))


MISNAMED = {
    "ligature": ("\u00e6", "O", "An\u00e6mia, h\u00e6morrhage in a p\u00e6diatric patient"),
    "micro": ("\u00b5", "m", LINES[0]),
    "percent": ("%", "8", LINES[2]),
    "letter": ("k", "h", LINES[2]),
    "less than": ("<", "L", "Troponin <5 ng/l, ferritin <8, lactate <2 mmol/l"),
    "comma": (",", "7", LINES[1]),
}


@pytest.mark.parametrize(("drawn", "said", "line"), MISNAMED.values(), ids=MISNAMED)
def test_one_glyph_that_is_not_its_letter_sends_the_page_to_its_pixels(
    drawn: str, said: str, line: str, tmp_path: Path
) -> None:
    pdf = pdf_in("DejaVuSans", {drawn: said}, lines=[*LINES, line])
    assert layer_of(pdf).distrust is Distrust.MISNAMED
    (tmp_path / "page.pdf").write_bytes(pdf)
    assert not load_page(tmp_path / "page.pdf", 0, Limits.of(WorkerSettings())).blocks


def test_a_font_whose_glyphs_all_claim_one_letter_is_not_trusted() -> None:
    letters = {one: "X" for line in LINES for one in line if one.isalnum() and one.isascii()}
    assert layer_of(pdf_in("DejaVuSans", letters)).distrust is Distrust.MISNAMED


def test_a_sign_that_claims_to_be_a_letter_is_a_doubt_and_costs_no_layer(tmp_path: Path) -> None:
    lines = [*LINES, "Annual report \u00b7 2025"]
    (tmp_path / "page.pdf").write_bytes(pdf_in("DejaVuSans", {"\u00b7": "\u00ef"}, lines=lines, size=14))
    page = load_page(tmp_path / "page.pdf", 0, Limits.of(WorkerSettings()))
    assert "report \u00ef 2025" in text_of(page.blocks)
    (doubt,) = page.doubts
    assert doubt.other == doubt.text.replace("\u00ef", "\u00b7")
    assert not doubt.on_value


def test_a_digit_that_looks_like_another_and_cannot_be_read_is_a_doubt_on_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognition, "line_reader", lambda: None)  # as where pecia[cpu] is not installed
    (tmp_path / "page.pdf").write_bytes(pdf_in("DejaVuSans", {"5": "6"}))
    page = load_page(tmp_path / "page.pdf", 0, Limits.of(WorkerSettings()))
    doubts = {(doubt.text, doubt.other) for doubt in page.doubts if doubt.on_value}
    assert any("860" in text and other and "850" in other for text, other in doubts)


UNTOLD = {
    "a point that is no character": (".", "\u200b", "Digoxin 0.25 mg", "025"),
    "a point that is a space": (".", " ", "Digoxin 0.25 mg", "0 25"),
    "a digit in the private use area": ("5", "\ue005", "Ramipril 5 mg, digoxin 125 mg", "\ue005"),
    "a zero that is an O": ("0", "O", "Metformin 850 mg, ramipril 10 mg", "85O"),
    "a one that is an l": ("1", "l", "Ramipril 10 mg, digoxin 125 mg", "l25"),
    "more or less": ("\u00b1", "+", "Deviation \u00b10.4 mm", "+0.4"),
}


@pytest.mark.parametrize(("drawn", "said", "line", "wrong"), UNTOLD.values(), ids=UNTOLD)
def test_a_word_that_its_layer_does_not_tell_is_read_from_its_pixels(
    drawn: str, said: str, line: str, wrong: str
) -> None:
    layer = layer_of(pdf_in("DejaVuSans", {drawn: said}, size=12, lines=[line, *["The patient is well"] * 9]))
    text = " ".join(line.text for line in layer.lines())
    assert layer.distrust is Distrust.MISNAMED or (layer.unread and wrong not in text)


DIGOXIN = "Digoxin 850 mg daily"
OVER = {
    "another value": b"1 g 104 690 30 14 re f 0 g BT /F 12 Tf 106 693 Td (500) Tj ET",
    "dashes": b"BT /F 12 Tf 62 693 Td (------------------------) Tj ET",
    "crosses": b"BT /F 12 Tf 106 693 Td (xxx) Tj ET",
}


def overdrawn(further: bytes, line: str = DIGOXIN) -> TextLayer:
    written = [*(f"The patient has been well for {one} days" for one in range(2, 9)), "", line]
    content = pdfs.typeset(written[:7], size=12, top=640) + pdfs.typeset([line], size=12, top=711)
    return layer_of(pdfs.written_pdf(content + further))


@pytest.mark.parametrize("further", OVER.values(), ids=OVER)
def test_a_word_over_which_others_are_drawn_is_read_from_its_pixels(further: bytes) -> None:
    layer = overdrawn(further)
    assert layer.distrust or (layer.unread and "850" not in " ".join(line.text for line in layer.lines()))


TWICE = pdfs.typeset([DIGOXIN], size=12, left=60.4, top=711)
SOUND = {
    "bold print": (DIGOXIN, TWICE),
    "an underline": (DIGOXIN, b"60 691 110 1 re f"),
    "oxygen and litres": ("SpO2 97 % at 2 l O2, I10, 5l, pO2 78, O2 3", b""),
    "a line of dots": (DIGOXIN, b"[1 3] 0 d 60 691 m 180 691 l S"),
    "bars of a table": (DIGOXIN, b"58 680 1 30 re f 102 680 1 30 re f 132 680 1 30 re f"),
}


@pytest.mark.parametrize(("line", "further"), SOUND.values(), ids=SOUND)
def test_a_word_that_says_what_is_seen_is_of_its_layer(line: str, further: bytes) -> None:
    layer = overdrawn(further, line)
    assert (layer.distrust, layer.misreadings, layer.unread) == (None, (), ())
    assert line in [one.text for one in layer.lines()]


SIGNS = {
    "point": ("Digoxin 1 5 mg", b"110.8 693 1.5 1.5 re f", ".5"),
    "minus": ("Base excess   2.5 mmol/l", b"129 697 5 1 re f", "-2.5"),
}


@pytest.mark.parametrize(("line", "further", "other"), SIGNS.values(), ids=SIGNS)
def test_a_sign_that_is_a_drawn_shape_is_a_doubt_on_its_value(line: str, further: bytes, other: str) -> None:
    (misreading,) = overdrawn(further, line).misreadings
    assert (misreading.other, misreading.on_value) == (other, True)
