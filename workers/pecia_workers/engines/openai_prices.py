"""What a prompt takes of a server: by the server's own counts, or an estimate."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from pecia_workers.engines.base import EngineRequest
from pecia_workers.engines.pricing import picture_tokens, prompt_tokens

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from pecia_workers.engines.openai_answer import ServerUsage

log = structlog.get_logger(__name__)

_REMEMBERED: Final = 4096
PICTURE: Final = np.zeros((84, 112, 3), dtype=np.uint8)
"""The picture that the server counts when no page is there."""


class Prices:
    """Prompt tokens of requests.

    A length is known once the server has counted a prompt of the same words and sizes: pictures of one size are equally
    long.
    """

    def __init__(self) -> None:
        self.drifted = 0
        self._counted: OrderedDict[Hashable, int] = OrderedDict()

    def exact(self, request: EngineRequest) -> int | None:
        """Return the prompt's length; None if no such prompt was counted yet."""
        return self._counted.get(_shape(request))

    def tokens(self, request: EngineRequest) -> int:
        """Return the prompt's length, or what the fleet's asking price takes it for."""
        return self.exact(request) or prompt_tokens(request)

    def pictures(self, request: EngineRequest, usage: ServerUsage | None) -> int:
        """Return how much of the prompt is pixels: what the server says, or else an estimate."""
        if usage and usage.pictures is not None:
            return usage.pictures
        estimate = picture_tokens(request)
        return min(estimate, usage.prompt_tokens) if usage else estimate

    def learn(self, request: EngineRequest, counted: int) -> None:
        """Hold the price against the server's count: a difference is an alarm, for the budget rests on it."""
        predicted = self.exact(request)
        if predicted is not None and predicted != counted:
            self.drifted += 1
            log.error(
                "cost_drifted",
                request=request.id,
                predicted=predicted,
                counted=counted,
                drifted=self.drifted,
            )
        self._counted[_shape(request)] = counted
        if len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)


def blank(request: EngineRequest) -> EngineRequest:
    """Return a request whose prompt is as long, without anything of the document in it."""
    return replace(request, images=tuple(np.zeros_like(image) for image in request.images))


def probe(*images: NDArray[np.uint8]) -> EngineRequest:
    """Return a small request about pictures of our own."""
    return EngineRequest(
        id="probe", images=images, workload="mixed", instruction="Say yes.", max_output_tokens=1
    )


def _shape(request: EngineRequest) -> Hashable:
    """Return what decides how long the prompt is."""
    sizes = tuple(image.shape[:2] for image in request.images)
    return sizes, hash(request.instruction), request.adapter
