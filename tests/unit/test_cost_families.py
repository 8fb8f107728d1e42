import json
import re
import shutil
from pathlib import Path

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

A4_200 = (1654, 2339)
A4_300 = (2480, 3508)
A4_1288 = (911, 1288)
LETTER_300 = (2550, 3300)
RECEIPT = (463, 1013)
PHOTO = (4032, 3024)
PAGES = (A4_200, A4_300, A4_1288, LETTER_300, RECEIPT, PHOTO)


def text_tokens(text: str) -> int:
    """Count as the published tokenizers do: a marker, a run of line breaks, a digit, a word."""
    return len(re.findall(r"</?[a-z][a-z0-9_-]*>|\n+|\d| ?[A-Za-z]+|.", text))


def counter(family: str, **overrides: object) -> TokenCounter:
    return counter_for(CHECKPOINTS / family, overrides, text_tokens=text_tokens)


@pytest.mark.parametrize(
    ("family", "markers", "expected"),
    [
        ("qwen2_vl", 2, (4956, 11125, 1518, 10738, 612, 15552)),
        ("qwen2_5_vl", 2, (4956, 11125, 1518, 10738, 612, 15552)),
        ("qwen3_vl", 2, (3796, 8580, 1120, 8240, 448, 11844)),
        ("internvl_chat", 2, (1792, 1792, 1792, 3328, 768, 3328)),
        ("internvl", 2, (1792, 1792, 1792, 3328, 768, 3328)),
        ("llava_next", 0, (2256, 2256, 2256, 2448, 1876, 2340)),
        ("gemma3", 3, (256, 256, 256, 256, 256, 256)),
    ],
)
def test_a_page_costs_what_the_published_checkpoint_makes_of_it(
    family: str, markers: int, expected: tuple[int, ...]
) -> None:
    found = tuple(counter(family).image_tokens(*page) for page in PAGES)

    assert found == tuple(pixels + markers for pixels in expected)


def test_a_page_costs_smolvlm_its_tiles_with_their_names_and_line_breaks() -> None:
    tiles = {
        A4_200: (4, 3),
        A4_300: (4, 3),
        A4_1288: (4, 3),
        LETTER_300: (4, 4),
        RECEIPT: (4, 2),
        PHOTO: (3, 4),
    }
    pixels = (832, 832, 832, 1088, 576, 832)
    names = (2 * rows * columns + rows + 3 for rows, columns in tiles.values())

    found = tuple(counter("smolvlm").image_tokens(*page) for page in tiles)

    assert found == tuple(map(sum, zip(pixels, names, strict=True)))


def test_the_engines_own_pixel_limit_is_counted() -> None:
    capped = counter("qwen2_5_vl", max_pixels=1280 * 28 * 28)

    found = [capped.image_tokens(*page) - 2 for page in PAGES]

    assert found == [1260, 1260, 1260, 1240, 612, 1230]


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


CLIPS = ((320, 180), (1280, 720), (1920, 1080))


@pytest.mark.parametrize(
    ("family", "markers", "expected"),
    [
        ("qwen2_5_vl", 2, (1056, 19136, 43056)),
        ("llava_next_video", 0, (4608, 4608, 4608)),
    ],
)
def test_a_clip_costs_what_the_published_checkpoint_makes_of_it(
    family: str, markers: int, expected: tuple[int, ...]
) -> None:
    found = tuple(counter(family).video_tokens(32, *size, 2.0) for size in CLIPS)

    assert found == tuple(pixels + markers for pixels in expected)


def test_a_clip_costs_qwen3_its_frames_with_a_time_before_each_pair() -> None:
    stamps = sum(text_tokens(f"<{pair + 0.25:.1f} seconds>") for pair in range(16))

    found = [counter("qwen3_vl").video_tokens(32, *size, 2.0) for size in CLIPS]

    assert found == [pixels + 16 * 2 + stamps + 2 for pixels in (960, 11520, 11520)]


