"""LLaVA-NeXT and LLaVA-NeXT-Video: one tile of the whole picture, and the best-fitting canvas without its padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil, inf

from pecia_workers.batching.cost.base import CheckpointError, Clip, TextTokens
from pecia_workers.batching.cost.checkpoint import ProcessorFiles
from pecia_workers.batching.cost.counter import FamilyCounter

_CANVASES = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a picture is cut into tiles; there are no markers around it."""

    tile_side: int
    """Pixels."""
    grid_side: int
    """Patches on a side of a tile."""
    base_tokens: int
    """Tokens of the picture as a whole."""
    canvases: tuple[tuple[int, int], ...]
    """Allowed (height, width) in pixels."""
    pool_stride: int
    """Patches on a side of what becomes one token of a frame."""


def counter(files: ProcessorFiles, _: TextTokens) -> FamilyCounter:
    """Return the count for a LLaVA-NeXT checkpoint, which takes pictures alone."""
    return FamilyCounter(family=files.model_type, image=partial(image_tokens, read_settings(files)))


def video_counter(files: ProcessorFiles, _: TextTokens) -> FamilyCounter:
    """Return the count for a LLaVA-NeXT-Video checkpoint; vLLM takes one clip in a request and no picture."""
    settings = read_settings(files)
    return FamilyCounter(
        family=files.model_type,
        image=partial(image_tokens, settings),
        video=partial(video_tokens, settings),
    )


def read_settings(files: ProcessorFiles) -> Settings:
    """Return the settings, from config.json alone as vLLM has it.

    Source: vLLM `model_executor/models/llava_next.py::get_num_image_tokens` and `vision.py::VisionEncoderInfo`;
    defaults of transformers `models/llava_next/configuration_llava_next.py`.
    """
    vision = files.config.get("vision_config") or {}
    encoder = vision.get("model_type", "clip_vision_model")
    if encoder not in _CLASS_TOKENS:
        message = (
            f"config.json names the vision encoder {encoder!r}; known: {', '.join(sorted(_CLASS_TOKENS))}."
        )
        raise CheckpointError(message)
    tile_side = vision.get("image_size", 336)
    grid_side = tile_side // vision.get("patch_size", 14)
    dropped = 1 if files.config.get("vision_feature_select_strategy", "default") == "default" else 0
    return Settings(
        tile_side=tile_side,
        grid_side=grid_side,
        base_tokens=grid_side**2 + _CLASS_TOKENS[encoder] - dropped,
        canvases=tuple(
            (height, width) for height, width in files.config.get("image_grid_pinpoints") or _CANVASES
        ),
        pool_stride=files.config.get("spatial_pool_stride", 2),
    )


def image_tokens(settings: Settings, width: int, height: int) -> int:
    """Return the tokens of one picture: the whole, the rows of the canvas that are no padding, one newline per row.

    Source: vLLM `model_executor/models/llava_next.py::_get_num_unpadded_features`.
    """
    canvas_height, canvas_width = best_canvas(settings, width, height)
    rows = settings.grid_side * (canvas_height // settings.tile_side)
    columns = settings.grid_side * (canvas_width // settings.tile_side)
    if width / height > columns / rows:
        used = int(round(height * (columns / width), 7))
        rows -= (rows - used) // 2 * 2
    else:
        used = int(round(width * (rows / height), 7))
        columns -= (columns - used) // 2 * 2
    return settings.base_tokens + rows * columns + rows


def video_tokens(settings: Settings, clip: Clip) -> int:
    """Return the tokens of one clip: each frame is a single tile, pooled.

    Source: vLLM `model_executor/models/llava_next_video.py::_get_num_frame_tokens`.
    """
    return clip.frames * ceil(settings.grid_side / settings.pool_stride) ** 2


def best_canvas(settings: Settings, width: int, height: int) -> tuple[int, int]:
    """Return the (height, width) that keeps most of the picture's pixels and, among equals, wastes the fewest.

    Source: transformers `image_processing_utils.py::select_best_resolution`.
    """
    best, most_kept, least_wasted = settings.canvases[0], 0, inf
    for canvas_height, canvas_width in settings.canvases:
        scale = min(canvas_width / width, canvas_height / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = canvas_height * canvas_width - kept
        if kept > most_kept or (kept == most_kept and wasted < least_wasted):
            best, most_kept, least_wasted = (canvas_height, canvas_width), kept, wasted
    return best
