"""What the log-probabilities of a language model's tokens say of its words."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.blocks import Doubt, DoubtReason
from pecia_schemas.results import Verdict
from pecia_workers.engines.base import Generation
from pecia_workers.reading.ladder import doubtful_words, judged, sureness


def doubtful(sure: Sequence[tuple[str, float]]) -> tuple[Doubt, ...]:
    return doubtful_words(sure, "".join(text for text, _ in sure))


def tokens(*sure: tuple[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((text, math.log(probability)) for text, probability in sure)


UNSURE_OF_A_DOSE = tokens(
    ("Take", 0.9), (" aspi", 0.9), ("rin", 0.3), (" 1", 0.99), ("00", 0.4), (" mg", 0.9)
)


def test_a_page_is_as_sure_as_the_geometric_mean_of_its_tokens() -> None:
    assert sureness(tokens(("a", 0.9), ("b", 0.4))) == pytest.approx(0.6)
    assert sureness(()) is None


def test_a_word_is_as_sure_as_its_least_likely_token() -> None:
    assert [(doubt.text, doubt.on_value) for doubt in doubtful(UNSURE_OF_A_DOSE)] == [("100", True)]


def test_less_is_asked_of_prose_than_of_a_value() -> None:
    (doubt,) = doubtful(tokens(("of", 0.1), (" the", 0.5), (" ward", 0.19999), (" 7", 0.6)))[1:]
    assert (doubt.text, doubt.reason, doubt.on_value) == ("ward", DoubtReason.LOW_CONFIDENCE, False)


def test_markup_is_no_word_and_belongs_to_none() -> None:
    assert [doubt.text for doubt in doubtful(tokens(("| ", 0.1), ("**5.1**", 0.1), (" |\n", 0.1)))] == ["5.1"]


def test_a_special_token_is_not_on_the_page() -> None:
    assert doubtful_words(tokens(("Take", 0.9), ("<|im_end|>", 0.1)), "Take") == ()


def test_a_doubtful_value_is_for_review() -> None:
    reading = Generation(text="Take aspirin 100 mg", verdict=Verdict.OK, tokens=UNSURE_OF_A_DOSE)
    assert judged(reading).verdict is Verdict.REVIEW
    sure = tuple((text, 0.0) for text, _ in UNSURE_OF_A_DOSE)
    assert judged(Generation(text=reading.text, verdict=Verdict.OK, tokens=sure)).verdict is Verdict.OK


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 200), max_size=20))
def test_however_words_are_cut_into_tokens_the_same_words_are_doubtful(text: str, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    cut = [(text[start:end], -9.0) for start, end in pairwise(ends) if start < end]
    whole = [(text, -9.0)] if text else []
    assert doubtful(cut) == doubtful(whole)
