"""Requests that are more than an engine takes, made smaller until they fit: clips by frames, pictures by pixels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pecia_workers.engines.base import EngineRefusedError, EngineRequest

TRIES: Final = 8
"""How often a request is made smaller before it is refused."""
DOUBTFUL: Final = 0.25
"""A prompt whose asking price is more than this share of the context is counted before it is sent."""
_LEAST_FRAMES: Final = 2
_LEAST_SIDE: Final = 56
"""Nothing is shrunk below this, in pixels."""
_LEAST_ANSWER: Final = 16
UNCHANGED: Final = 0.5
"""At most this share of pictures is kept that got no cheaper: they are larger than what the model makes of them."""
_MARGIN: Final = 0.98
"""A little less than the area says: sides are rounded to a model's patches."""
_NOTHING_FITS: Final = "Nothing that could be seen fits into the context beside the words."

Count = Callable[["EngineRequest"], Awaitable[int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one request may take, in tokens."""

    context: int
    """Of prompt and answer."""
    item: int
    """Of one picture or clip: what the engine's encoder holds."""

    def share(self, request: EngineRequest, words: int, pictures: int, largest: int = 0) -> float:
        """Return what share of its pictures' tokens fits beside its words and the expected answer; from 1 on, all do.

        `largest`: tokens of the largest of them. Raises `EngineRefusedError` if not even the words fit.
        """
        answer = min(request.output_tokens, max(_LEAST_ANSWER, self.context // 4))
        most = self.context - words - answer
        if pictures and most < 1:
            raise EngineRefusedError(_NOTHING_FITS)
        if most < 0:
            raise EngineRefusedError(
                f"The words alone are {words} tokens; the engine's context is {self.context}."
            )
        return min(most / max(pictures, 1), self.item / max(largest, 1)) if pictures else 1.0


async def fitted(request: EngineRequest, room: Room, count: Count) -> EngineRequest:
    """Return the request, its pictures shrunk until they fit by this count; as it is if that counts nothing.

    Raises `EngineRefusedError` if nothing that could still be seen would fit, or the words alone are too many.
    """
    words = await count(replace(request, images=(), clip=None))
    former: int | None = None
    for _ in range(TRIES):
        whole = await count(request)
        if words is None or whole is None:
            return request
        share = room.share(request, words, whole - words)
        if share >= 1:
            return request
        share, former = min(share, UNCHANGED if whole == former else 1), whole
        request = await asyncio.to_thread(shrunk, request, share)
    raise too_large(room)


def too_large(room: Room) -> EngineRefusedError:
    """Return the error of a request whose pictures do not get smaller with their pixels."""
    return EngineRefusedError(f"The pictures do not get small enough for a context of {room.context} tokens.")


def shrunk(request: EngineRequest, share: float) -> EngineRequest:
    """Return the request with this share of its frames, or of its pictures' area. Takes up to a second.

    Raises `EngineRefusedError` if there would be nothing to see.
    """
    if request.clip and len(request.images) > _LEAST_FRAMES:
        return _thinned(request, max(_LEAST_FRAMES, int(len(request.images) * share)))
    side = sqrt(share) * _MARGIN
    sizes = [(round(image.shape[1] * side), round(image.shape[0] * side)) for image in request.images]
    if min(map(min, sizes)) < _LEAST_SIDE:
        raise EngineRefusedError(_NOTHING_FITS)
    return replace(
        request, images=tuple(resized(image, size) for image, size in zip(request.images, sizes, strict=True))
    )


def _thinned(request: EngineRequest, count: int) -> EngineRequest:
    """Return the clip with fewer frames, spread as before, the first and the last among them."""
    clip = request.clip
    assert clip is not None  # noqa: S101  only clips are thinned
    kept = np.linspace(0, len(request.images) - 1, count).round().astype(int)
    return replace(
        request,
        images=tuple(request.images[index] for index in kept),
        clip=replace(clip, indices=tuple(clip.indices[index] for index in kept)),
    )


def resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a picture in this width and height."""
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
