"""Pictures that are more than a server's context, shrunk until the server itself counts little enough."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Final

from pecia_workers.engines.base import EngineRefusedError
from pecia_workers.engines.vllm_fitting import LEAST_SIDE, resized

if TYPE_CHECKING:
    from pecia_workers.engines.base import EngineRequest
    from pecia_workers.engines.vllm_fitting import Room

_TRIES: Final = 5
_MARGIN: Final = 0.98
"""A little less than the area says: sides are rounded to a model's patches."""

Count = Callable[["EngineRequest"], Awaitable[int | None]]


async def fitted_by_count(request: EngineRequest, room: Room, count: Count) -> EngineRequest:
    """Return the request, its pictures shrunk until they fit; as it is if nobody can count.

    Raises `EngineRefusedError` if nothing that could still be seen would fit, or the words alone are too many.
    """
    words = await count(replace(request, images=(), clip=None))
    for _ in range(_TRIES):
        whole = await count(request)
        if words is None or whole is None:
            return request
        most = room.for_pictures(request, words)
        if whole - words <= most:
            return request
        request = await asyncio.to_thread(_smaller, request, most / (whole - words))
    raise EngineRefusedError(f"The pictures do not get small enough for a context of {room.context} tokens.")


def _smaller(request: EngineRequest, share: float) -> EngineRequest:
    """Return the request with pictures of this share of their area."""
    side = sqrt(max(0.0, share)) * _MARGIN
    sizes = [(round(image.shape[1] * side), round(image.shape[0] * side)) for image in request.images]
    if not sizes or min(map(min, sizes)) < LEAST_SIDE:
        raise EngineRefusedError("Nothing that could be seen fits into the context beside the words.")
    return replace(
        request,
        images=tuple(resized(image, size) for image, size in zip(request.images, sizes, strict=True)),
    )
