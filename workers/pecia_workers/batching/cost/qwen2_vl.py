"""Qwen2-VL and Qwen2.5-VL: patches of 14 px merged 2 x 2, so a token for each 28 x 28 px of the resized picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, sqrt
from typing import Any

from pecia_workers.batching.cost.base import Clip, RefusedSizeError, TextTokens
from pecia_workers.batching.cost.checkpoint import ProcessorFiles
from pecia_workers.batching.cost.counter import FamilyCounter

MARKERS = 2
"""`<|vision_start|>` and `<|vision_end|>`, which the chat template puts around every picture and clip."""
FLOOR_MARGIN = 1.05
"""A capped frame keeps so many times the least pixels."""
_MOST_ASPECT = 200
_BUDGET_SHARE = 0.9  # of the assumed context that a clip may take


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSettings:
    """How a picture is resized."""

    unit: int
    """Pixels on a side of what becomes one token."""
    least_pixels: int
    most_pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSettings(PictureSettings):
    """How the frames of a clip are resized and merged."""

    frames_per_token: int
    capped: bool
    """Whether the clip's total bounds each frame (`cap_pixels_per_frame`)."""
    most_video_tokens: int
    """What that total is derived from."""
    pruned: float
    """Share of the clip's tokens that the engine drops."""


def counter(files: ProcessorFiles, _: TextTokens) -> FamilyCounter:
    """Return the count for a Qwen2-VL or Qwen2.5-VL checkpoint."""
    return FamilyCounter(
        family=files.model_type,
        image=partial(image_tokens, image_settings(files)),
        video=partial(video_tokens, video_settings(files)),
    )


def image_settings(files: ProcessorFiles) -> PictureSettings:
    """Return the picture's settings.

    Source of the defaults: transformers `models/qwen2_vl/image_processing_qwen2_vl.py::Qwen2VLImageProcessor`.
    """
    values = {**files.image, **files.image_overrides}
    least, most = pixel_limits(files.image, files.image_overrides, (56 * 56, 28 * 28 * 1280))
    return PictureSettings(
        unit=values.get("patch_size", 14) * values.get("merge_size", 2), least_pixels=least, most_pixels=most
    )


def video_settings(files: ProcessorFiles) -> ClipSettings:
    """Return the clip's settings.

    Source of the defaults: transformers `models/qwen2_vl/video_processing_qwen2_vl.py::Qwen2VLVideoProcessor`. An
    unset `cap_pixels_per_frame` means no cap, as in transformers before 5.22.
    """
    values = {**files.video, **files.video_overrides}
    least, most = pixel_limits(files.video, files.video_overrides, (128 * 28 * 28, 28 * 28 * 768))
    return ClipSettings(
        unit=values.get("patch_size", 14) * values.get("merge_size", 2),
        least_pixels=least,
        most_pixels=most,
        frames_per_token=values.get("temporal_patch_size", 2),
        capped=bool(values.get("cap_pixels_per_frame")),
        most_video_tokens=values.get("max_video_tokens", 128_000),
        pruned=0.0 if files.model_type == "qwen2_vl" else files.video_pruning_rate,  # vLLM prunes from 2.5 on
    )


def pixel_limits(
    own: Mapping[str, Any], overrides: Mapping[str, Any], default: tuple[int, int]
) -> tuple[int, int]:
    """Return the least and the most pixels; both spellings are in use, and in each place the older one wins.

    Source: `Qwen2VLImageProcessor.__init__` and `_standardize_kwargs` in the module above.
    """
    least, most = default
    for place in (own, overrides):
        size = place.get("size") or {}
        least = place.get("min_pixels") or size.get("shortest_edge") or least
        most = place.get("max_pixels") or size.get("longest_edge") or most
    return least, most


def image_tokens(settings: PictureSettings, width: int, height: int) -> int:
    """Return the tokens of one picture with its markers."""
    rows, columns = token_grid(settings, width, height, settings.most_pixels)
    return rows * columns + MARKERS


def video_tokens(settings: ClipSettings, clip: Clip) -> int:
    """Return the tokens of one clip with its markers; the last frame is repeated to fill the last group.

    Source: transformers `models/qwen2_vl/video_processing_qwen2_vl.py::resize` and `patchify`.
    """
    most = settings.most_pixels
    if settings.capped:
        total = int(settings.most_video_tokens * settings.unit * settings.unit * _BUDGET_SHARE)
        share = total * settings.frames_per_token // clip.frames
        most = max(min(most, share), int(settings.least_pixels * FLOOR_MARGIN))
    rows, columns = token_grid(settings, clip.width, clip.height, most)
    return (
        kept_tokens(ceil(clip.frames / settings.frames_per_token), rows * columns, settings.pruned) + MARKERS
    )


def kept_tokens(groups: int, group_tokens: int, pruned: float) -> int:
    """Return the tokens of a clip that are left when the share `pruned` is dropped; those of one group always stay.

    Source: vLLM `multimodal/video_prune/evs.py::compute_retained_tokens_count`.
    """
    return max(group_tokens, int(groups * group_tokens * (1 - pruned)))


def token_grid(settings: PictureSettings, width: int, height: int, most_pixels: int) -> tuple[int, int]:
    """Return the rows and columns of tokens. Raises `RefusedSizeError` if one side is over 200 times the other.

    Source: transformers `models/qwen2_vl/image_processing_qwen2_vl.py::smart_resize`.
    """
    check_aspect(width, height)
    unit = settings.unit
    rows, columns = round(height / unit), round(width / unit)
    pixels = rows * columns * unit * unit
    if pixels > most_pixels:
        shrink = sqrt(height * width / most_pixels)
        return max(1, floor(height / shrink / unit)), max(1, floor(width / shrink / unit))
    if pixels < settings.least_pixels:
        grow = sqrt(settings.least_pixels / (height * width))
        return ceil(height * grow / unit), ceil(width * grow / unit)
    return rows, columns


def check_aspect(width: int, height: int) -> None:
    """Raise `RefusedSizeError` if one side is over 200 times the other."""
    if max(width, height) / min(width, height) > _MOST_ASPECT:
        message = (
            f"A picture of {width} x {height} px is refused: one side is over {_MOST_ASPECT} times the other."
        )
        raise RefusedSizeError(message)
