"""Which words are values, where one wrong sign does harm."""

import pytest

from pecia_workers.reading.lines import is_value

NUMBERS = ("12.5", "3.60", "x10", "140/90", "2026-11-22", "tablets(2)", "B12")


@pytest.mark.parametrize("word", [*NUMBERS, "mg/dL", "mmol/L", "µg", "mmHg", "%", "March", "RM"])
def test_numbers_units_doses_and_dates_are_values(word: str) -> None:
    assert is_value(word)


@pytest.mark.parametrize("word", ["patient", "was", "Clinic", "/", "-", "", "the"])
def test_prose_is_no_value(word: str) -> None:
    assert not is_value(word, "seen in the")


@pytest.mark.parametrize("before", ["Dr.", "Dear Mrs", "Name:", "seen by Dr. John", "환자:"])
def test_a_name_is_known_by_what_stands_before_it(before: str) -> None:
    assert is_value("Sampleton", before)
    assert not is_value("sampled", before)
