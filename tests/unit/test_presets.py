"""How a language model writes for a task."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia_schemas.tasks import CaptionStyle, CaptionVideo, GenerationOptions, Preset, ReadDocument
from pecia_workers.engines.base import Sampling
from pecia_workers.engines.reader_cards import presets, sampling_for

ANY_PRESET = st.sampled_from(Preset)
ANY_OPTIONS = st.builds(
    GenerationOptions,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    top_k=st.integers(0, 200),
    repetition_penalty=st.floats(0.5, 2),
    max_output_tokens=st.integers(1, 9_000),
    seed=st.integers(0, 99),
)


def caption(**how: Any) -> tuple[Sampling, int | None]:
    return sampling_for(CaptionVideo(b"", **how))


def page(**how: Any) -> tuple[Sampling, int | None]:
    return sampling_for(ReadDocument(b"", **how))


def test_every_preset_and_style_that_a_task_can_name_is_written_down() -> None:
    assert set(presets().presets) == set(Preset)
    assert set(presets().captions.tokens) == set(CaptionStyle)


def test_a_page_is_read_greedily_and_as_long_as_it_is() -> None:
    assert page() == (Sampling(), None)


@pytest.mark.parametrize("preset", Preset)
def test_no_preset_forbids_a_page_to_repeat_itself_or_cuts_it(preset: Preset) -> None:
    sampling, most = page(preset=preset)
    assert sampling.repetition_penalty == 1.0
    assert most is None


def test_a_caption_is_balanced_unless_it_says_otherwise() -> None:
    assert caption() == caption(preset="balanced")
    assert caption()[0].temperature == 0.7


@pytest.mark.parametrize(("bound", "most"), [(0, 256), (128, 128), (512, 256)])
def test_a_caption_is_no_longer_than_the_fleet_lets_it(bound: int, most: int) -> None:
    assert sampling_for(CaptionVideo(b""), caption_tokens=bound)[1] == most


def test_a_task_may_ask_for_more_than_the_fleet_would_give_by_itself() -> None:
    task = CaptionVideo(b"", options=GenerationOptions(max_output_tokens=900))
    assert sampling_for(task, caption_tokens=128)[1] == 900


@given(preset=ANY_PRESET)
def test_korean_captions_stay_within_their_bounds(preset: Preset) -> None:
    sampling, _ = caption(preset=preset, language="ko")
    assert 0.5 <= sampling.temperature <= 0.7
    assert 1.1 <= sampling.repetition_penalty <= 1.2
    assert page(preset=preset, language="ko") == page(preset=preset), "a page has no such bounds"


@given(preset=ANY_PRESET, options=ANY_OPTIONS, language=st.sampled_from(["en", "ko"]))
def test_what_a_task_says_itself_wins(preset: Preset, options: GenerationOptions, language: str) -> None:
    wanted = options.model_dump(exclude={"max_output_tokens"})
    for sampling, most in (
        page(preset=preset, options=options, language=language),
        caption(preset=preset, options=options, language=language),
    ):
        assert sampling == Sampling(**wanted)
        assert most == options.max_output_tokens


def test_what_a_task_leaves_out_stays_as_the_preset_says() -> None:
    sampling, most = caption(preset="creative", options=GenerationOptions(top_k=7))
    assert sampling == Sampling(temperature=1.0, top_p=0.95, top_k=7, repetition_penalty=1.2)
    assert most == 256