def test_the_times_of_a_clip_follow_the_frames_positions_in_their_source() -> None:
    count = counter("qwen3_vl")

    early = count.video_tokens(4, 320, 180, 1.0)
    late = count.video_tokens(4, 320, 180, 1.0, indices=(1000, 1001, 1002, 1003))

    assert late == early + 2 * 3  # three more digits in each of two times


def test_the_time_before_a_pair_of_frames_is_the_mean_of_both() -> None:
    count = counter("qwen3_vl")

    at_ten_seconds = count.video_tokens(2, 320, 180, 1.0, indices=(8, 12))

    assert at_ten_seconds == count.video_tokens(2, 320, 180, 1.0, indices=(6, 8)) + 1  # one more digit


@pytest.mark.parametrize(("family", "dropped"), [("qwen2_vl", 0), ("qwen2_5_vl", 9568), ("qwen3_vl", 5760)])
def test_the_tokens_that_the_engine_drops_from_a_clip_are_not_counted(family: str, dropped: int) -> None:
    pruned = counter_for(CHECKPOINTS / family, text_tokens=text_tokens, video_pruning_rate=0.5)

    assert counter(family).video_tokens(32, 1280, 720, 2.0) - dropped == pruned.video_tokens(
        32, 1280, 720, 2.0
    )


@pytest.mark.parametrize(("family", "separators"), [("internvl_chat", 0), ("internvl", 31)])
def test_a_clip_costs_internvl_a_named_tile_for_each_frame(family: str, separators: int) -> None:
    names = sum(text_tokens(f"Frame{number}: <img></img>") for number in range(1, 33))

    assert counter(family).video_tokens(32, 1280, 720, 2.0) == 32 * 256 + names + separators


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


@pytest.mark.parametrize("family", ["internvl_chat", "internvl"])
def test_internvl_cuts_a_large_square_into_more_tiles_and_gives_a_small_one_without_thumbnail(
    family: str,
) -> None:
    assert counter(family).image_tokens(448, 448) == 256 + 2
    assert counter(family).image_tokens(2000, 2000) == (3 * 3 + 1) * 256 + 2


def test_the_order_in_which_a_checkpoint_lists_its_canvases_changes_nothing(tmp_path: Path) -> None:
    config = json.loads((CHECKPOINTS / "llava_next" / "config.json").read_text())
    config["image_grid_pinpoints"].sort(key=lambda canvas: -canvas[0] * canvas[1])
    (tmp_path / "config.json").write_text(json.dumps(config))
    largest_first = counter_for(tmp_path)

    for size in (*PAGES, (100, 300), (300, 100)):
        assert largest_first.image_tokens(*size) == counter("llava_next").image_tokens(*size)


def test_pan_and_scan_costs_a_long_page_its_crops_and_the_words_around_them() -> None:
    plain = counter("gemma3").image_tokens(900, 2700)

    cropped = counter("gemma3", do_pan_and_scan=True).image_tokens(900, 2700)

    assert plain == 256 + 3
    assert 4 * 256 < cropped - plain + 256 < 4 * 256 + 50


def test_a_family_that_is_not_known_is_named_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mystery_vl"}')

    with pytest.raises(UnknownFamilyError, match="mystery_vl") as caught:
        counter_for(tmp_path)

    assert set(FAMILIES) <= set(caught.value.known)


def test_a_directory_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path))):
        counter_for(tmp_path)


def test_a_checkpoint_that_lacks_what_its_cost_needs_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "internvl_chat", "vision_config": {"image_size": 448}}'
    )

    with pytest.raises(CheckpointError, match="patch_size"):
        counter_for(tmp_path)


def test_a_line_of_two_hundred_times_its_height_is_refused_as_the_processor_refuses_it() -> None:
    counter("qwen2_5_vl").image_tokens(20_000, 100)
    with pytest.raises(RefusedSizeError):
        counter("qwen2_5_vl").image_tokens(20_001, 100)


def test_a_clip_needs_an_index_for_each_frame() -> None:
    with pytest.raises(ValueError, match="4 frames but 2 indices"):
        counter("qwen3_vl").video_tokens(4, 320, 180, 2.0, indices=(0, 1))
