"""Requests in the form of OpenAI's chat API, and what their prompts take by the server's counts, or an estimate."""

from __future__ import annotations

import base64
import io
import json
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray
from PIL import Image

from pecia_workers.engines.base import EngineRequest
from pecia_workers.engines.in_flight import LOOPS
from pecia_workers.engines.openai.answer import ServerUsage

log = structlog.get_logger(__name__)

EXTRAS: Final = (
    *("top_k", "repetition_penalty", "repetition_detection", "priority", "stream_interval"),  # vLLM's own
    *("skip_special_tokens", "vllm_xargs"),
    "logprobs",  # OpenAI's
)
"""What servers may or may not take."""

_FRAME_QUALITY: Final = 95
_NO_LIMIT: Final = -1
_TOKENS_A_PIECE: Final = 16
"""Larger pieces cost less to read; the first token comes at once all the same."""
_REMEMBERED: Final = 4096
"""Prompts whose length the server has counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one server is spoken to."""

    model: str
    extras: frozenset[str] = frozenset()
    """Those of `EXTRAS` that it takes."""


def chat_body(request: EngineRequest, dialect: Dialect, most_tokens: int | None) -> bytes:
    """Return the body of a chat request, to be answered as a stream. Packs pictures for a while; not for the loop."""
    body = {
        "model": request.adapter or dialect.model,
        "messages": messages(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        **_options(request, most_tokens),
        **{name: value for name, value in _extras(request).items() if name in dialect.extras},
    }
    return json.dumps(body).encode()


def messages(request: EngineRequest) -> list[dict[str, Any]]:
    """Return the request as messages: its pictures, the frames of a clip as single ones, then its words."""
    shown = [
        {"type": "image_url", "image_url": {"url": _data_url(image, is_frame=request.clip is not None)}}
        for image in request.images
    ]
    return request.messages(shown)


def _options(request: EngineRequest, most_tokens: int | None) -> dict[str, Any]:
    special = request.sampling.special
    options: dict[str, Any] = {
        name: special[name] for name in ("presence_penalty", "stop") if name in special
    }
    if most_tokens is not None:
        options["max_tokens"] = most_tokens
    if request.sampling.seed is not None:
        options["seed"] = request.sampling.seed
    if request.schema is not None:
        schema = {"name": "fields", "schema": dict(request.schema), "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _extras(request: EngineRequest) -> dict[str, Any]:
    """Return what is said even where it changes nothing: else a checkpoint's own defaults would hold."""
    return {
        "skip_special_tokens": request.sampling.skip_special_tokens,
        "vllm_xargs": dict(request.sampling.extra_args),
        "top_k": request.sampling.top_k or _NO_LIMIT,
        "repetition_penalty": request.sampling.repetition_penalty,
        "repetition_detection": LOOPS,
        "priority": request.priority,
        "stream_interval": _TOKENS_A_PIECE,
        "logprobs": request.log_probabilities,
    }


def _data_url(image: NDArray[np.uint8], *, is_frame: bool) -> str:
    """Return a page without loss, a clip's frame as JPEG: many of them, and they came from a lossy video."""
    packed = io.BytesIO()
    if is_frame:
        Image.fromarray(image).save(packed, "JPEG", quality=_FRAME_QUALITY)
    else:
        Image.fromarray(image).save(packed, "PNG", compress_level=1)
    kind = "jpeg" if is_frame else "png"
    return f"data:image/{kind};base64,{base64.b64encode(packed.getvalue()).decode()}"


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
        return self.exact(request) or request.prompt_tokens

    def pictures(self, request: EngineRequest, usage: ServerUsage | None) -> int:
        """Return how much of the prompt is pixels: what the server says, or else an estimate."""
        if usage and usage.pictures is not None:
            return usage.pictures
        estimate = request.picture_tokens
        return min(estimate, usage.prompt_tokens) if usage else estimate

    def learn(self, request: EngineRequest, counted: int) -> None:
        """Hold the price against the server's count: a difference is an alarm, for the budget rests on it."""
        predicted = self.exact(request)
        if predicted is not None and predicted != counted:
            self.drifted += 1
            log.error(
                "cost_drifted", request=request.id, predicted=predicted, counted=counted, drifted=self.drifted
            )
        self._counted[_shape(request)] = counted
        if len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)


def _shape(request: EngineRequest) -> Hashable:
    """Return what decides how long the prompt is."""
    sizes = tuple(image.shape[:2] for image in request.images)
    return sizes, hash(request.instruction), request.adapter
