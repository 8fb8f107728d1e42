"""InternVL: tiles of 448 px in the grid whose aspect is closest, plus a thumbnail; 256 tokens each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf

from pecia_workers.batching.cost.base import CheckpointError, Clip, TextTokens
from pecia_workers.batching.cost.checkpoint import ProcessorFiles
from pecia_workers.batching.cost.counter import FamilyCounter

MARKERS = 2
"""`<img>` and `</img>` around every picture and frame."""
_CHAT_VIDEO_TEXT_MODELS = frozenset({"qwen2", "qwen3", "qwen3_moe", "gpt_oss"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a picture is cut into tiles."""

    tile_area: int
    """Pixels of one tile."""
    tokens_per_tile: int
    grids: tuple[tuple[int, int], ...]
    """Allowed (columns, rows), fewest tiles first."""
    thumbnail: bool
    """Whether a picture of several tiles is also given as a whole."""


def chat_counter(files: ProcessorFiles, text_tokens: TextTokens) -> FamilyCounter:
    """Return the count for a checkpoint in OpenGVLab's own format (`internvl_chat`).

    Source of which can take video: vLLM `model_executor/models/internvl.py::ctx_video_token`.
    """
    settings = chat_settings(files)
    text_model = files.config.get("llm_config") or files.config.get("text_config") or {}
    video = partial(video_tokens, settings, text_tokens, "")
    return FamilyCounter(
        family=files.model_type,
        image=partial(image_tokens, settings),
        video=video if text_model.get("model_type") in _CHAT_VIDEO_TEXT_MODELS else None,
    )


def counter(files: ProcessorFiles, text_tokens: TextTokens) -> FamilyCounter:
    """Return the count for a checkpoint in transformers' format (`internvl`), whose frames stand on lines of their own.

    Source: vLLM `model_executor/models/interns1.py::get_replacement_interns1_video`.
    """
    settings = converted_settings(files)
    return FamilyCounter(
        family=files.model_type,
        image=partial(image_tokens, settings),
        video=partial(video_tokens, settings, text_tokens, "\n"),
    )


def chat_settings(files: ProcessorFiles) -> Settings:
    """Return the settings of `internvl_chat`: they stand in config.json.

    Source: vLLM `model_executor/models/internvl.py::InternVLProcessingInfo`.
    """
    values = {**files.config, **files.image_overrides}
    try:
        vision = values["vision_config"]
        side = values.get("image_size", vision["image_size"])
        tokens = int((side // vision["patch_size"]) ** 2 * values["downsample_ratio"] ** 2)
        tiles = (values["min_dynamic_patch"], values["max_dynamic_patch"])
        dynamic, thumbnail = values["dynamic_image_size"], values["use_thumbnail"]
    except KeyError as error:
        message = f"config.json of an internvl_chat checkpoint must say {error}."
        raise CheckpointError(message) from error
    return Settings(
        tile_area=side * side,
        tokens_per_tile=tokens,
        grids=_grids(*(tiles if dynamic else (1, 1))),
        thumbnail=thumbnail,
    )


def converted_settings(files: ProcessorFiles) -> Settings:
    """Return the settings of `internvl`; tiles are cut unless the engine is told otherwise, whatever the files say.

    Source: transformers `models/got_ocr2/image_processing_got_ocr2.py` and the defaults that
    `models/internvl/processing_internvl.py::InternVLProcessorKwargs` passes to it.
    """
    values = {**files.image, "crop_to_patches": True, **files.image_overrides}
    size = values.get("size") or {"height": 384, "width": 384}
    cut = values["crop_to_patches"]
    return Settings(
        tile_area=size["height"] * size["width"],
        tokens_per_tile=files.processor.get("image_seq_length", 256),
        grids=_grids(values.get("min_patches", 1), values.get("max_patches", 12)) if cut else ((1, 1),),
        thumbnail=True,
    )


def image_tokens(settings: Settings, width: int, height: int) -> int:
    """Return the tokens of one picture with its markers.

    Source: vLLM `transformers_utils/processors/internvl.py::calculate_internvl_targets`.
    """
    columns, rows = closest_grid(settings, width, height)
    tiles = columns * rows
    whole = 1 if settings.thumbnail and tiles > 1 else 0
    return (tiles + whole) * settings.tokens_per_tile + MARKERS


def video_tokens(settings: Settings, text_tokens: TextTokens, separator: str, clip: Clip) -> int:
    """Return the tokens of one clip: a tile for each frame, with its name and markers.

    Source: vLLM `transformers_utils/processors/internvl.py::get_video_repl`.
    """
    frames = separator.join(f"Frame{number + 1}: <img></img>" for number in range(clip.frames))
    return clip.frames * settings.tokens_per_tile + text_tokens(frames)


def closest_grid(settings: Settings, width: int, height: int) -> tuple[int, int]:
    """Return the (columns, rows) whose aspect is closest; among equals the largest that the picture half fills.

    Source: vLLM `transformers_utils/processors/internvl.py::find_closest_aspect_ratio`.
    """
    aspect, area = width / height, width * height
    best, best_distance = (1, 1), inf
    for columns, rows in settings.grids:
        distance = abs(aspect - columns / rows)
        half_filled = area > 0.5 * settings.tile_area * columns * rows
        if distance < best_distance or (distance == best_distance and half_filled):
            best, best_distance = (columns, rows), distance
    return best


def _grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    sides = range(1, most + 1)
    allowed = [(i, j) for i in sides for j in sides if fewest <= i * j <= most]
    return tuple(sorted(allowed, key=lambda grid: grid[0] * grid[1]))
