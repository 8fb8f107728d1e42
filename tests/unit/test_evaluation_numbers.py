"""The numbers of a page beside the truth: which are values, when an `ok` page has a wrong one, when a flag is wrong."""

from collections.abc import Callable

import pytest

from pecia import Verdict
from pecia.evaluation.metrics import Share, compared, values
from pecia.evaluation.scores import PageScore, Summary, score
from pecia.evaluation.truth import TruePage
from tests.shared.samples import page


@pytest.mark.parametrize(
    ("read", "true"),
    [
        ("5mg/2ml, 12 % (<0.9)", "5 mg/2 ml, 12% ( < 0.9 )"),
        ("3.5 - 5.1", "3.5-5.1"),
        ("RM5.00 $ 7", "RM 5.00 $7"),
        ("140 / 90", "140/90"),
        ("2x850mg", "2 x 850 mg"),
        ("No.12:", "No. 12"),
        ("血压128/82 mmHg", "血压 128/82mmHg"),
    ],
)
def test_a_space_between_a_value_and_what_belongs_to_it_makes_no_difference(read: str, true: str) -> None:
    assert values(read) == values(true)


@pytest.mark.parametrize(
    ("read", "true"),
    [
        ("I10", "110"),
        ("O2", "02"),
        ("HbAlc", "HbA1c"),
        ("85o mg", "850 mg"),
        ("12May2024", "12 May 2024"),
        ("2026-11-2614:30", "2026-11-26 14:30"),
        ("1 2.5", "12.5"),
        ("51", "5¹"),
        ("10", "10⁹"),
        ("1.25", "-1.25"),
    ],
)
def test_a_value_that_a_person_would_take_for_another_is_wrong(read: str, true: str) -> None:
    found = compared(read, true, is_whole=True)
    assert found.found < found.true or found.invented


def test_what_is_read_beside_a_pdfs_own_text_is_not_held_against_it() -> None:
    assert compared("Total 12", "Total", is_whole=True).invented == 1
    assert compared("Total 12", "Total", is_whole=False).invented == 0


@pytest.fixture
def scored() -> Callable[[str, Verdict], PageScore]:
    return lambda text, verdict: score(
        page(text=text, verdict=verdict), TruePage(text="Ramipril 5 mg"), file="a.png", kind="a"
    )


def test_ok_pages_with_a_wrong_number_and_right_pages_with_a_flag_are_counted(
    scored: Callable[[str, Verdict], PageScore],
) -> None:
    right, wrong = "Ramipril 5 mg", "Ramipril S mg"
    summary = Summary.of(
        [
            scored(right, Verdict.OK),
            scored(right, Verdict.OK),
            scored(wrong, Verdict.OK),
            scored(right, Verdict.REVIEW),
            scored(wrong, Verdict.REVIEW),
        ]
    )
    assert (summary.ok_with_wrong_number, summary.right_but_flagged) == (1 / 3, 1 / 3)
    assert summary.values == 3 / 5


def test_an_older_report_says_nothing_of_these_measures(scored: Callable[[str, Verdict], PageScore]) -> None:
    old = PageScore.model_validate(scored("5", Verdict.OK).model_dump(exclude={"values"}))
    assert old.words != Share(0, 0)
    summary = Summary.of([old])
    assert (summary.values, summary.ok_with_wrong_number, summary.right_but_flagged) == (None, None, None)
