"""Qwen3-VL and Qwen3.5: a token for each 32 x 32 px; a clip is bounded as a whole and carries time stamps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil, floor, sqrt

from pecia_workers.batching.cost.base import Clip, RefusedSizeError, TextTokens
from pecia_workers.batching.cost.checkpoint import ProcessorFiles
from pecia_workers.batching.cost.counter import FamilyCounter
from pecia_workers.batching.cost.qwen2_vl import (
    FLOOR_MARGIN,
    MARKERS,
    ClipSettings,
    check_aspect,
    image_settings,
    image_tokens,
    kept_tokens,
    pixel_limits,
)


def counter(files: ProcessorFiles, text_tokens: TextTokens) -> FamilyCounter:
    """Return the count for a Qwen3-VL or Qwen3.5 checkpoint: pictures go through Qwen2-VL's own image processor."""
    return FamilyCounter(
        family=files.model_type,
        image=partial(image_tokens, image_settings(files)),
        video=partial(video_tokens, video_settings(files), text_tokens),
    )


def video_settings(files: ProcessorFiles) -> ClipSettings:
    """Return the clip's settings; the pixel limits hold for all frames together.

    Source of the defaults: transformers `models/qwen3_vl/video_processing_qwen3_vl.py::Qwen3VLVideoProcessor`. An
    unset `cap_pixels_per_frame` means no cap, as in transformers before 5.22.
    """
    values = {**files.video, **files.video_overrides}
    least, most = pixel_limits(files.video, files.video_overrides, (128 * 32 * 32, 32 * 32 * 768))
    return ClipSettings(
        unit=values.get("patch_size", 16) * values.get("merge_size", 2),
        least_pixels=least,
        most_pixels=most,
        frames_per_token=values.get("temporal_patch_size", 2),
        capped=bool(values.get("cap_pixels_per_frame")),
        most_video_tokens=values.get("max_video_tokens", 768),
        pruned=files.video_pruning_rate,
    )


def video_tokens(settings: ClipSettings, text_tokens: TextTokens, clip: Clip) -> int:
    """Return the tokens of one clip: for each group of frames its time, markers and picture, and markers around all.

    Source: vLLM `model_executor/models/qwen3_vl.py::get_video_repl`; transformers
    `models/qwen3_vl/processing_qwen3_vl.py::replace_video_token`.
    """
    rows, columns = token_grid(settings, clip)
    groups = ceil(clip.frames / settings.frames_per_token)
    stamps = sum(text_tokens(f"<{time:.1f} seconds>") for time in _times(clip, settings.frames_per_token))
    return kept_tokens(groups, rows * columns, settings.pruned) + groups * MARKERS + stamps + MARKERS


def token_grid(settings: ClipSettings, clip: Clip) -> tuple[int, int]:
    """Return the rows and columns of tokens of each group of frames. Raises `RefusedSizeError`.

    Source: `smart_resize` and `resize` in transformers `models/qwen3_vl/video_processing_qwen3_vl.py`.
    """
    frames, width, height, unit = clip.frames, clip.width, clip.height, settings.unit
    if frames < settings.frames_per_token:
        message = f"A clip of {frames} frames is refused: it takes {settings.frames_per_token} or more."
        raise RefusedSizeError(message)
    if height < unit or width < unit:
        grow = max(unit / height, unit / width)
        height, width = int(height * grow), int(width * grow)
    check_aspect(width, height)
    rows, columns = round(height / unit), round(width / unit)
    even = round(frames / settings.frames_per_token) * settings.frames_per_token
    pixels, most = even * rows * columns * unit * unit, _most_pixels(settings, frames)
    if pixels > most:
        shrink = sqrt(frames * height * width / most)
        return max(1, floor(height / shrink / unit)), max(1, floor(width / shrink / unit))
    if pixels < settings.least_pixels:
        stretch = sqrt(settings.least_pixels / (frames * height * width))
        return ceil(height * stretch / unit), ceil(width * stretch / unit)
    return rows, columns


def _most_pixels(settings: ClipSettings, frames: int) -> int:
    if not settings.capped:
        return settings.most_pixels
    share = min(settings.most_video_tokens * settings.unit * settings.unit, settings.most_pixels // frames)
    return max(share, int(settings.least_pixels * FLOOR_MARGIN)) * frames


def _times(clip: Clip, group: int) -> Iterator[float]:
    """Yield the seconds that stand before each group: the mean of its first and last frame.

    Source: vLLM `model_executor/models/qwen3_vl.py::_calculate_timestamps`.
    """
    indices = [*clip.indices, *[clip.indices[-1]] * (-clip.frames % group)]
    for first in range(0, len(indices), group):
        yield (indices[first] / clip.fps + indices[first + group - 1] / clip.fps) / 2
