"""How far a reading can be trusted, and what the log-probabilities of a model's tokens say of its words."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.blocks import Box, Doubt, DoubtReason, Line, Source, Word, plain_blocks
from pecia_schemas.results import Verdict
from pecia_workers.protocol.base import Generation
from pecia_workers.reading.ladder import doubtful_words, judged, sureness, words_below

BOX = Box(left=0, top=0, right=10, bottom=10)
AGAINST = [Verdict.TRUNCATED, Verdict.REPETITION, Verdict.UNREADABLE]


def verdict(text: str, told: Verdict = Verdict.OK) -> Verdict:
    return judged(Generation(text=text, verdict=told)).verdict


def lines(*confidences: float) -> Generation:
    found = tuple(Line(text="dose", box=BOX, confidence=confidence) for confidence in confidences)
    text = "dose\n" * len(found)
    return Generation(text=text, verdict=Verdict.OK, blocks=plain_blocks(text, found, source=Source.OCR))


def test_verdicts_are_ordered_by_what_a_text_is_worth() -> None:
    best_first = sorted(Verdict, key=lambda verdict: verdict.rank, reverse=True)

    assert best_first == [
        Verdict.OK,
        Verdict.BLANK,
        Verdict.REVIEW,
        Verdict.LOW_CONFIDENCE,
        Verdict.INCOMPLETE,
        Verdict.TRUNCATED,
        Verdict.REPETITION,
        Verdict.UNREADABLE,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Take 1 tablet [?] daily.\n\n| test | value |\n|---|---|\n| Na | 140 |",
        19 * "[?] " + 81 * "word ",
        "\N{REPLACEMENT CHARACTER}" + 100 * "x",
    ],
)
def test_plain_text_is_what_the_engine_says_it_is(text: str) -> None:
    assert verdict(text) is Verdict.OK


@pytest.mark.parametrize("text", [20 * "[?] " + 80 * "word ", "\N{REPLACEMENT CHARACTER}" + 99 * "x"])
def test_a_text_with_many_gaps_is_doubtful(text: str) -> None:
    assert verdict(text) is Verdict.LOW_CONFIDENCE


@pytest.mark.parametrize("text", ["[?]", "| --- | --- |", "…", "```markdown\n—\n```"])
def test_a_text_without_a_letter_or_digit_is_unreadable(text: str) -> None:
    assert verdict(text) is Verdict.UNREADABLE


def test_lines_are_judged_by_their_mean_confidence() -> None:
    assert judged(lines(0.9, 0.3)).verdict is Verdict.OK
    assert judged(lines(0.9, 0.299)).verdict is Verdict.LOW_CONFIDENCE


def test_ink_that_was_not_read_makes_a_page_incomplete_whatever_else_is_in_doubt() -> None:
    doubts = (
        Doubt(reason=DoubtReason.DISAGREES, text="5 mg", other="6 mg", on_value=True),
        Doubt(reason=DoubtReason.UNCOVERED, box=BOX),
    )
    for sure in (0.9, 0.1):
        assert judged(replace(lines(sure), doubts=doubts)).verdict is Verdict.INCOMPLETE


def test_a_doubt_on_a_value_is_for_review_and_one_on_prose_is_not() -> None:
    prose = Doubt(reason=DoubtReason.DISAGREES, text="the")
    value = prose.model_copy(update={"on_value": True})
    assert judged(replace(lines(0.9), doubts=(prose,))).verdict is Verdict.OK
    assert judged(replace(lines(0.9), doubts=(prose, value))).verdict is Verdict.REVIEW
    assert judged(replace(lines(0.1), doubts=(value,))).verdict is Verdict.LOW_CONFIDENCE


@pytest.mark.parametrize(
    ("words", "probability", "said"),
    [(101, None, Verdict.OK), (100, None, Verdict.REVIEW), (51, 0.5, Verdict.OK), (50, 0.5, Verdict.REVIEW)],
)
def test_a_page_is_for_review_if_one_word_of_a_hundred_is_expected_to_be_wrong(
    words: int, probability: float | None, said: Verdict
) -> None:
    word = Word(text="dose", box=BOX, confidence=0.9)
    line = Line(text=" ".join(["dose"] * words), box=BOX, confidence=0.9, words=(word,) * words)
    page = replace(lines(0.9), blocks=plain_blocks(line.text, (line,), source=Source.OCR))
    doubt = Doubt(reason=DoubtReason.LOW_CONFIDENCE, box=BOX, text="dose", probability=probability)
    for read in (page, *(Generation(text=text, verdict=Verdict.OK) for text in (line.text, "药" * words))):
        assert judged(replace(read, doubts=(doubt,))).verdict is said


@given(text=st.text() | st.just("dose [?] [?]"), told=st.sampled_from(AGAINST))
def test_nothing_is_better_than_the_engine_says(text: str, told: Verdict) -> None:
    assert verdict(text, told).rank <= told.rank


@pytest.mark.parametrize("label", ["markdown", "md", "Markdown"])
def test_a_fence_around_the_page_is_no_part_of_it(label: str) -> None:
    text = "# Report\n```\ncode\n```\nend"
    for end in ("\n```", "\n```\n", ""):
        assert judged(Generation(text=f"```{label}\n{text}{end}", verdict=Verdict.OK)).text == text


@pytest.mark.parametrize("text", ["```\ncode\n```", "a\n```markdown\nb\n```", ""])
def test_any_other_fence_stands_on_the_page(text: str) -> None:
    assert judged(Generation(text=text, verdict=Verdict.OK)).text == text


@given(text=st.text(), fences=st.sampled_from(["", "```md\n", "```markdown\n"]))
def test_judging_twice_changes_nothing(text: str, fences: str) -> None:
    once = judged(Generation(text=fences + text, verdict=Verdict.OK))
    if not text.lstrip().startswith("```"):
        assert judged(once) == once


def test_an_engine_that_reads_nothing_is_believed() -> None:
    for told in itertools.chain([Verdict.OK], AGAINST):
        assert verdict("", told) is told


def doubtful(sure: Sequence[tuple[str, float]]) -> tuple[Doubt, ...]:
    return doubtful_words(sure, "".join(text for text, _ in sure))


def tokens(*sure: tuple[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((text, math.log(probability)) for text, probability in sure)


UNSURE_OF_A_DOSE = tokens(
    ("Take", 0.9), (" aspi", 0.9), ("rin", 0.5), (" 1", 0.99), ("00", 0.5), (" mg", 0.9)
)


def test_a_page_is_as_sure_as_the_geometric_mean_of_its_tokens() -> None:
    assert sureness(tokens(("a", 0.9), ("b", 0.4))) == pytest.approx(0.6)
    assert sureness(()) is None


def test_a_word_is_as_sure_as_its_least_likely_token() -> None:
    doubts = [(doubt.text, doubt.on_value) for doubt in doubtful(UNSURE_OF_A_DOSE)]
    assert doubts == [("aspirin", False), ("100", True)]
    assert doubtful(tokens(("of", 0.6), (" 7", 0.6))) == ()


def test_the_words_of_which_a_model_was_less_than_sure_are_known_if_its_tokens_are() -> None:
    assert words_below(UNSURE_OF_A_DOSE, 0.95) == frozenset({"Take", "aspirin", "100", "mg"})
    assert words_below(UNSURE_OF_A_DOSE, 0.6) == frozenset({"aspirin", "100"})
    assert words_below((), 0.6) is None


@pytest.mark.parametrize(("probability", "said"), [(0.76, Verdict.REVIEW), (0.74, Verdict.LOW_CONFIDENCE)])
def test_a_page_of_which_a_model_is_unsure_is_doubtful(probability: float, said: Verdict) -> None:
    sure = tokens(("Take", probability), (" ", probability), ("100", 0.5), (" mg", probability**2 / 0.5))
    assert judged(Generation(text="Take 100 mg", verdict=Verdict.OK, tokens=sure)).verdict is said


def test_markup_is_no_word_and_belongs_to_none() -> None:
    assert [doubt.text for doubt in doubtful(tokens(("| ", 0.1), ("**5.1**", 0.1), (" |\n", 0.1)))] == ["5.1"]


def test_spaces_of_any_script_are_no_part_of_a_word_and_a_name_ends_with_its_line() -> None:
    chinese = tokens(("青霉素", 0.9), ("500", 0.1), ("\u3000每日", 0.9))
    assert [doubt.text for doubt in doubtful(tokens(("**5.1**\u00a0", 0.1), ("mg", 0.9)))] == ["5.1"]
    assert [doubt.text for doubt in doubtful(chinese)] == ["青霉素500"]
    (doubt,) = doubtful(tokens(("Dr.\n  ", 0.9), ("Weiss", 0.1)))
    assert (doubt.text, doubt.on_value) == ("Weiss", False)


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


RECORDED = json.loads((Path(__file__).parents[1] / "shared" / "far_from_slips.json").read_text())
"""By what was on the page: text and log-probabilities of an answer of `tests/engine/reader`, a token a letter."""


@pytest.mark.parametrize("kind", RECORDED)
def test_what_a_model_makes_up_of_a_page_that_it_cannot_read_is_not_ok(kind: str) -> None:
    text, logged = RECORDED[kind]
    tokens = tuple(zip([*text, "<|im_end|>"], logged, strict=False))
    came_to_its_end = Generation(text=text, verdict=Verdict.OK, tokens=tokens)
    assert judged(came_to_its_end).verdict.needs_review
