"""Requests that are more than the engine takes, made smaller: pictures by pixels, clips by frames, then pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

from pecia_workers.batching.cost import CostError
from pecia_workers.engines.base import EngineRefusedError
from pecia_workers.engines.pricing import expected_output

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pecia_workers.engines.base import EngineRequest
    from pecia_workers.engines.vllm_pricing import PromptPrice

_LEAST_FRAMES: Final = 2
LEAST_SIDE: Final = 56
"""Nothing is shrunk below this, in pixels."""
_LEAST_ANSWER: Final = 16
_STEP: Final = 0.9
"""By how much the sides of a clip shrink at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one request may take, in tokens."""

    context: int
    """Of prompt and answer."""
    item: int
    """Of one picture or clip: what the engine's encoder holds."""

    def for_pictures(self, request: EngineRequest, words: int) -> int:
        """Return what is left for all pictures, beside `words` and the answer that is expected."""
        answer = min(expected_output(request), max(_LEAST_ANSWER, self.context // 4))
        return self.context - words - answer


def fitted(request: EngineRequest, price: PromptPrice, room: Room) -> EngineRequest:
    """Return the request, its pictures shrunk until they fit. Takes up to a second; not for the loop.

    Raises `EngineRefusedError` if nothing that could still be seen would fit.
    """
    try:
        if not request.images:
            return _checked(request, price, room)
        words = price.tokens(request) - price.pictures(request)
        most = room.for_pictures(request, words)
        if request.clip and price.counter.takes_video:
            return _clip(request, price, min(most, room.item))
        return _images(request, price, most, room.item)
    except CostError as error:
        raise EngineRefusedError(str(error)) from None


def fits(request: EngineRequest, price: PromptPrice, room: Room) -> bool:
    """Return whether the request can go as it is. Cheap."""
    try:
        pictures = price.pictures(request)
        words = price.tokens(request) - pictures
        largest = pictures if request.clip and price.counter.takes_video else _largest(request, price)
    except CostError:
        return False
    return largest <= room.item and pictures <= room.for_pictures(request, words)


def _largest(request: EngineRequest, price: PromptPrice) -> int:
    return max(
        (price.counter.image_tokens(image.shape[1], image.shape[0]) for image in request.images), default=0
    )


def _checked(request: EngineRequest, price: PromptPrice, room: Room) -> EngineRequest:
    words = price.tokens(request)
    if room.for_pictures(request, words) < 0:
        raise EngineRefusedError(
            f"The words alone are {words} tokens; the engine's context is {room.context}."
        )
    return request


def _images(request: EngineRequest, price: PromptPrice, most: int, item: int) -> EngineRequest:
    each = min(item, most // len(request.images))
    sizes = [
        price.counter.fit_image(image.shape[1], image.shape[0], each) if each > 0 else _refuse(most)
        for image in request.images
    ]
    return replace(
        request,
        images=tuple(resized(image, size) for image, size in zip(request.images, sizes, strict=True)),
    )


def _clip(request: EngineRequest, price: PromptPrice, most: int) -> EngineRequest:
    while price.pictures(request) > most:
        request = _thinned(request) if len(request.images) > _LEAST_FRAMES else _smaller(request, most)
    return request


def _thinned(request: EngineRequest) -> EngineRequest:
    """Return the clip with fewer frames, spread as before, the first and the last among them."""
    clip = request.clip
    assert clip is not None  # noqa: S101  only clips are thinned
    count = max(_LEAST_FRAMES, round(len(request.images) * _STEP) - 1)
    kept = np.linspace(0, len(request.images) - 1, count).round().astype(int)
    return replace(
        request,
        images=tuple(request.images[index] for index in kept),
        clip=replace(clip, indices=tuple(clip.indices[index] for index in kept)),
    )


def _smaller(request: EngineRequest, most: int) -> EngineRequest:
    width, height = request.size
    size = (round(width * _STEP), round(height * _STEP))
    if min(size) < LEAST_SIDE:
        _refuse(most)
    return replace(request, images=tuple(resized(image, size) for image in request.images))


def _refuse(most: int) -> tuple[int, int]:
    raise EngineRefusedError(f"Nothing that could be seen fits into {max(0, most)} tokens.")


def resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the picture at this width and height."""
    if size == (image.shape[1], image.shape[0]):
        return image
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
