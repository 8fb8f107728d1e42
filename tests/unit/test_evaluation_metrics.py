"""What `pecia eval` counts as right."""

# ruff: noqa: RUF001  signs that look alike are its subject
import pytest

from pecia.evaluation import metrics
from pecia_schemas.blocks import Box, Cell, Mark, MarkKind, MarkState, Table

BOX = Box(left=0, top=0, right=1, bottom=1)
LINES = ("Haemoglobin 13.2", "Sodium 139 mmol/L", "Ferritin is low", "Please repeat")


def table(*rows: tuple[str, ...]) -> Table:
    cells = tuple(
        Cell(row=row, column=column, text=text)
        for row, texts in enumerate(rows)
        for column, text in enumerate(texts)
    )
    return Table(rows=len(rows), columns=len(rows[0]), cells=cells)


def checkbox(label: str, state: MarkState) -> Mark:
    return Mark(kind=MarkKind.CHECKBOX, box=BOX, state=state, label=label)


@pytest.mark.parametrize(
    ("read", "true"),
    [
        ("the ﬁrst\nline", "the first line"),
        ("“13–15”", '"13-15"'),
        ("血压，正常 。", "血压,正常。"),
        ("Name ______ date", "Name date"),
        ("□ Cough ◉ never", "☐ Cough ☑ never"),
    ],
)
def test_signs_that_look_alike_and_white_space_are_no_errors(read: str, true: str) -> None:
    assert metrics.character_errors(read, true).part == 0


def test_a_superscript_that_became_a_digit_is_an_error() -> None:
    assert metrics.character_errors("10 6/µL", "10⁶/µL").part > 0


def test_characters_in_another_order_are_errors_and_words_are_found() -> None:
    read, true = "left right\nleft right", "left left right right"
    assert metrics.character_errors(read, true).part > 0
    assert metrics.found(metrics.words(read), metrics.words(true)) == (4, 4)


def test_every_chinese_sign_is_a_word_and_a_lost_space_between_number_and_unit_loses_none() -> None:
    assert metrics.words("血压 128/82 mmHg，正常") == ["血", "压", "128/82", "mmHg", "正", "常"]
    assert metrics.words("5mg, 12 % (<0.9) 3-5") == metrics.words("5 mg, 12% ( < 0.9 ) 3 - 5")


def test_numbers_dates_and_times_are_right_as_wholes() -> None:
    read, true = (metrics.words(f"12.5 mg at 10:30 on 22.{month}.2026") for month in (1, 11))
    assert metrics.found(metrics.numeric(read), metrics.numeric(true)) == (2, 3)


def test_of_what_is_in_doubt_it_is_told_what_is_wrong_and_what_is_right() -> None:
    read, true = ["12", "140", "140", "9"], ["12", "140", "14"]
    assert metrics.doubted(read, true, ["140", "9", "12"]) == ((2, 2), (1, 2))
    assert metrics.doubted(read, read, []) == ((0, 0), (0, 4))


def test_lines_in_order_have_a_tau_of_1_from_the_end_of_minus_1_and_alone_none() -> None:
    true = "\n".join(LINES)
    assert metrics.order(true, true) == 1
    assert metrics.order("\n".join(reversed(LINES)), true) == -1
    assert metrics.order("Ferritin is low\nsomething else", true) is None


def test_a_line_is_found_in_spite_of_a_wrong_character_and_of_what_stands_beside_it() -> None:
    read = "Haemog1obin 13.2 Ferritin is low\nSodium 139 mmol/L Please repeat"
    assert metrics.order(read, "\n".join(LINES)) == pytest.approx(4 / 6)


def test_empty_cells_count_and_lines_of_a_cell_may_be_joined() -> None:
    true = table(("Test", "Result"), ("Cholesterol,\ntotal", ""))
    assert metrics.cells([table(("Test", "Result"), ("Cholesterol, total", ""))], [true]) == (4, 4)


def test_a_cell_in_another_column_or_with_another_span_is_wrong() -> None:
    true = table(("Potassium", "", "3.5 - 5.1"))
    spanned = Cell(row=0, column=0, column_span=2, text="Potassium")
    read = Table(rows=1, columns=3, cells=(spanned, Cell(row=0, column=2, text="3.5 - 5.1")))
    assert metrics.cells([table(("Potassium", "3.5 - 5.1"))], [true]) == (1, 3)
    assert metrics.cells([read], [true]) == (1, 3)


def test_each_table_is_compared_with_the_one_most_alike_and_a_missing_one_is_wrong_whole() -> None:
    first, second = table(("a", "b")), table(("c", "d"))
    assert metrics.cells([second, first], [first, second]) == (4, 4)
    assert metrics.cells([second], [first, second]) == (2, 4)


def test_a_mark_is_right_if_its_state_is_and_one_too_many_is_wrong() -> None:
    true = [checkbox("Shortness of breath", MarkState.TICKED), checkbox("Fever", MarkState.EMPTY)]
    read = [checkbox("Fever", MarkState.TICKED), checkbox("Shortnes of breath", MarkState.TICKED)]
    assert metrics.marks(true, true) == (2, 2)
    assert metrics.marks(read, true) == (1, 2)
    assert metrics.marks([*true, checkbox("Logo", MarkState.EMPTY)], true) == (2, 3)
