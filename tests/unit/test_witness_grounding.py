"""What a page's text is worth beside a witness that may be wrong itself."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.blocks import Block, BlockKind, Box, Line, Source, plain_blocks
from pecia_schemas.results import Page, Verdict
from pecia_workers.witness.grounding import WitnessText, grounded
from tests.shared.samples import page as sample_page

SURE: frozenset[str] = frozenset()
"""No word of which the model was unsure."""


def judged(written: str, seen: str, confidence: float = 0.97, unsure: frozenset[str] | None = None) -> Page:
    line = Line(text=seen, box=Box(left=0, top=0, right=10 * len(seen), bottom=20), confidence=confidence)
    block = Block(kind=BlockKind.TEXT, text=seen, lines=(line,), source=Source.OCR)
    page = sample_page(blocks=plain_blocks(written, source=Source.MODEL))
    return grounded(page, WitnessText([block], Source.OCR), unsure)


@pytest.mark.parametrize(
    ("confidence", "unsure", "verdict"),
    [
        (0.85, SURE, Verdict.OK),
        (0.95, SURE, Verdict.REVIEW),
        (0.85, frozenset({"PO4b"}), Verdict.REVIEW),
        (0.85, None, Verdict.REVIEW),
    ],
)
def test_signs_that_look_alike_are_the_models_where_it_is_sure_and_its_witness_is_not(
    confidence: float, unsure: frozenset[str] | None, verdict: Verdict
) -> None:
    page = judged("Sample PO4b of today", "Sample P04b of today", confidence, unsure)
    assert page.verdict is verdict
    assert bool(page.doubts) is (verdict is Verdict.REVIEW)


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("Sodium 146 mmol/l", "Sodium 148 mmol/l"),
        ("Ward 12 on Monday", "Ward 2 on Monday"),
        ("Seen by Dr. Brandt", "Seen by Dr. Brand"),
    ],
)
def test_however_unsure_a_witness_is_other_signs_stay_in_doubt(written: str, seen: str) -> None:
    assert judged(written, seen, 0.5, SURE).verdict is Verdict.REVIEW


@pytest.mark.parametrize(
    ("written", "seen", "verdict"),
    [
        ("SpO2 98 % at rest", "Sp02 98 % at rest", Verdict.OK),
        ("neoplasm of the tongue C02", "neoplasm of the tongue CO2", Verdict.REVIEW),
        ("Sodium 140 mmol/l", "Sodium 140 mmol/1", Verdict.OK),
        ("Take l tablet at noon", "Take 1 tablet at noon", Verdict.REVIEW),
        ("Take I tablet at noon", "Take 1 tablet at noon", Verdict.REVIEW),
    ],
)
def test_a_letter_is_no_digit_but_in_units_and_names_that_are_known(
    written: str, seen: str, verdict: Verdict
) -> None:
    assert judged(written, seen).verdict is verdict


@pytest.mark.parametrize("seen", ["84-116", "84 -116", "84 - 116"])
def test_each_number_of_a_range_stands_on_its_own_ink(seen: str) -> None:
    font = ImageFont.load_default(24)
    page = Image.new("RGB", (200, 60), "white")
    ImageDraw.Draw(page).text((20, 15), "84 - 116", "black", font)
    true = [
        ImageDraw.Draw(page).textbbox((20 + font.getlength(before), 15), text, font)
        for before, text in (("", "84"), ("84 - ", "116"))
    ]
    line = Line(text=seen, box=Box(left=18, top=14, right=round(true[1][2]) + 2, bottom=42), confidence=0.97)
    block = Block(kind=BlockKind.TEXT, text=seen, lines=(line,), source=Source.OCR)
    text = WitnessText([block], Source.OCR, pixels=np.asarray(page))

    assert [one.box.left for one in text.seen] == pytest.approx([box[0] for box in true], abs=4)
    assert [one.box.right for one in text.seen] == pytest.approx([box[2] for box in true], abs=4)
