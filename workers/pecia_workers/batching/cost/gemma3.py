"""Gemma 3: 256 tokens a picture, whatever its size; crops of long pictures only where pan-and-scan is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil, floor

from pecia_workers.batching.cost.base import TextTokens
from pecia_workers.batching.cost.checkpoint import ProcessorFiles
from pecia_workers.batching.cost.counter import FamilyCounter

_BEFORE = "\n"
_PICTURE = "\n\n<start_of_image><end_of_image>\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a picture is cropped."""

    tokens_per_crop: int
    pan_and_scan: bool
    least_crop_side: int
    """Pixels."""
    most_crops: int
    least_aspect: float
    """Long side over short side from which a picture is cropped."""


def counter(files: ProcessorFiles, text_tokens: TextTokens) -> FamilyCounter:
    """Return the count for a Gemma 3 checkpoint; it takes frames as pictures."""
    return FamilyCounter(
        family=files.model_type, image=partial(image_tokens, read_settings(files), text_tokens)
    )


def read_settings(files: ProcessorFiles) -> Settings:
    """Return the settings; only the engine's overrides switch on pan-and-scan, whatever preprocessor_config.json says.

    Source: transformers `models/gemma3/processing_gemma3.py::Gemma3ProcessorKwargs`, whose defaults go before the file.
    """
    overrides = files.image_overrides
    return Settings(
        tokens_per_crop=files.processor.get("image_seq_length", 256),
        pan_and_scan=bool(overrides.get("do_pan_and_scan")),
        least_crop_side=overrides.get("pan_and_scan_min_crop_size", 256),
        most_crops=overrides.get("pan_and_scan_max_num_crops", 4),
        least_aspect=overrides.get("pan_and_scan_min_ratio_to_activate", 1.2),
    )


def image_tokens(settings: Settings, text_tokens: TextTokens, width: int, height: int) -> int:
    """Return the tokens of one picture with its markers and line breaks, first in its message or after another picture.

    There a line break stands before it, which the tokenizer joins with the picture's own two; after a word the picture
    adds one token more. Source: vLLM `model_executor/models/gemma3_mm.py::get_image_repl`, `_apply_token_matches`.
    """
    crops = crop_count(settings, width, height)
    text = _BEFORE + _markup(crops)
    return text_tokens(text) - text_tokens(_BEFORE) + (crops + 1) * settings.tokens_per_crop


def crop_count(settings: Settings, width: int, height: int) -> int:
    """Return how many crops are given beside the whole picture.

    Source: vLLM `model_executor/models/gemma3_mm.py::get_num_crops`.
    """
    long, short = max(width, height), min(width, height)
    if not settings.pan_and_scan or long / short < settings.least_aspect:
        return 0
    crops = min(floor(long / settings.least_crop_side), floor(long / short + 0.5))
    crops = min(settings.most_crops, max(2, crops))
    return crops if min(ceil(long / crops), short) >= settings.least_crop_side else 0


def _markup(crops: int) -> str:
    """Return the text that stands for the picture, without the tokens of its pixels."""
    if not crops:
        return _PICTURE
    more = " ".join([_PICTURE] * crops)
    return f"Here is the original image {_PICTURE} and here are some crops to help you see better {more}"
