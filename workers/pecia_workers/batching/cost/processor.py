"""The count of a family without a formula: what its processor says of itself, by transformers' own interface."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from pecia_workers.batching.cost.base import RefusedSizeError, TokenCounter
from pecia_workers.batching.cost.counter import FamilyCounter

_REMEMBERED_SIZES: Final = 4096


def processor_counter(processor: Any, family: str) -> TokenCounter | None:
    """Return a counter of pictures that asks the checkpoint's processor; None if it does not count.

    What it counts is to be held against the engine before it is believed: an engine may have a processor of its own.
    """
    if not hasattr(processor, "_get_num_multimodal_tokens"):
        return None

    @lru_cache(maxsize=_REMEMBERED_SIZES)
    def image(width: int, height: int) -> int:
        try:
            counted = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])  # noqa: SLF001
            return int(counted["num_image_tokens"][0])
        except ValueError as error:
            message = f"{family} takes no picture of {width} x {height} pixels."
            raise RefusedSizeError(message) from error

    return FamilyCounter(family=family, image=image, by_processor=True)
