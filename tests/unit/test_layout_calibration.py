"""Measured probabilities: what the file of weights says, and that it says what it must."""

import math

import pytest

from pecia_workers.layout.alike import Logistic, calibration, log_odds


def test_a_logistic_model_adds_up_its_evidence() -> None:
    model = Logistic({"constant": 1.0, "sureness": -2.0})
    assert model.probability({"sureness": 0.5, "unknown": 9.0}) == 0.5
    assert model.probability({"sureness": -1e9}) == pytest.approx(1.0)
    assert log_odds(0.5) == 0
    assert (log_odds(0.0), log_odds(1.0)) == pytest.approx((-math.log(9999), math.log(9999)))


def test_a_sure_word_of_a_known_shape_is_right_and_a_second_look_that_agrees_makes_it_likelier() -> None:
    known = calibration()
    wrong = [
        known.wrong.probability({"sureness": sure, "value": 1.0, "value_sureness": sure, shape: 1.0})
        for sure, shape in ((8.0, "value_of_shape_2"), (2.0, "value_of_shape_2"), (2.0, "value_of_shape_0"))
    ]
    assert wrong == sorted(wrong)
    assert wrong[0] < known.doubtful < wrong[-1]
    before = {"before": log_odds(0.2)}
    same, other = {"same": 1.0, "same_sureness": 3.0}, {"other_sureness": 3.0}
    assert known.again.probability(before | same) < known.again.probability(before | other)


def test_ink_and_shape_speak_for_a_reading() -> None:
    other = calibration().other
    score = {"score": math.log(0.05)}
    assert other.probability(score | {"ring": 1.0}) > 0.5 > other.probability(score | {"ring": -1.0})
    assert other.probability(score | {"shape_0_to_3": 1.0}) > other.probability(score | {"shape_3_to_0": 1.0})
