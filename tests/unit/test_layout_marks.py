"""Boxes and circles are drawn in many ways, and given to the layout beside their labels."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pecia_schemas.blocks import Block, Box, Line, Mark, MarkKind, MarkState, Source, Word
from pecia_workers.layout.blocks import layout
from pecia_workers.layout.lines import around

INK = (30, 30, 40)
LABELS = ("Cough", "Fever", "Back pain", "Other", "No", "Only at night", "Dizziness", "Yes, often")


@dataclass
class Form:
    size: int = 22
    image: Image.Image = field(default_factory=lambda: Image.new("RGB", (1000, 900), "white"))
    pieces: list[Line] = field(default_factory=list)

    def write(self, text: str, left: float, top: float) -> None:
        font = ImageFont.load_default(self.size)
        self.pen.text((left, top), text, fill=INK, font=font)
        words, x = [], left
        for word in text.split():
            x0, y0, x1, y1 = font.getbbox(word)
            box = Box(left=round(x + x0), top=round(top + y0), right=round(x + x1), bottom=round(top + y1))
            words.append(Word(text=word, box=box))
            x += font.getlength(f"{word} ")
        self.pieces.append(Line(text=text, box=around(word.box for word in words), words=tuple(words)))

    @property
    def pen(self) -> ImageDraw.ImageDraw:
        return ImageDraw.Draw(self.image)

    def box(self, left: int, top: int, side: int, tick: str) -> None:
        right, bottom = left + side, top + side
        self.pen.rectangle((left, top, right, bottom), outline=INK, width=2)
        x, y = left + side // 2, top + side // 2
        if tick == "cross":
            self.pen.line((left + 3, top + 3, right - 3, bottom - 3), fill=INK, width=2)
            self.pen.line((left + 3, bottom - 3, right - 3, top + 3), fill=INK, width=2)
        elif tick == "hook":
            self.pen.line((left + 4, y, x, bottom - 5, right - 4, top + 4), fill=INK, width=3)
        elif tick == "pen":  # goes beyond the box
            self.pen.line((left - 2, y - 2, x, bottom - 3, right + 9, top - 8), fill=(20, 30, 160), width=3)

    def circle(self, left: int, top: int, side: int, *, dot: bool) -> None:
        self.pen.ellipse((left, top, left + side, top + side), outline=INK, width=2)
        if dot:
            self.pen.ellipse((left + 6, top + 6, left + side - 6, top + side - 6), fill=INK)

    def blocks(self) -> tuple[Block, ...]:
        return layout(self.pieces, np.asarray(self.image), source=Source.OCR).blocks

    def marks(self) -> list[Mark]:
        return [mark for block in self.blocks() for mark in block.marks]


def draw_form(seed: int) -> tuple[Form, dict[tuple[MarkKind, int, int], tuple[MarkState, str]]]:
    rng = random.Random(seed)  # noqa: S311  the same forms every time
    form, truth = Form(size=rng.choice((18, 22, 30))), {}
    side = round(form.size * rng.uniform(0.8, 1.2))
    form.write("Which complaints have you had in the last four weeks?", 60, 40)
    for row in range(7):
        round_ones = row >= 5
        for column in range(3):
            left, top, label = 60 + 310 * column, 110 + 90 * row, rng.choice(LABELS)
            ticked = rng.random() < 0.5
            if round_ones:
                form.circle(left, top, side, dot=ticked)
            else:
                form.box(left, top, side, rng.choice(("cross", "hook", "pen")) if ticked else "")
            form.write(label, left + side + 14, top - 2)
            kind = MarkKind.RADIO if round_ones else MarkKind.CHECKBOX
            truth[kind, left, top] = (MarkState.TICKED if ticked else MarkState.EMPTY, label)
    return form, truth


def test_boxes_and_circles_have_their_states_and_labels() -> None:
    right = []
    for seed in range(10):
        form, truth = draw_form(seed)
        found = {
            (mark.kind, round(mark.box.left / 5), round(mark.box.top / 5)): (mark.state, mark.label)
            for mark in form.marks()
        }
        assert len(found) == len(truth)
        right += [
            found.get((kind, round(x / 5), round(y / 5))) == state for (kind, x, y), state in truth.items()
        ]

    assert np.mean(right) >= 0.99


def test_a_mark_stands_in_the_text_at_its_place() -> None:
    form = Form()
    for left, tick, label in ((60, "cross", "Cough"), (400, "", "Fever")):
        form.box(left, 100, 24, tick)
        form.write(label, left + 40, 100)
    for left, dot, label in ((60, False, "Never"), (400, True, "Daily")):
        form.circle(left, 200, 24, dot=dot)
        form.write(label, left + 40, 200)
    assert [block.text for block in form.blocks()] == ["☑ Cough ☐ Fever", "○ Never ◉ Daily"]


def test_what_the_engine_took_the_box_for_gives_way_to_its_sign() -> None:
    form = Form()
    form.box(60, 100, 24, "cross")
    form.write("Cough", 100, 100)
    form.pieces[0] = Line(text="X Cough", box=Box(left=60, top=100, right=170, bottom=126))
    assert [block.text for block in form.blocks()] == ["☑ Cough"]


@pytest.mark.parametrize("text", ["OXO DOB 0 0 0", "Blood group O or OO", "Do Object to BOOK Q8"])
def test_letters_are_no_marks(text: str) -> None:
    form = Form(size=30)
    form.write(text, 60, 100)
    form.write(text, 60, 200)
    assert form.marks() == []


@pytest.mark.parametrize("stem", [(60, 84, 60, 98), (84, 86, 84, 100), (60, 110, 60, 138)])
def test_a_square_with_a_stem_is_a_letter(stem: tuple[int, int, int, int]) -> None:
    form = Form()
    form.box(60, 100, 24, "")
    form.pen.line(stem, fill=INK, width=2)
    form.write("ay Cash", 100, 100)
    assert form.marks() == []


def test_filled_squares_are_bullets_and_boxes_for_a_letter_each_are_no_marks() -> None:
    bullets, postcode = Form(), Form()
    for number, label in enumerate(LABELS):
        bullets.pen.rectangle((60, 100 + 50 * number, 82, 122 + 50 * number), fill=INK)
        bullets.write(label, 100, 100 + 50 * number)
    postcode.write("Postcode", 60, 100)
    for number in range(6):
        postcode.box(200 + 30 * number, 98, 26, "")
    assert bullets.marks() == postcode.marks() == []


@pytest.mark.parametrize(("name", "state"), [("J. Brandt", MarkState.TICKED), ("", MarkState.EMPTY)])
def test_a_line_to_be_signed_is_signed_or_empty(name: str, state: MarkState) -> None:
    form = Form()
    form.pen.line((60, 300, 460, 300), fill=INK, width=2)
    form.write("Signature of the patient", 60, 306)
    form.write("I have read what is written above.", 60, 100)
    if name:
        form.write(name, 120, 270)

    [mark] = form.marks()

    assert (mark.kind, mark.state) == (MarkKind.SIGNATURE_LINE, state)
    assert mark.label == "Signature of the patient"


@pytest.mark.parametrize("text", ["ם", "o", "ㅁ", "口"])
def test_where_a_layer_has_a_letter_is_no_mark(text: str) -> None:
    form = Form()
    for row in range(3):
        form.write("word", 100, 100 + 60 * row)
        if text == "o":
            form.circle(62, 102 + 60 * row, 18, dot=False)
        else:
            form.box(62, 102 + 60 * row, 18, "")
        box = Box(left=62, top=98 + 60 * row, right=81, bottom=126 + 60 * row)
        form.pieces.append(Line(text=text, box=box, words=(Word(text=text, box=box),)))
    blocks = layout(form.pieces, np.asarray(form.image), source=Source.LAYER).blocks
    assert not [mark for block in blocks for mark in block.marks]


def test_a_cross_that_a_layer_has_in_its_box_ticks_it() -> None:
    form = Form()
    form.box(60, 100, 26, "cross")
    form.write("Fever", 110, 100)
    box = Box(left=66, top=100, right=80, bottom=126)
    form.pieces.append(Line(text="X", box=box, words=(Word(text="X", box=box),)))
    (block,) = layout(form.pieces, np.asarray(form.image), source=Source.LAYER).blocks
    assert [mark.state for mark in block.marks] == [MarkState.TICKED]
    assert block.text == "☑ Fever"


@pytest.mark.parametrize("glyph", "区图网冈凶囚因困团回田")
def test_a_ticked_box_that_was_taken_for_an_ideograph_is_a_mark(glyph: str) -> None:
    form = Form()
    form.write("oui", 60, 100)
    form.write("non", 160, 100)
    for left, tick in ((110, "cross"), (220, "")):
        form.box(left, 101, 22, tick)
    taken = Box(left=108, top=98, right=134, bottom=126)
    form.pieces.append(Line(text=glyph, box=taken, words=(Word(text=glyph, box=taken),)))
    (block,) = form.blocks()
    assert block.text == "oui ☑ non ☐"


def test_an_ideograph_among_others_is_no_mark() -> None:
    form = Form()
    form.box(110, 101, 22, "cross")
    for text, left in (("地址在", 40), ("区", 108), ("学院路", 140)):
        box = Box(left=left, top=98, right=left + 26 * len(text), bottom=126)
        form.pieces.append(Line(text=text, box=box, words=(Word(text=text, box=box),)))
    assert not form.marks()
