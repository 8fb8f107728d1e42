"""Where boxes stand is where they are read: pages of many layouts, given as boxes alone in a random order."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_workers.layout.order import Cues, reading_order

PITCH, HEIGHT = 24, 18
Place: TypeAlias = tuple[float, float, float, float]


class Sheet:
    """Boxes of a page, written down in the order in which a person reads them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311  the same pages every time
        self.places: list[Place] = []
        self.whole: list[int] = []
        self.address: list[int] = []
        self.label: list[int] = []
        self.begins: list[int] = []
        self.dense: list[int] = []

    def line(self, left: float, top: float, width: float, height: float = HEIGHT) -> None:
        self.places.append((left, top, left + width, top + height))

    def field(self, left: float, top: float, width: float, *, colon: bool = False) -> None:
        (self.label if colon else self.begins).append(len(self.places))
        self.line(left, top, width)

    def prose(self, left: float, top: float, width: float, lines: int) -> float:
        for number in range(lines):
            last = number % 7 == 6 or number == lines - 1
            share = self.rng.uniform(0.3, 0.8) if last else self.rng.uniform(0.9, 1)
            self.line(left, top + number * PITCH, width * share)
        return top + lines * PITCH

    def cells(self, lefts: Iterable[float], top: float, rows: int) -> float:
        for number in range(rows):
            for left in lefts:
                self.line(left, top + number * PITCH, self.rng.uniform(40, 90))
        return top + rows * PITCH

    def table(self, left: float, top: float, width: float, height: float) -> float:
        self.whole.append(len(self.places))
        self.line(left, top, width, height)
        return top + height


def columns(count: int, sheet: Sheet, top: float = 100, lines: int = 24) -> float:
    width = 1400 / count
    for column in range(count):
        sheet.prose(100 + column * width, top, width - 45, lines)
    return top + lines * PITCH


def four_columns_close_under_a_title_in_the_middle(sheet: Sheet) -> None:
    sheet.line(760, 80, 180, 22)
    columns(4, sheet, 116, 6)


def two_columns_under_a_headline_that_comes_again(sheet: Sheet) -> None:
    sheet.line(300, 100, 1000, 40)
    bottom = columns(2, sheet, 180, 12)
    sheet.line(100, bottom + 20, 1300)
    columns(2, sheet, bottom + 70, 12)


def address_beside_contacts(sheet: Sheet) -> None:
    sheet.line(500, 60, 600, 44)
    for left in (100, 1100):
        sheet.address.append(len(sheet.places) + 3)
        for number in range(4):
            sheet.line(left, 200 + number * 30, sheet.rng.uniform(120, 240))
    sheet.line(100, 420, 600)
    sheet.prose(100, 480, 1300, 12)


def table_above_two_columns(sheet: Sheet) -> None:
    columns(2, sheet, sheet.cells((100, 450, 800, 1150), 100, 6) + 50)


def grid_in_one_of_two_columns(sheet: Sheet) -> None:
    sheet.prose(100, 100, 650, 8)
    sheet.prose(100, sheet.table(100, 110 + 8 * PITCH, 650, 200) + 10, 650, 8)
    sheet.prose(800, 100, 650, 24)


def grid_across_two_columns(sheet: Sheet) -> None:
    bottom = columns(2, sheet, 100, 10)
    bottom = sheet.table(100, bottom + 20, 1350, 200)
    columns(2, sheet, bottom + 20, 10)


def address_beside_a_table(sheet: Sheet) -> None:
    for number in range(8):
        sheet.line(100, 100 + number * 30, sheet.rng.uniform(120, 240))
    sheet.table(900, 110, 500, 180)
    sheet.prose(100, 420, 1300, 12)


def caption_between_two_columns(sheet: Sheet) -> None:
    for left, indent in ((100, 0), (800, 150)):
        sheet.prose(left, 100, 600, 10)
        sheet.prose(left + indent, 100 + 10 * PITCH, 450, 5)
        sheet.prose(left, 100 + 15 * PITCH, 600, 10)
    sheet.line(600, 100 + 12 * PITCH, 300)


def sidebar(sheet: Sheet) -> None:
    sheet.prose(100, 100, 300, 9)
    sheet.prose(450, 100, 1000, 26)


def label_beside_a_paragraph(sheet: Sheet) -> None:
    for number in range(4):
        top = 100 + number * 200
        for line in range(3):
            sheet.line(100, top + line * PITCH, 110 - 20 * line)
        sheet.prose(400, top, 1000, 6)


def items_and_prices(sheet: Sheet) -> None:
    for number in range(10):
        sheet.line(100, 100 + number * PITCH, sheet.rng.uniform(150, 400))
        sheet.line(1300, 100 + number * PITCH, 80)


def amounts_beside_the_last_of_many_lines(sheet: Sheet) -> None:
    for number in range(8):
        sheet.line(100, 100 + number * PITCH, sheet.rng.uniform(280, 420))
        if number > 4:
            sheet.line(700, 100 + number * PITCH, 80)


def cells_of_several_lines_in_two_columns(sheet: Sheet) -> None:
    top = 100.0
    for lines in (3, 4, 2, 5, 3):
        sheet.prose(100, top, 600, lines)
        sheet.prose(800, top, 600, 3)
        top += max(lines, 3) * PITCH + 20


