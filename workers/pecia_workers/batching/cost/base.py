"""What every model family's count has in common: the interface, the clip, the errors.

CostError (ValueError)
├── CheckpointError        a processor file is missing or says nothing usable
├── UnknownFamilyError     no formula for this model type
├── NoVideoInputError      the family takes frames as single pictures
├── RefusedSizeError       the model's own processor refuses this size
└── TooManyTokensError     even the smallest version costs more than allowed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

TextTokens: TypeAlias = Callable[[str], int]
"""Tokens of a text, special tokens recognised and none added: what the checkpoint's own tokenizer says."""


class CostError(ValueError):
    """A cost could not be counted."""


class CheckpointError(CostError):
    """The checkpoint lacks what its cost is computed from; the message names the file."""


class UnknownFamilyError(CostError):
    """There is no token formula for this model type; the message names those known."""

    def __init__(self, model_type: str, known: Sequence[str]) -> None:
        super().__init__(
            f"Pecia has no token formula for the model type {model_type!r}. It knows: {', '.join(known)}."
        )
        self.model_type = model_type
        self.known = tuple(known)


class NoVideoInputError(CostError):
    """The family has no video input: send its frames as single pictures."""

    def __init__(self, family: str) -> None:
        super().__init__(f"{family} takes no video: send the frames as single pictures.")
        self.family = family


class RefusedSizeError(CostError):
    """The model's own processor refuses a picture or clip of this size."""


class TooManyTokensError(CostError):
    """No version of the picture that can still be read is cheap enough."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(f"The picture takes at least {least} tokens; {most} are allowed.")
        self.least = least
        self.most = most


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Frames of one size, as they are handed to the engine."""

    frames: int
    width: int
    height: int
    fps: float
    """Frames per second of what `indices` counts."""
    indices: tuple[int, ...]
    """Position of each frame in its source."""


class TokenCounter(Protocol):
    """Counts what pictures and clips add to a prompt. Sizes are in pixels, after EXIF rotation."""

    @property
    def family(self) -> str:
        """The model type that the checkpoint names."""
        ...

    @property
    def takes_video(self) -> bool:
        """Whether clips can be counted; if a formula cannot, the family has no video input: frames go as pictures."""
        ...

    @property
    def by_processor(self) -> bool:
        """Whether the checkpoint's processor counts, and no formula: it may not be the engine's own."""
        ...

    def image_tokens(self, width: int, height: int) -> int:
        """Return all tokens one picture adds, its markers included. Raises `RefusedSizeError`."""
        ...

    def video_tokens(
        self, frames: int, width: int, height: int, fps: float, *, indices: Sequence[int] | None = None
    ) -> int:
        """Return all tokens one clip adds, its markers and time stamps included.

        `indices` are the frames' positions in a source of `fps` frames per second, as the engine is told them;
        without them the frames are 0, 1, 2 … Raises `NoVideoInputError`, `RefusedSizeError`.
        """
        ...

    def fit_image(self, width: int, height: int, most_tokens: int) -> tuple[int, int]:
        """Return the largest (width, height) of the same aspect that adds at most `most_tokens`.

        Never larger than the picture. Raises `TooManyTokensError`, `RefusedSizeError`.
        """
        ...
