"""Columns of a recogniser, decoded."""

import numpy as np
import pytest

pytest.importorskip("rapidocr", reason="pecia[cpu] brings its networks")

from pecia_workers.engines.cpu.networks import decoded, log_likelihood

SIGNS = ("blank", "1", "I", " ")


def columns(*best: dict[str, float]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array([[column.get(sign, 0.0) for sign in SIGNS] for column in best], np.float32)


def test_a_sign_in_several_columns_is_one_and_its_rival_is_the_best_of_the_others_in_these() -> None:
    [sign] = decoded(columns({"1": 0.9, "I": 0.05}, {"1": 0.6, "I": 0.3}, {"blank": 1.0}), SIGNS, 3)
    assert (sign.text, sign.rival) == ("1", "I")
    assert (sign.middle, sign.confidence, sign.rival_confidence) == pytest.approx((1 / 6, 0.9, 0.3))


def test_the_same_sign_behind_an_empty_column_is_a_second_one_and_a_space_stands_nowhere() -> None:
    one, empty, space = {"1": 1.0}, {"blank": 1.0}, {" ": 1.0}
    found = decoded(columns(one, empty, one, space, {"I": 1.0}), SIGNS, 5)
    assert "".join(sign.text for sign in found) == "11 I"
    assert found[2].middle == -1.0
    assert decoded(columns(empty, empty), SIGNS, 2) == []


def test_a_reading_is_as_likely_as_all_ways_of_the_columns_to_hold_it() -> None:
    scores = columns({"1": 0.6, "I": 0.3, "blank": 0.1}, {"1": 0.5, "blank": 0.5})
    one = 0.6 * 0.5 + 0.6 * 0.5 + 0.1 * 0.5  # in both columns, in the first, in the second
    assert log_likelihood(scores, [1]) == pytest.approx(np.log(one))
    assert log_likelihood(scores, [2, 1]) == pytest.approx(np.log(0.3 * 0.5))
    twice = columns({"1": 0.9}, {"blank": 0.8}, {"1": 0.7})
    assert log_likelihood(twice, [1, 1]) == pytest.approx(np.log(0.9 * 0.8 * 0.7))
    assert log_likelihood(twice, []) < np.log(1e-6)