def short_lists_side_by_side(sheet: Sheet) -> None:
    sheet.line(100, 60, 900, 40)
    for left, gaps in ((100, (0, 8, 14, 14)), (600, (0, 20, 10)), (1000, (0, 12, 26))):
        top: float = 160
        for gap in gaps:
            for _ in range(4):
                sheet.line(left, top + gap, sheet.rng.uniform(90, 140))
                top += PITCH
            top += gap
    sheet.line(100, 900, 250)


def columns_that_are_not_level(sheet: Sheet) -> None:
    for column in range(4):
        sheet.prose(100 + column * 350, 100 + column % 2 * 0.45 * PITCH, 320, 24)


def narrow_columns_of_wide_signs(sheet: Sheet) -> None:
    for column in range(3):
        first = len(sheet.places)
        sheet.prose(100 + column * 9 * HEIGHT, 100, sheet.rng.uniform(6.2, 8) * HEIGHT, 14)
        sheet.dense += range(first, len(sheet.places))


def newspaper(count: int, sheet: Sheet) -> None:
    top, width = 100.0, 1400 / count
    for lines in (9, 14, 11):
        for column in range(count):
            sheet.line(100 + column * width, top, (width - 40) * sheet.rng.uniform(0.8, 1), 30)
            sheet.prose(100 + column * width, top + 44, width - 40, lines)
        top += 44 + lines * PITCH + 30


def form(sheet: Sheet, *, pairs: int = 1, colon: bool = False) -> None:
    for number in range(12):
        for left in range(100, 1500, 1400 // pairs):
            sheet.field(left, 100 + number * 1.4 * PITCH, sheet.rng.uniform(200, 280), colon=colon)
            if number % 5 != 3:
                width = sheet.rng.uniform(0.7, 0.95) * (1400 / pairs - 330)
                sheet.field(left + 320, 100 + number * 1.4 * PITCH, width)


def form_with_values_of_several_lines(sheet: Sheet) -> None:
    top = 100.0
    for number in range(8):
        sheet.field(100, top, sheet.rng.uniform(200, 300), colon=True)
        for line in range(1 + number % 3):
            sheet.line(500, top + line * PITCH, 900 * sheet.rng.uniform(0.9, 1))
        top += (1.3 + number % 3) * PITCH


LAYOUTS: list[Callable[[Sheet], object]] = [
    *(partial(columns, 2), partial(columns, 4)),
    four_columns_close_under_a_title_in_the_middle,
    two_columns_under_a_headline_that_comes_again,
    address_beside_contacts,
    table_above_two_columns,
    grid_in_one_of_two_columns,
    grid_across_two_columns,
    address_beside_a_table,
    caption_between_two_columns,
    sidebar,
    label_beside_a_paragraph,
    items_and_prices,
    amounts_beside_the_last_of_many_lines,
    cells_of_several_lines_in_two_columns,
    short_lists_side_by_side,
    columns_that_are_not_level,
    narrow_columns_of_wide_signs,
    *(partial(newspaper, 3), partial(newspaper, 4)),
    *(partial(form, pairs=pairs, colon=colon) for pairs in (1, 2) for colon in (True, False)),
    form_with_values_of_several_lines,
]


def kendall_tau(order: list[int]) -> float:
    places = np.array(order)
    later = np.triu(np.ones((len(places), len(places)), dtype=bool), 1)
    return float(np.sign(places[None, :] - places[:, None])[later].mean())


def flags(length: int, positions: list[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(np.arange(length), positions)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("draw", LAYOUTS, ids=lambda draw: getattr(draw, "__name__", "columns"))
def test_a_page_is_read_in_the_order_of_a_person(draw: Callable[[Sheet], object], seed: int) -> None:
    sheet = Sheet(seed)
    draw(sheet)
    count = len(sheet.places)
    shuffled = list(range(count))
    sheet.rng.shuffle(shuffled)
    jitter = np.random.default_rng(seed).integers(-2, 3, size=(count, 4))

    stretches = reading_order(
        (np.array(sheet.places, dtype=np.float64) + jitter)[shuffled],
        apart=flags(count, sheet.whole)[shuffled],
        cues=Cues(
            *(flags(count, one)[shuffled] for one in (sheet.address, sheet.label, sheet.begins, sheet.dense))
        ),
    )

    read = [shuffled[one] for stretch in stretches for row in stretch for one in row]
    assert kendall_tau(read) >= 0.98


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(1, 900), st.integers(1, 300)),
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_every_box_is_read_exactly_once(places: list[tuple[int, int, int, int]], rng: random.Random) -> None:
    boxes = np.array([(x, y, x + w, y + h) for x, y, w, h in places], dtype=np.float64).reshape(-1, 4)
    whole, address = ([rng.random() < 0.1 for _ in places] for _ in range(2))
    cues = replace(Cues.none(len(places)), address=np.array(address, dtype=bool))
    stretches = reading_order(boxes, np.array(whole, dtype=bool), cues)
    read = [one for stretch in stretches for row in stretch for one in row]
    assert sorted(read) == list(range(len(places)))


def test_a_whole_box_stands_in_no_row_with_others() -> None:
    boxes = np.array([[0, 0, 100, 20], [120, 0, 220, 20]], dtype=np.float64)
    assert reading_order(boxes) == [[[0, 1]]]
    assert [row for stretch in reading_order(boxes, np.array([True, False])) for row in stretch] == [[0], [1]]
