"""How an answer ended, when nothing but its tokens is told."""

from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.results import Verdict
from pecia_workers.engines.ray.engine import ending_of

END = 2
LOOP = list(range(10, 18)) * 12

tokens = st.lists(st.integers(3, 999), max_size=40)


@given(tokens)
def test_what_ends_by_itself_is_whole(answer: list[int]) -> None:
    assert ending_of([*answer, END], {END}) is Verdict.OK


@given(tokens)
def test_what_does_not_was_cut_off(answer: list[int]) -> None:
    assert ending_of(answer, {END}) is Verdict.TRUNCATED


@given(tokens)
def test_a_loop_is_told_from_a_text_that_was_cut(answer: list[int]) -> None:
    assert ending_of([*answer, *LOOP], {END}) is Verdict.REPETITION
    assert ending_of([*answer, *LOOP, END], {END}) is Verdict.OK
