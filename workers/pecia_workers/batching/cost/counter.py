"""A family's two formulas, or what its processor says of itself, behind the one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pecia_workers.batching.cost.base import Clip, NoVideoInputError, RefusedSizeError, TokenCounter
from pecia_workers.batching.cost.fitting import largest_fit

_REMEMBERED_SIZES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCounter:
    """The `TokenCounter` of every family."""

    family: str
    image: Callable[[int, int], int]
    """Tokens of a picture of (width, height)."""
    video: Callable[[Clip], int] | None = None
    """Tokens of a clip; None: the family has no video input, or nothing counts its clips."""
    by_processor: bool = False
    """Whether the checkpoint's processor counts, and no formula."""

    @property
    def takes_video(self) -> bool:
        """Whether clips can be counted."""
        return self.video is not None

    def image_tokens(self, width: int, height: int) -> int:
        """Return all tokens one picture adds to the prompt."""
        return self.image(width, height)

    def video_tokens(
        self, frames: int, width: int, height: int, fps: float, *, indices: Sequence[int] | None = None
    ) -> int:
        """Return all tokens one clip adds to the prompt."""
        if self.video is None:
            raise NoVideoInputError(self.family)
        if indices is not None and len(indices) != frames:
            message = f"There are {frames} frames but {len(indices)} indices."
            raise ValueError(message)
        positions = tuple(range(frames)) if indices is None else tuple(indices)
        return self.video(Clip(frames=frames, width=width, height=height, fps=fps, indices=positions))

    def fit_image(self, width: int, height: int, most_tokens: int) -> tuple[int, int]:
        """Return the largest size of the same aspect that adds at most `most_tokens`."""
        return largest_fit(self.image, width, height, most_tokens)


def processor_counter(processor: Any, family: str) -> TokenCounter | None:
    """Return a counter of pictures that asks the checkpoint's processor; None if it does not count.

    By transformers' own interface, `_get_num_multimodal_tokens`.

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
