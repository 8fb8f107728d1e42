"""Requests in the form of OpenAI's chat API."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from PIL import Image

from pecia_workers.engines.loops import LOOPS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pecia_workers.engines.base import EngineRequest

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
