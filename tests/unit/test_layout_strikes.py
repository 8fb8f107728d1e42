"""Words through which a line runs are struck out; underlines, rules and strokes of letters strike nothing out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("cv2", reason="pecia[cpu] brings OpenCV")

from pecia_schemas.blocks import Block, BlockKind, Box, DoubtReason, Line, Source, Word, packed, unpacked
from pecia_schemas.rendering import html_of, markdown_of
from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.layout.blocks import Layout, layout
from pecia_workers.media.decoding import load_page
from pecia_workers.media.pages import Limits
from pecia_workers.protocol.base import Generation
from pecia_workers.reading.ladder import judged
from tests.shared import hand_made_pdfs as pdfs

LINES = ["Warfarin 5 mg once daily", "feet = left-to-right, tee-off, HEEL 8-3", "Apixaban 850 mg twice"]
INKS = [(0, 0, 0), (200, 30, 30), (30, 60, 190), (110, 110, 110)]


def drawn(size: int) -> tuple[Image.Image, list[Line]]:
    """Return a page of lines, and where their words stand."""
    image, font = Image.new("RGB", (60 * size, 12 * size), "white"), ImageFont.load_default(size)
    draw, lines = ImageDraw.Draw(image), []
    for number, text in enumerate(LINES):
        left, top, words = 2.0 * size, (1 + 3 * number) * size, []
        for word in text.split():
            draw.text((left, top), word, fill="black", font=font)
            across = font.getlength(word)
            box = Box(left=int(left), top=top, right=int(left + across) + 1, bottom=round(top + 1.2 * size))
            words.append(Word(text=word, box=box))
            left += across + font.getlength(" ")
        box = Box(left=2 * size, top=top, right=words[-1].box.right, bottom=round(top + 1.2 * size))
        lines.append(Line(text=text, box=box, words=tuple(words)))
    return image, lines


def struck(found: Layout) -> list[str]:
    return [word.text for block in found.blocks for line in block.lines for word in line.words if word.struck]


def read(image: Image.Image, lines: list[Line]) -> Layout:
    return layout(lines, np.array(image), source=Source.LAYER)


@given(
    size=st.integers(24, 48),
    words=st.tuples(st.integers(0, 2), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + 1 + pair[1])),
    ink=st.sampled_from(INKS),
    height=st.floats(0.62, 0.7),  # about the middle of small letters
    thick=st.floats(0.05, 0.1),
    slope=st.floats(-0.6, 0.6),
    over=st.floats(0.05, 0.12),  # less than a space: else it strikes out a short neighbour
)
def test_words_that_a_line_runs_through_are_struck_out(  # noqa: PLR0917  what strikes differ in
    size: int,
    words: tuple[int, int],
    ink: tuple[int, int, int],
    height: float,
    thick: float,
    slope: float,
    over: float,
) -> None:
    image, lines = drawn(size)
    some = lines[0].words[slice(*words)]
    if sum(len(word.text) for word in some) < 8:
        return  # of a short line through small letters little stands alone
    start, end = some[0].box.left - over * size, some[-1].box.right + over * size
    y, width = some[0].box.top + height * size, max(1, round(thick * size))
    rise = min(0.08 * size, (end - start) * np.tan(np.radians(abs(slope)))) * np.sign(slope) / 2
    ImageDraw.Draw(image).line((start, y - rise, end, y + rise), fill=ink, width=width)

    found = read(image, lines)

    assert struck(found) == [word.text for word in some]
    [doubt] = [one for one in found.doubts if one.reason is DoubtReason.STRUCK_OUT]
    assert doubt.text == " ".join(word.text for word in some)


def waving(left: float, top: float, right: float, bottom: float) -> list[list[tuple[float, float]]]:
    middle, height = (top + bottom) / 2, bottom - top
    return [[(x, middle + 0.1 * height * np.sin(x / height)) for x in np.arange(left, right)]]


def double(left: float, top: float, right: float, bottom: float) -> list[list[tuple[float, float]]]:
    height = bottom - top
    return [[(left, y), (right, y)] for y in (top + 0.42 * height, top + 0.58 * height)]


def cross(left: float, top: float, right: float, bottom: float) -> list[list[tuple[float, float]]]:
    return [[(left, top), (right, bottom)], [(left, bottom), (right, top)]]


@pytest.mark.parametrize("stroke", [waving, double])
@pytest.mark.parametrize("size", [24, 32, 44])
@pytest.mark.parametrize("ink", INKS)
def test_a_line_is_struck_out_by_whatever_stroke(
    stroke: Callable[..., list[list[tuple[float, float]]]], size: int, ink: tuple[int, int, int]
) -> None:
    image, lines = drawn(size)
    box = lines[0].box
    for points in stroke(box.left - 6, box.top + 0.2 * size, box.right + 6, box.top + 1.1 * size):
        ImageDraw.Draw(image).line(points, fill=ink, width=size // 12)
    assert struck(read(image, lines)) == [word.text for word in lines[0].words]


@pytest.mark.parametrize("size", [24, 32, 44])
@pytest.mark.parametrize("beyond", [0.12, 0.2])
@pytest.mark.parametrize(("line", "place"), [(0, 1), (2, 1)])
def test_a_short_line_strikes_out_a_number(size: int, beyond: float, line: int, place: int) -> None:
    image, lines = drawn(size)
    word = lines[line].words[place]
    left, right, y = word.box.left - beyond * size, word.box.right + beyond * size, word.box.top + 0.7 * size
    ImageDraw.Draw(image).line((left, y + 1, right, y - 1), fill=INKS[2], width=max(2, size // 12))
    assert struck(read(image, lines)) == [word.text]


@pytest.mark.parametrize("size", [20, 26, 34, 44])
def test_no_stroke_of_a_digit_strikes_a_number_out(size: int) -> None:
    image, _ = drawn(size)
    text = "4 7 1 14 44 2.5 +4 - 3 - 132/84 8:30 0,5"
    ImageDraw.Draw(image).rectangle((0, 0, *image.size), fill="white")
    words, left = [], 2.0 * size
    for word in text.split():
        ImageDraw.Draw(image).text((left, size), word, fill="black", font=ImageFont.load_default(size))
        right = left + ImageFont.load_default(size).getlength(word)
        words.append(
            Word(text=word, box=Box(left=int(left), top=size, right=int(right) + 1, bottom=round(2.2 * size)))
        )
        left = right + 0.3 * size
    box = Box(left=2 * size, top=size, right=words[-1].box.right, bottom=round(2.2 * size))
    assert struck(read(image, [Line(text=text, box=box, words=tuple(words))])) == []


@pytest.mark.parametrize("size", [32, 44])
def test_a_cross_over_one_line_is_told(size: int) -> None:
    image, lines = drawn(size)
    box = lines[0].box
    for points in cross(box.left - 6, box.top + 0.1 * size, box.right + 6, box.top + 1.2 * size):
        ImageDraw.Draw(image).line(points, fill=INKS[0], width=size // 10)
    assert any(word.text in struck(read(image, lines)) for word in lines[0].words)


@pytest.mark.parametrize("size", [32, 44])
def test_a_cross_over_lines_strikes_out_what_lies_between_its_arms(size: int) -> None:
    image, lines = drawn(size)
    top, bottom = lines[0].box.top, lines[1].box.bottom
    right = lines[0].box.right
    for points in cross(lines[0].box.left, top - 3, right, bottom + 3):
        ImageDraw.Draw(image).line(points, fill=INKS[2], width=size // 10)
    found = struck(read(image, lines))
    assert {"Warfarin", "daily", "feet", "left-to-right,"} <= set(found)
    assert not {"Apixaban", "850"} & set(found)


@given(
    size=st.integers(10, 48),
    heights=st.lists(st.sampled_from([-0.3, 0.02, 1.12, 1.2, 1.5]), max_size=3),
    thick=st.floats(0.04, 0.1),
    noise=st.sampled_from([0, 6, 12]),
)
def test_underlines_rules_and_strokes_of_letters_strike_nothing_out(
    size: int, heights: list[float], thick: float, noise: int
) -> None:
    image, lines = drawn(size)
    draw = ImageDraw.Draw(image)
    for line in lines:
        for height in heights:
            y = line.box.top + height * size
            draw.line(
                (line.box.left, y, line.box.right + size, y), fill="black", width=max(1, round(thick * size))
            )
    grain = np.random.default_rng(size).normal(0, noise, np.array(image).shape)
    image = Image.fromarray((np.array(image) + grain).clip(0, 255).astype(np.uint8))
    assert struck(read(image, lines)) == []


def test_a_rule_that_goes_on_far_from_the_text_strikes_nothing_out() -> None:
    image, lines = drawn(24)
    y = lines[0].box.top + 16
    ImageDraw.Draw(image).line((0, y, image.width, y), fill="grey", width=2)
    assert struck(read(image, lines)) == []


STRIKES = {"line": b" 1 w 60 %d m 200 %d l S ", "rectangle": b" 60 %d 140 0.8 re f %% %d\n"}


@pytest.mark.parametrize("how", ["line", "rectangle", "annotation"])
def test_what_a_file_strikes_out_is_marked_in_its_exact_text(how: str, tmp_path: Path) -> None:
    content, about = pdfs.typeset(LINES), b""
    if how == "annotation":
        quad = b"60 772 190 772 60 761 190 761"
        about = b" /Annots [<< /Type /Annot /Subtype /StrikeOut /Rect [58 760 192 773] /C [1 0 0] /F 4"
        about += b" /QuadPoints [%b] >>]" % quad
    else:
        content += STRIKES[how] % (767, 767)
    (tmp_path / "page.pdf").write_bytes(pdfs.written_pdf(content, about=about))
    page = load_page(tmp_path / "page.pdf", 0, Limits.of(WorkerSettings()))
    assert struck(Layout(page.blocks)) == LINES[0].split()
    assert [doubt.text for doubt in page.doubts if doubt.reason is DoubtReason.STRUCK_OUT] == [LINES[0]]


def block() -> Block:
    box = Box(left=0, top=0, right=10, bottom=10)
    words = [
        Word(text=text, box=box, struck=text in ("old", "5", "mg"))
        for text in ["an", "old", "dose", "5", "mg"]
    ]
    line = Line(text="an old dose 5 mg", box=box, words=tuple(words))
    return Block(kind=BlockKind.TEXT, text=line.text, lines=(line,), source=Source.OCR)


def test_what_is_struck_out_is_written_so_and_kept() -> None:
    assert markdown_of([block()]) == "an ~~old~~ dose ~~5 mg~~"
    assert html_of([block()]) == '<p class="text">an <s>old</s> dose <s>5 mg</s></p>'
    assert [Block.model_validate(one) for one in unpacked(packed([block()]))] == [block()]


def test_a_page_with_something_struck_out_is_to_be_looked_at() -> None:
    image, lines = drawn(24)
    word = lines[0].words[0].box
    ImageDraw.Draw(image).line((word.left, word.top + 16, word.right, word.top + 16), fill="black", width=2)
    found = read(image, lines)
    page = Generation(text="Warfarin", verdict=Verdict.OK, blocks=found.blocks, doubts=found.doubts)
    assert judged(page).verdict is Verdict.REVIEW
