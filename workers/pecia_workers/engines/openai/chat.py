"""OpenAI's chat API: request bodies, streamed answers, and errors.

Errors are classified by their status only, since their text may quote a page.
"""

import base64
import io
import json
import time
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

import httpx2
from PIL import Image
from pydantic import AliasPath, BaseModel, Field, ValidationError

from pecia_workers.engines.requests import LOOPS, is_loop
from pecia_workers.outgoing.guard import parse_retry_after
from pecia_workers.protocol.base import EngineError, EngineRefusedError, EngineRequest

EXTRAS: Final = (
    *("top_k", "repetition_penalty", "repetition_detection", "priority", "stream_interval"),  # vLLM's own
    *("skip_special_tokens", "vllm_xargs"),
    "logprobs",  # OpenAI's
)
"""Optional fields, which some servers do not accept."""

_PLAIN: Final = ("max_tokens", "temperature", "top_p", "seed", "presence_penalty", "stop")
_FRAME_QUALITY: Final = 95
_NO_LIMIT: Final = -1
_TOKENS_A_PIECE: Final = 16
"""Tokens in one piece of the stream: larger pieces cost less, and the first token still comes immediately."""
_LAST: Final = "[DONE]"
FAILED: Final = 500
_LOOK_EVERY: Final = 8
_REPETITION: Final = "repetition"
"""Finish reason of a loop, as vLLM names it."""

_REFUSALS: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_LATER: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_KEYS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Dialect of one server."""

    model: str
    extras: frozenset[str] = frozenset()
    """The `EXTRAS` that it accepts."""


def chat_body(request: EngineRequest, dialect: Dialect, most_tokens: int | None) -> bytes:
    """Return the body of a streaming chat request. Encodes pictures, so must not run on the loop."""
    sampling = request.sampling
    extras = {  # said even where it changes nothing: else a checkpoint's own defaults would hold
        "skip_special_tokens": sampling.skip_special_tokens,
        "vllm_xargs": dict(sampling.extra_args),
        "top_k": sampling.top_k or _NO_LIMIT,
        "repetition_penalty": sampling.repetition_penalty,
        "repetition_detection": LOOPS,
        "priority": request.priority,
        "stream_interval": _TOKENS_A_PIECE,
        "logprobs": request.log_probabilities,
    }
    plain = {"max_tokens": most_tokens, **sampling.parameters}
    body = {
        "model": request.adapter or dialect.model,
        "messages": messages(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: plain[name] for name in _PLAIN if plain.get(name) is not None},
        **{name: value for name, value in extras.items() if name in dialect.extras},
    }
    if request.schema is not None:
        schema = {"name": "fields", "schema": dict(request.schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return json.dumps(body).encode()


def messages(request: EngineRequest) -> list[dict[str, Any]]:
    """Return the request as messages: pages as PNG, or frames, which were lossy before, as JPEG; then its text."""
    kind, how = ("jpeg", {"quality": _FRAME_QUALITY}) if request.clip else ("png", {"compress_level": 1})
    shown = []
    for image in request.images:
        packed = io.BytesIO()
        Image.fromarray(image).save(packed, kind, **how)
        url = f"data:image/{kind};base64,{base64.b64encode(packed.getvalue()).decode()}"
        shown.append({"type": "image_url", "image_url": {"url": url}})
    return request.messages(shown)


class UnansweredError(Exception):
    """No answer arrived; a retry may succeed."""

    def __init__(
        self, reason: str, *, status: int | None = None, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.retry_after = retry_after
        """Delay that the server requested, in seconds."""


class LockedOutError(Exception):
    """The server rejects the API key."""


def error_of(status: int, retry_after: str | None = None) -> Exception:
    """Return the error for an answer with this status."""
    if status in _KEYS:
        return LockedOutError()
    if status in _REFUSALS:
        return EngineRefusedError(f"The server refuses the request (HTTP {status}).")
    if status in _LATER or status >= FAILED:
        return UnansweredError(f"HTTP {status}", status=status, retry_after=parse_retry_after(retry_after))
    return EngineError(f"The server has no answer for this request (HTTP {status}).")


class _Token(BaseModel):
    token: str
    logprob: float


class _Choice(BaseModel):
    content: str | None = Field(None, validation_alias=AliasPath("delta", "content"))
    tokens: list[_Token] | None = Field(None, validation_alias=AliasPath("logprobs", "content"))
    finish_reason: str | None = None


class ServerUsage(BaseModel):
    """Token counts reported by the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: int | None = Field(
        default=None, validation_alias=AliasPath("prompt_tokens_details", "cached_tokens")
    )
    """Cached tokens of the prompt."""
    pictures: dict[str, int] | None = Field(
        default=None, validation_alias=AliasPath("prompt_tokens_details", "multimodal_tokens")
    )
    """Multimodal tokens of the prompt, by kind; only vLLM reports them."""


class _Chunk(BaseModel):
    choices: list[_Choice] = []
    usage: ServerUsage | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer."""

    text: str
    finish_reason: str
    usage: ServerUsage | None
    """None: the server does not count."""
    pieces: int
    """Pieces of the stream; most servers send single tokens."""
    first_token_s: float | None
    tokens: tuple[tuple[str, float], ...] = ()
    """Tokens with log-probabilities, if the server reports them."""


async def read_answer(response: httpx2.Response, sent_at: float) -> Answer:
    """Read the streamed answer to a request sent at the monotonic time `sent_at`.

    A looping answer is abandoned: closing the connection ends it on the server.
    Raises `UnansweredError` for a stream that ends too soon, `EngineError` for a stream that ends in an error, or an
    answer that is no stream.
    """
    if response.headers.get("Content-Type", "").startswith("application/json"):
        raise EngineError("The server answers with JSON instead of a stream.")
    texts: list[str] = []
    tokens: list[tuple[str, float]] = []
    finish_reason = first_token_s = usage = None
    async for event in httpx2.EventSource(response):
        if event.data == _LAST:
            break
        try:
            chunk = _Chunk.model_validate_json(event.data)
        except ValidationError:  # whose text repeats the answer's
            raise UnansweredError("the stream is not in OpenAI's format") from None
        if chunk.error is not None:
            code = chunk.error.get("code")
            raise error_of(code if isinstance(code, int) else FAILED)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.content:
                first_token_s = first_token_s or time.monotonic() - sent_at
                texts.append(choice.content)
            tokens += [(one.token, one.logprob) for one in choice.tokens or ()]
            finish_reason = choice.finish_reason or finish_reason
        if finish_reason is None and len(texts) % _LOOK_EVERY == 0 and is_loop(texts):
            finish_reason = _REPETITION
            break
    if finish_reason is None:
        raise UnansweredError("the stream ended before the answer was complete")
    return Answer(
        text="".join(texts),
        finish_reason=finish_reason,
        usage=usage,
        pieces=len(texts),
        first_token_s=first_token_s,
        tokens=tuple(tokens),
    )
