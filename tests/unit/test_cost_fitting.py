from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_workers.batching.cost import RefusedSizeError, TokenCounter, TooManyTokensError, counter_for

CHECKPOINTS = Path(__file__).parents[1] / "published_checkpoints"
FAMILIES = sorted(folder.name for folder in CHECKPOINTS.iterdir() if folder.is_dir())
COUNTERS = {family: counter_for(CHECKPOINTS / family, text_tokens=len) for family in FAMILIES}

counters = st.sampled_from(FAMILIES).map(COUNTERS.__getitem__)
sides = st.integers(1, 3000)
budgets = st.integers(1, 20_000)


def fit(counter: TokenCounter, width: int, height: int, most_tokens: int) -> tuple[int, int] | None:
    try:
        return counter.fit_image(width, height, most_tokens)
    except (TooManyTokensError, RefusedSizeError):
        return None


@given(counters, sides, sides)
def test_every_picture_costs_something_or_is_refused(counter: TokenCounter, width: int, height: int) -> None:
    try:
        assert counter.image_tokens(width, height) > 0
    except RefusedSizeError:
        assert max(width, height) > 200 * min(width, height)


@given(counters, sides, sides, st.integers(2, 64))
def test_every_clip_costs_something(counter: TokenCounter, width: int, height: int, frames: int) -> None:
    if not counter.takes_video or max(width, height) > 100 * min(width, height):
        return

    assert counter.video_tokens(frames, width, height, 2.0) > 0


@given(counters, sides, sides, budgets)
def test_what_fits_keeps_to_the_budget_and_its_aspect_and_is_left_as_it_is_if_it_may(
    counter: TokenCounter, width: int, height: int, most_tokens: int
) -> None:
    size = fit(counter, width, height, most_tokens)
    if size is None:
        return

    assert counter.image_tokens(*size) <= most_tokens
    exact = (width * max(size) / max(width, height), height * max(size) / max(width, height))
    for fitted, before, wanted in zip(size, (width, height), exact, strict=True):
        assert fitted <= before
        assert abs(fitted - wanted) <= 0.5
    if max(width, height) <= 100 * min(width, height):
        assert (size == (width, height)) is (counter.image_tokens(width, height) <= most_tokens)


@given(counters, sides, sides, budgets, st.integers(0, 5000))
def test_more_budget_never_gives_a_smaller_picture(
    counter: TokenCounter, width: int, height: int, most_tokens: int, more: int
) -> None:
    small, large = fit(counter, width, height, most_tokens), fit(counter, width, height, most_tokens + more)
    if small is None:
        return

    assert large is not None
    assert large >= small


def test_a_large_page_is_shrunk_no_further_than_it_must() -> None:
    counter = COUNTERS["qwen2_5_vl"]

    width, height = counter.fit_image(2480, 3508, 4096)

    assert 4000 < counter.image_tokens(width, height) <= 4096
    assert (width, height) == (1497, 2118)


def test_a_picture_that_cannot_be_cheap_enough_says_what_it_takes_at_least() -> None:
    with pytest.raises(TooManyTokensError, match="at least 6 tokens; 5 are allowed") as caught:
        COUNTERS["qwen2_5_vl"].fit_image(2000, 2000, 5)

    assert (caught.value.least, caught.value.most) == (6, 5)


@pytest.mark.parametrize(
    ("family", "size", "most"),
    [("qwen2_5_vl", (4000, 40), 50), ("smolvlm", (1654, 2339), 500)],
    ids=["nothing could be read", "the cost follows the aspect alone"],
)
def test_a_picture_that_cannot_be_shrunk_is_refused(family: str, size: tuple[int, int], most: int) -> None:
    with pytest.raises(TooManyTokensError):
        COUNTERS[family].fit_image(*size, most)
