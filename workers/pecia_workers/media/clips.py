"""What media hands on of a video: first by its length and size, then stretch by stretch as frames."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pecia_schemas.settings import WorkerSettings

Method = Literal["uniform", "fps", "scene"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoInfo:
    """A video that is not decoded yet, as its headers describe it."""

    duration: float
    """Seconds."""
    fps: float
    """Frames per second, on average."""
    width: int
    """Pixels as they are coded; a video that is turned for display swaps both."""
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a video, in seconds from its first frame."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The frames that were chosen from a stretch, upright, in the order of time."""

    frames: NDArray[np.uint8]
    """RGB, frames x height x width x 3."""
    times: tuple[float, ...]
    """When each is shown, in seconds from the video's first frame."""
    fps: float
    """Of the source, on average."""
    damaged: bool = False
    """The file breaks off or is broken within the stretch; these are the frames that could be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePlan:
    """Which frames of a stretch are taken, and how large."""

    method: Method
    most: int
    fps: float
    """Frames for each second, for the method `fps`."""
    pixels: int
    """Of all frames of a stretch together."""

    @classmethod
    def of(cls, settings: WorkerSettings) -> FramePlan:
        """Return the plan that the fleet's settings name."""
        return cls(
            method=settings.video_sampling,
            most=settings.video_frames,
            fps=settings.video_fps,
            pixels=settings.video_pixels,
        )

    def count(self, stretch: Stretch, rate: float) -> int:
        """Return how many frames a stretch of a video with so many frames per second gives at most."""
        there = max(1, round(stretch.length * rate))
        asked = max(1, round(stretch.length * self.fps)) if self.method == "fps" else self.most
        return min(there, asked, self.most)

    def size(self, frames: int, width: int, height: int) -> tuple[int, int]:
        """Return width and height that so many frames of this size are scaled to: even, never enlarged."""
        scale = min(1.0, math.sqrt(self.pixels / (frames * width * height)))
        return _even(width * scale, width), _even(height * scale, height)


def spread(stretch: Stretch, count: int) -> tuple[float, ...]:
    """Return the middles of `count` equal pieces of the stretch, in seconds."""
    return tuple(stretch.start + (index + 0.5) * stretch.length / count for index in range(count))


def _even(wanted: float, most: int) -> int:
    return min(most, max(2, 2 * math.floor(wanted / 2)))
