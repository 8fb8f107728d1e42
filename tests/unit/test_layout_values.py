"""Values by their shape: which are known, and what else a word may be that looks alike."""

import pytest

from pecia_workers.layout.alike import others_alike, shape_strength


@pytest.mark.parametrize(
    "word",
    [
        *(
            "850",
            "-1.25",
            "1,250.00",
            "12.5%",
            "3.5-5.1",
            "140/90",
            "1-0-1",
            "2x850",
            "5mg",
            "12.5mg/ml",
            "10⁹/l",
        ),
        *(
            "2026-11-26",
            "26.11.2026",
            "11/26/2026",
            "26-NOV-2026",
            "2026-11-26T14:30",
            "14:30",
            "9:05pm",
            "10:00AM",
        ),
        *(
            "I10",
            "J45.9",
            "S72.00",
            "C09AA05",
            "5-956.x4",
            "HbA1c",
            "SpO2",
            "pT2N0M0",
            "L4/L5",
            "mmol/l",
            "µmol/l",
        ),
        "(0.5)",
    ],
)
def test_numbers_dates_codes_and_units_are_known(word: str) -> None:
    assert shape_strength(word) >= 2


@pytest.mark.parametrize("word", ["85o", "HbAlc", "mmo1/l", "043.0", "mIU/1", "1O0", "2026-1l-26", "O2.5"])
def test_a_word_with_a_sign_out_of_place_is_not(word: str) -> None:
    assert shape_strength(word) == 0


@pytest.mark.parametrize(
    ("read", "meant"),
    [
        *(("85omg", "850mg"), ("mmo1/l", "mmol/l"), ("HbAlc", "HbA1c"), ("043.0", "O43.0"), ("Sp02", "SpO2")),
        *(("110", "I10"), ("I10", "110"), ("O2", "02"), ("10⁹/1", "10⁹/l"), ("2O26-11-26", "2026-11-26")),
    ],
)
def test_what_looks_alike_and_has_a_known_shape_is_another_reading(read: str, meant: str) -> None:
    changed = {f"{read[:place]}{sign}{read[place + 1 :]}" for place, sign in others_alike(read)}
    assert meant in changed


def test_a_plain_number_has_no_other_reading_inside() -> None:
    assert {place for place, _ in others_alike("85.10")} <= {0}
    assert others_alike("7") == ()
