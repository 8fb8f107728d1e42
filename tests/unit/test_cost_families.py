import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pecia_workers.batching.cost import (
    CheckpointError,
    NoVideoInputError,
    RefusedSizeError,
    TokenCounter,
    UnknownFamilyError,
    counter_for,
)

CHECKPOINTS = Path(__file__).parents[1] / "published_checkpoints"
FAMILIES = sorted(folder.name for folder in CHECKPOINTS.iterdir() if folder.is_dir())

A4_300 = (2480, 3508)
MARKERS, *TABLES = map(json.loads, (CHECKPOINTS / "token_counts.jsonl").read_text().splitlines())
"""What the families' own processors make of pictures and clips: tests/engine writes and checks it."""


def text_tokens(text: str) -> int:
    """Count as the tokenizer of the tables does: a marker, or a byte."""
    return len(re.sub("|".join(map(re.escape, MARKERS["markers"])), "x", text).encode())


def counter(family: str, **overrides: object) -> TokenCounter:
    return counter_for(CHECKPOINTS / family, overrides, text_tokens=text_tokens)


def counted(tokens: Callable[..., int], *arguments: float, **keywords: Any) -> int | None:
    try:
        return tokens(*arguments, **keywords)
    except RefusedSizeError:
        return None


def tables(of: str) -> list[Any]:
    return [
        pytest.param(table, id=" ".join((table["family"], *table["overrides"])))
        for table in TABLES
        if table["of"] == of
    ]


@pytest.mark.parametrize("table", tables("pictures"))
def test_a_picture_costs_what_the_familys_own_processor_makes_of_it(table: dict[str, Any]) -> None:
    count = counter(table["family"], **table["overrides"]).image_tokens

    assert [[*size, counted(count, *size)] for *size, _ in table["rows"]] == table["rows"]


@pytest.mark.parametrize("table", tables("clips"))
def test_a_clip_costs_what_the_familys_own_processor_makes_of_it(table: dict[str, Any]) -> None:
    count = counter(table["family"], **table["overrides"]).video_tokens

    for frames, width, height, fps, first, step, tokens in table["rows"]:
        indices = range(first, first + frames * step, step)
        assert counted(count, frames, width, height, fps, indices=indices) == tokens, (frames, width, height)


@pytest.mark.parametrize(
    "overrides",
    [
        {"max_pixels": 401408},
        {"size": {"shortest_edge": 3136, "longest_edge": 401408}},
        {"images_kwargs": {"max_pixels": 401408}},
        {"images_kwargs": {"max_pixels": 401408}, "max_pixels": 10_000_000},
    ],
)
def test_every_spelling_of_a_pixel_limit_means_the_same(overrides: dict[str, object]) -> None:
    assert counter("qwen2_5_vl", **overrides).image_tokens(*A4_300) == 494 + 2


@pytest.mark.parametrize(("family", "dropped"), [("qwen2_vl", 0), ("qwen2_5_vl", 9568), ("qwen3_vl", 5760)])
def test_the_tokens_that_the_engine_drops_from_a_clip_are_not_counted(family: str, dropped: int) -> None:
    pruned = counter_for(CHECKPOINTS / family, text_tokens=text_tokens, video_pruning_rate=0.5)

    assert counter(family).video_tokens(32, 1280, 720, 2.0) - dropped == pruned.video_tokens(
        32, 1280, 720, 2.0
    )


def test_a_clip_costs_internvl_chat_a_named_tile_for_each_frame() -> None:
    names = "".join(f"Frame{number}: <img></img>" for number in range(1, 33))

    assert counter("internvl_chat").video_tokens(32, 1280, 720, 2.0) == 32 * 256 + text_tokens(names)


def test_a_checkpoint_without_video_file_has_its_own_image_limits_apply_to_video(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "qwen2_5_vl", tmp_path, dirs_exist_ok=True)
    image = json.loads((tmp_path / "preprocessor_config.json").read_text())
    video = {name: value for name, value in image.items() if "pixels" not in name}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(video))

    limits_of_the_class = counter_for(tmp_path).video_tokens(32, 1920, 1080, 2.0)

    assert limits_of_the_class == 11520 + 2
    assert counter("qwen2_5_vl").video_tokens(32, 1920, 1080, 2.0) == 43056 + 2


def test_settings_saved_as_one_file_go_before_the_file_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "qwen2_5_vl", tmp_path, dirs_exist_ok=True)
    own = {"image_processor": {"min_pixels": 3136, "max_pixels": 401408, "patch_size": 14, "merge_size": 2}}
    (tmp_path / "processor_config.json").write_text(json.dumps(own))

    assert counter_for(tmp_path).image_tokens(*A4_300) == 494 + 2


@pytest.mark.parametrize("family", ["gemma3", "idefics3", "llava_next", "smolvlm"])
def test_a_family_without_video_input_says_so(family: str) -> None:
    assert not counter(family).takes_video
    with pytest.raises(NoVideoInputError, match=family):
        counter(family).video_tokens(8, 320, 180, 2.0)


def test_an_internvl_with_another_text_model_takes_no_video(tmp_path: Path) -> None:
    config = json.loads((CHECKPOINTS / "internvl_chat" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "llm_config": {"model_type": "internlm2"}}))

    assert not counter_for(tmp_path).takes_video
    assert counter("internvl_chat").takes_video


def test_the_order_in_which_a_checkpoint_lists_its_canvases_changes_nothing(tmp_path: Path) -> None:
    config = json.loads((CHECKPOINTS / "llava_next" / "config.json").read_text())
    config["image_grid_pinpoints"].sort(key=lambda canvas: -canvas[0] * canvas[1])
    (tmp_path / "config.json").write_text(json.dumps(config))
    largest_first = counter_for(tmp_path)

    for size in (A4_300, (100, 300), (300, 100)):
        assert largest_first.image_tokens(*size) == counter("llava_next").image_tokens(*size)


def test_a_family_that_is_not_known_is_named_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mystery_vl"}')

    with pytest.raises(UnknownFamilyError, match="mystery_vl") as caught:
        counter_for(tmp_path)

    assert set(FAMILIES) <= set(caught.value.known)


def test_a_directory_without_a_checkpoint_is_named_and_a_setting_that_one_lacks(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path))):
        counter_for(tmp_path)
    config = {"model_type": "internvl_chat", "vision_config": {"image_size": 448}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="patch_size"):
        counter_for(tmp_path)


def test_a_clip_needs_an_index_for_each_frame() -> None:
    with pytest.raises(ValueError, match="4 frames but 2 indices"):
        counter("qwen3_vl").video_tokens(4, 320, 180, 2.0, indices=(0, 1))
