"""Idefics3 and SmolVLM: the picture is scaled to one longest edge and cut into square tiles, then given as a whole.

Every picture is scaled to that edge, small ones as well: its tokens follow from the aspect alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

from pecia_workers.batching.cost.base import TextTokens
from pecia_workers.batching.cost.checkpoint import ProcessorFiles
from pecia_workers.batching.cost.counter import FamilyCounter

_LONGEST_EVER = 4096  # pixels: transformers' absolute bound of the scaled picture
_FAKE = "<fake_token_around_image>"
_IMAGE = "<image>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a picture is scaled and cut."""

    longest_edge: int
    """Pixels of the scaled picture."""
    tile_side: int
    """Pixels."""
    tokens_per_tile: int
    split: bool


def counter(files: ProcessorFiles, text_tokens: TextTokens) -> FamilyCounter:
    """Return the count for an Idefics3 or SmolVLM checkpoint; vLLM takes their frames as pictures."""
    return FamilyCounter(
        family=files.model_type, image=partial(image_tokens, read_settings(files), text_tokens)
    )


def read_settings(files: ProcessorFiles) -> Settings:
    """Return the settings.

    Source of the defaults: transformers `models/idefics3/image_processing_idefics3.py::Idefics3ImageProcessor` and
    `processing_idefics3.py::Idefics3Processor`.
    """
    values = {**files.image, **files.image_overrides}
    return Settings(
        longest_edge=(values.get("size") or {}).get("longest_edge", 4 * 364),
        tile_side=(values.get("max_image_size") or {}).get("longest_edge", 364),
        tokens_per_tile=files.processor.get("image_seq_len", 169),
        split=values.get("do_image_splitting", True),
    )


def image_tokens(settings: Settings, text_tokens: TextTokens, width: int, height: int) -> int:
    """Return the tokens of one picture with its markers, line breaks and tile names.

    Source: vLLM `model_executor/models/idefics3.py::get_image_repl`.
    """
    rows, columns = tile_grid(settings, width, height)
    tiles = rows * columns + 1
    return text_tokens(_markup(rows, columns)) + tiles * (settings.tokens_per_tile - 1)


def tile_grid(settings: Settings, width: int, height: int) -> tuple[int, int]:
    """Return the rows and columns of tiles, (0, 0) if the picture is not cut.

    Source: `get_resize_output_image_size`, `resize_for_vision_encoder` and `split_images` in transformers
    `models/idefics3/image_processing_idefics3.py`.
    """
    if not settings.split:
        return 0, 0
    width, height = _scaled(settings.longest_edge, width, height)
    aspect, tile = width / height, settings.tile_side
    if width >= height:
        columns = ceil(width / tile)
        rows = ceil(int(columns * tile / aspect) / tile)
    else:
        rows = ceil(height / tile)
        columns = ceil(int(rows * tile * aspect) / tile)
    return (rows, columns) if max(rows, columns) > 1 else (0, 0)


def _scaled(longest_edge: int, width: int, height: int) -> tuple[int, int]:
    aspect = width / height
    if width >= height:
        width, height = longest_edge, int(longest_edge / aspect)
        height += height % 2
    else:
        width, height = int(longest_edge * aspect), longest_edge
        width += width % 2
    return _bounded(max(width, 1), max(height, 1))


def _bounded(width: int, height: int) -> tuple[int, int]:
    if max(width, height) <= _LONGEST_EVER:
        return width, height
    aspect = width / height
    if width >= height:
        return _LONGEST_EVER, max(1, int(_LONGEST_EVER / aspect))
    return max(1, int(_LONGEST_EVER * aspect)), _LONGEST_EVER


def _markup(rows: int, columns: int) -> str:
    """Return the text that stands for the picture, with one `<image>` for each tile."""
    names = (
        "".join(f"{_FAKE}<row_{row + 1}_col_{column + 1}>{_IMAGE}" for column in range(columns)) + "\n"
        for row in range(rows)
    )
    whole = f"{_FAKE}<global-img>{_IMAGE}{_FAKE}"
    return "".join(names) + ("\n" + whole if rows else whole)
