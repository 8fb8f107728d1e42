"""Words of a text layer that lines of the file, or its annotations, strike out."""

from pathlib import Path

import pytest

from pecia_schemas.blocks import DoubtReason
from pecia_schemas.settings import WorkerSettings
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits
from tests.shared import hand_made_pdfs as pdfs

LIMITS = Limits.of(WorkerSettings())
LINE = "Warfarin 5 mg daily, metformin 850 mg twice"
NOTE = b" /Annots [<< /Type /Annot /Subtype /%b /Rect [58 596 110 612] /F 4 /C [1 1 0] /QuadPoints [%b] >>]"
AROUND_THE_FIRST = b"58 610 110 610 58 597 110 597"


def struck_in(tmp_path: Path, content: bytes, about: bytes = b"") -> list[str]:
    """Return the struck words of a page whose line of 12 points has its baseline at 600."""
    lines = pdfs.typeset([LINE, *("A further line of the note",) * 5], size=12, top=618)
    (tmp_path / "page.pdf").write_bytes(pdfs.written_pdf(lines + content, about=about))
    page = load_page(tmp_path / "page.pdf", 0, LIMITS)
    struck = [
        word.text for block in page.blocks for line in block.lines for word in line.words if word.struck
    ]
    assert any(doubt.reason is DoubtReason.STRUCK_OUT for doubt in page.doubts) is bool(struck)
    return struck


STRIKES = {
    "one digit": (b"0.8 w 107 604 m 117 604 l S", ["5"]),
    "dashes": (b"[3 2] 0 d 0.8 w 60 604 m 140 604 l S", ["Warfarin", "5", "mg"]),
    "a thick line": (b"4 w 60 604 m 104 604 l S", ["Warfarin"]),
    "a bar": (b"60 603 44 1.2 re f", ["Warfarin"]),
    "a pale line": (b"0.9 G 1 w 60 604 m 104 604 l S", ["Warfarin"]),
    "several lines of one path": (b"0.8 w 60 604 m 104 604 l 107 604 m 117 604 l S", ["Warfarin", "5"]),
    "lines that are moved": (b"q 1 0 0 1 0 500 cm 2 0 0 1 0 0 cm 0.8 w 30 104 m 52 104 l S Q", ["Warfarin"]),
}


@pytest.mark.parametrize(("content", "words"), STRIKES.values(), ids=STRIKES)
def test_a_line_of_the_file_strikes_the_words_that_it_runs_through(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    assert struck_in(tmp_path, content) == words


OTHERS = {
    "an underline": b"0.8 w 60 598 m 104 598 l S",
    "a line above": b"0.8 w 60 611 m 104 611 l S",
    "a rule across the page": b"0.5 w 20 604 m 575 604 l S",
    "a marker": b"q 1 1 0.6 rg 58 597 48 14 re f Q",
    "a frame": b"0.5 w 57 595 300 17 re S",
    "a dash beside the words": b"0.8 w 320 604 m 330 604 l S",
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_other_lines_strike_nothing(tmp_path: Path, content: bytes) -> None:
    assert struck_in(tmp_path, content) == []


@pytest.mark.parametrize(
    ("kind", "words"), [(b"StrikeOut", ["Warfarin"]), (b"Underline", []), (b"Highlight", [])]
)
def test_an_annotation_strikes_the_words_below_it(tmp_path: Path, kind: bytes, words: list[str]) -> None:
    assert struck_in(tmp_path, b"", NOTE % (kind, AROUND_THE_FIRST)) == words
