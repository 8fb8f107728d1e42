"""The stream of one answer, from a server that speaks OpenAI's chat API, and what it answers instead of a text.

Errors are told apart by their status alone: the words may quote a page.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

import httpx2
from pydantic import BaseModel, ValidationError

from pecia_workers.engines.base import EngineError, EngineRefusedError
from pecia_workers.engines.in_flight import is_loop
from pecia_workers.retries import parse_retry_after

_LAST: Final = "[DONE]"
_FAILED: Final = 500
_LOOK_EVERY: Final = 8
REPETITION: Final = "repetition"
"""Why vLLM, and we, end a loop."""

_REFUSALS: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_LATER: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_KEYS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class UnansweredError(Exception):
    """No answer came; another try may bring one."""

    def __init__(self, reason: str, *, status: int | None = None, asked: timedelta | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.asked = asked
        """How long the server wants to be left alone."""


class LockedOutError(Exception):
    """The server does not take the key."""


def error_of(status: int, retry_after: str | None = None) -> Exception:
    """Return what an answer with this status means."""
    if status in _KEYS:
        return LockedOutError()
    if status in _REFUSALS:
        return EngineRefusedError(f"The server refuses the request as it is (HTTP {status}).")
    if status in _LATER or status >= _FAILED:
        return UnansweredError(f"HTTP {status}", status=status, asked=parse_retry_after(retry_after))
    return EngineError(f"The server has no answer for this request (HTTP {status}).")


class _Delta(BaseModel):
    content: str | None = None


class _Token(BaseModel):
    token: str
    logprob: float


class _LogProbabilities(BaseModel):
    content: list[_Token] | None = None


class _Choice(BaseModel):
    delta: _Delta = _Delta()
    logprobs: _LogProbabilities | None = None
    finish_reason: str | None = None


class _PromptDetails(BaseModel):
    cached_tokens: int | None = None
    multimodal_tokens: dict[str, int] | None = None  # vLLM's own


class ServerUsage(BaseModel):
    """What the server counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached(self) -> int:
        """Tokens of the prompt that a cache held, as far as the server tells."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0

    @property
    def pictures(self) -> int | None:
        """Tokens of the prompt that are pixels; None if the server does not tell."""
        told = self.prompt_tokens_details and self.prompt_tokens_details.multimodal_tokens
        return sum(told.values()) if told else None


class _Chunk(BaseModel):
    choices: list[_Choice] = []
    usage: ServerUsage | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    text: str
    finish_reason: str
    usage: ServerUsage | None
    """None: the server does not count."""
    pieces: int
    """In which the text came; most servers send each token by itself."""
    first_token_s: float | None
    tokens: tuple[tuple[str, float], ...] = ()
    """With the logarithm of each one's probability, if the server tells."""


async def read_answer(response: httpx2.Response, asked_at: float) -> Answer:
    """Return the answer that streams in, asked for at the monotonic time `asked_at`.

    A loop that the server does not end is left: closing the connection ends it there.
    Raises `UnansweredError` for a stream that ends too soon, `EngineError` for one that ends in an error.
    """
    texts: list[str] = []
    tokens: list[tuple[str, float]] = []
    finish_reason = first_token_s = usage = None
    async with aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                if choice.delta.content:
                    first_token_s = first_token_s or time.monotonic() - asked_at
                    texts.append(choice.delta.content)
                told = choice.logprobs and choice.logprobs.content
                tokens += [(one.token, one.logprob) for one in told or ()]
                finish_reason = choice.finish_reason or finish_reason
            if finish_reason is None and len(texts) % _LOOK_EVERY == 0 and is_loop(texts):
                finish_reason = REPETITION
                break
    if finish_reason is None:
        raise UnansweredError("the stream ended in the midst of the answer")
    return Answer(
        text="".join(texts),
        finish_reason=finish_reason,
        usage=usage,
        pieces=len(texts),
        first_token_s=first_token_s,
        tokens=tuple(tokens),
    )


async def _chunks(response: httpx2.Response) -> AsyncGenerator[_Chunk, None]:
    async for event in httpx2.EventSource(response):
        if event.data == _LAST:
            return
        try:
            chunk = _Chunk.model_validate_json(event.data)
        except ValidationError:  # whose text repeats the answer's
            raise UnansweredError("the stream is not in the form of OpenAI's") from None
        if chunk.error is not None:
            code = chunk.error.get("code")
            raise error_of(code if isinstance(code, int) else _FAILED)
        yield chunk
