"""Each form of a result looks as docs/results.md shows it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pecia.formats import Format, render
from pecia_schemas import (
    Box,
    Captions,
    Document,
    Failure,
    FailureCode,
    Line,
    Page,
    PageFailure,
    Segment,
    SegmentFailure,
    Summary,
    Verdict,
)
from snippets import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text()

REPORT = Document(
    pages=(
        Page(
            number=1,
            text="Dr. Weiss & Partner\n1. Ibuprofen <600 mg>",
            verdict=Verdict.OK,
            lines=(
                Line(
                    text="Dr. Weiss & Partner",
                    box=Box(left=120, top=118, right=508, bottom=152),
                    confidence=0.99,
                ),
                Line(
                    text="1. Ibuprofen <600 mg>",
                    box=Box(left=120, top=204, right=612, bottom=238),
                    confidence=0.93,
                ),
            ),
            width=1240,
            height=1754,
            engine="rapidocr",
            fields={"drug": "Ibuprofen 600 mg"},
        ),
    ),
    failed=(PageFailure(number=2, failure=Failure.of(FailureCode.DAMAGED)),),
)
WALK = Captions(
    segments=(
        Segment(
            number=1,
            start=timedelta(),
            end=timedelta(seconds=30),
            text="A man walks to the door.\nHe limps.",
            verdict=Verdict.OK,
            frames=16,
            width=640,
            height=360,
            engine="vllm",
        ),
    ),
    failed=(SegmentFailure(number=2, failure=Failure.of(FailureCode.TIMEOUT)),),
    summary=Summary(text="A man with a limp leaves.", verdict=Verdict.OK, engine="vllm"),
)


TEXT, VTT, SRT = blocks(PAGE, "text")


@pytest.mark.parametrize(
    ("shown", "form"),
    [
        (TEXT, Format.TEXT),
        (*blocks(PAGE, "markdown"), Format.MARKDOWN),
        (*blocks(PAGE, "html"), Format.HOCR),
        (*blocks(PAGE, "json"), Format.FIELDS),
    ],
    ids=["text", "markdown", "hocr", "fields"],
)
def test_a_document_in_each_form_is_as_the_page_shows_it(shown: str, form: Format) -> None:
    written = render(REPORT, form).replace("\f", "\u240c")
    assert written.endswith(shown)


@pytest.mark.parametrize(("shown", "form"), [(VTT, Format.VTT), (SRT, Format.SRT)], ids=["vtt", "srt"])
def test_captions_in_each_form_are_as_the_page_shows_them(shown: str, form: Format) -> None:
    assert render(WALK, form) == shown


def test_the_page_tells_of_every_form() -> None:
    assert all(f"| `{form}` | `{form.suffix}`" in PAGE for form in Format)
