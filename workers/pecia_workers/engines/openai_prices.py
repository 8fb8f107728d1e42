"""What a prompt takes of a server: by the checkpoint's formula, by the server's own counts, or an estimate."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from pecia_workers.batching.cost import CostError, counter_for
from pecia_workers.batching.cost.checkpoint import CheckpointTokenizer
from pecia_workers.engines.base import EngineRefusedError, EngineRequest, EngineUnavailableError
from pecia_workers.engines.pricing import picture_tokens, prompt_tokens
from pecia_workers.engines.vllm_pricing import Modalities, calibrated

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.openai_answer import ServerUsage
    from pecia_workers.engines.openai_server import ServedModel
    from pecia_workers.engines.vllm_pricing import PromptPrice, Renderer

log = structlog.get_logger(__name__)

_REMEMBERED: Final = 4096
PICTURE: Final = np.zeros((84, 112, 3), dtype=np.uint8)
"""What the server is asked about while nobody waits for a page."""


class Prices:
    """Prompt tokens of requests.

    Without a formula a length is known once the server has counted a prompt of the same words and sizes: pictures of
    one size are equally long.
    """

    def __init__(self) -> None:
        self.formula: PromptPrice | None = None
        self.drifted = 0
        self._counted: OrderedDict[Hashable, int] = OrderedDict()

    def exact(self, request: EngineRequest) -> int | None:
        """Return the prompt's length; None if nobody has counted such a one yet."""
        if self.formula:
            return self.formula.tokens(as_pictures(request))
        return self._counted.get(_shape(request))

    def tokens(self, request: EngineRequest) -> int:
        """Return the prompt's length, or what the fleet's asking price takes it for."""
        return self.exact(request) or prompt_tokens(request)

    def pictures(self, request: EngineRequest, usage: ServerUsage | None) -> int:
        """Return how much of the prompt is pixels: what the server says, or else the formula."""
        if usage and usage.pictures is not None:
            return usage.pictures
        if self.formula:
            return self.formula.pictures(as_pictures(request))
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


def as_pictures(request: EngineRequest) -> EngineRequest:
    """Return the request as a server sees it: the frames of a clip are pictures like others."""
    return replace(request, clip=None) if request.clip else request


def blank(request: EngineRequest) -> EngineRequest:
    """Return a request whose prompt is as long, without anything of the document in it."""
    return replace(request, images=tuple(np.zeros_like(image) for image in request.images))


async def formula_for(settings: WorkerSettings, served: ServedModel, server: Renderer) -> PromptPrice | None:
    """Return the formula of the checkpoint, if it lies on this machine, held against the server's own count.

    None if it does not, or if they disagree: the server may scale pictures as we cannot know.
    """
    directory = _checkpoint(settings, served)
    if directory is None or importlib.util.find_spec("tokenizers") is None:
        return None
    try:
        counter = counter_for(directory, settings.engine_options.get("mm_processor_kwargs"))
        return await calibrated(counter, CheckpointTokenizer(directory), server, await _modalities(server))
    except (CostError, EngineUnavailableError) as error:
        log.warning("cost_formula_does_not_hold", because=str(error))
        return None


def _checkpoint(settings: WorkerSettings, served: ServedModel) -> Path | None:
    named = (Path(name) for name in (settings.model, served.root) if name)
    return next((directory for directory in named if (directory / "config.json").is_file()), None)


async def _modalities(server: Renderer) -> Modalities:
    """Return what one request may hold; a clip's frames go as pictures."""
    try:
        await server.prompt_tokens(probe(PICTURE, PICTURE))
    except EngineRefusedError:
        return Modalities(images=1, clips=False)
    return Modalities(images=2, clips=False)


def probe(*images: NDArray[np.uint8]) -> EngineRequest:
    """Return a small request about pictures of our own."""
    return EngineRequest(
        id="probe", images=images, workload="mixed", instruction="Say yes.", max_output_tokens=1
    )


def _shape(request: EngineRequest) -> Hashable:
    """Return what decides how long the prompt is."""
    sizes = tuple(image.shape[:2] for image in request.images)
    return sizes, hash(request.instruction), request.adapter
