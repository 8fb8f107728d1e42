"""Hebrew and Arabic lines of a text layer: read as they were written, in whatever order they were drawn."""

import ctypes
import io
from collections.abc import Iterator, Sequence
from importlib.resources import files

import numpy as np
import pypdfium2
import pytest
from bidi import get_display
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFont
from pypdfium2 import raw

from pecia_schemas.blocks import Source, text_of
from pecia_workers.layout.blocks import layout
from pecia_workers.layout.lines import is_mostly_backward
from pecia_workers.media.text_layer import text_layer

SIZE = 14.0
FONT = files("matplotlib").joinpath("mpl-data", "fonts", "ttf", "DejaVuSans.ttf").read_bytes()
HEBREW = ("מטפורמין", "מג", "בערב", "אלרגיה", "לפניצילין", "סוכר", "ליד", "יום", "שלום")
ARABIC = ("ميتفورمين", "ملغ", "مرتين", "يوميا", "حساسية", "الضغط", "سكر")
NUMBERS = ("850", "5", "2.5", "132/84", "37,5", "15%", "12.05.2024", "10:30")
LATIN = ("Amoxicillin 500 mg", "HbA1c", "Metformin")
ORDERS = ("line", "words", "words from the right", "letters", "letters from the right")


def measured(text: str) -> float:
    font = ImageFont.truetype(io.BytesIO(FONT), 1000, layout_engine=ImageFont.Layout.BASIC)
    return font.getlength(text) * SIZE / 1000


def drawn(line: str, order: str, right: float) -> Iterator[tuple[str, float]]:
    """Yield what is shown at once, and where it begins."""
    shown = str(get_display(line, base_dir="R"))
    x = right - measured(shown)
    if order == "line":
        yield shown, x
        return
    parts = []
    for part in shown.split(" ") if "words" in order else shown:
        parts.append((part, x))
        x += measured(f"{part} " if "words" in order else part)
    yield from (part for part in (reversed(parts) if "right" in order else parts) if part[0] != " ")


def text_read(lines: Sequence[str], order: str) -> list[str]:
    """Return the lines of a page on which these were drawn."""
    with pypdfium2.PdfDocument.new() as document:
        page = document.new_page(595, 842)
        program = (ctypes.c_uint8 * len(FONT)).from_buffer_copy(FONT)
        font = raw.FPDFText_LoadFont(document, program, len(FONT), raw.FPDF_FONT_TRUETYPE, True)
        for number, line in enumerate(lines):
            for part, x in drawn(line, order, 540):
                item = raw.FPDFPageObj_CreateTextObj(document, font, SIZE)
                raw.FPDFText_SetText(item, (ctypes.c_ushort * (len(part) + 1))(*map(ord, part), 0))
                raw.FPDFPageObj_Transform(item, 1, 0, 0, 1, x, 780 - 30 * number)
                raw.FPDFPage_InsertObject(page, item)
        page.gen_content()
        pixels = np.array(page.render(scale=2, rev_byteorder=True).to_numpy()[:, :, :3])
        pieces = text_layer(page, pixels).lines()
    return text_of(layout(pieces, pixels, source=Source.LAYER).blocks).split("\n")


LINES = [
    "מטפורמין 850 מג בערב", "סודיום 141 mmol/l תקין", "Metformin 850 mg פעמיים ביום",
    "המטופל קיבל Amoxicillin 500 mg שלוש פעמים", "עלייה של 15% מ-20 ל-23", "(ראה הערה) סוף",
    "الضغط 132/84 والنبض 76", "التاريخ 2024-05-12 (مهم)", "الجرعة ٨٥٠ ملغ", "الصوديوم 141 mmol/l طبيعي",
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_numbers_units_and_latin_words_stand_where_they_were_written(order: str) -> None:
    assert [line for line in text_read(LINES, order) if line] == LINES


@given(
    st.sampled_from((HEBREW, ARABIC))
    .flatmap(
        lambda words: st.lists(
            st.tuples(st.sampled_from(words), st.sampled_from((*NUMBERS, *LATIN))), min_size=1, max_size=3
        ).map(lambda pairs: " ".join(f"{word} {other}" for word, other in pairs) + f" {words[-1]}")
    )
    .filter(is_mostly_backward),  # what else may run either way
    st.sampled_from(ORDERS),
)
def test_any_line_is_read_as_it_was_written(line: str, order: str) -> None:
    assert " ".join(filter(None, text_read([line, HEBREW[0]], order))) == f"{line} {HEBREW[0]}"
