"""The one interface between the fleet and whatever turns pixels into text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pecia_schemas import DocumentType, Line, Stage, TokenUsage, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do; registered with the worker, so that the fleet knows whom it can ask."""

    name: str
    model: str
    stages: frozenset[Stage]
    languages: frozenset[str] | None = None
    """ISO 639-1 codes it reads; None: whatever its model knows."""
    fields: bool = False
    """Whether it can fill a JSON schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much an engine can hold at a time."""

    slots: int
    """Requests in flight."""
    tokens: int | None
    """Sum of the costs in flight; None: only the slots count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One part, ready for the engine."""

    id: str
    images: tuple[NDArray[np.uint8], ...]
    """RGB, height x width x 3: one page, or the frames of a segment."""
    document_type: DocumentType
    language: str | None = None
    instruction: str = ""
    """What a language model is asked to do with the images, in plain words; other engines need none."""
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the engine made of one request."""

    text: str
    verdict: Verdict
    usage: TokenUsage = TokenUsage()  # noqa: RUF009  frozen, so it may be shared
    lines: tuple[Line, ...] = ()
    """Where the text stands, in reading order, in pixels of the image; empty if the engine cannot tell."""
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine is doing now."""

    running: int
    waiting: int
    kv_used: float = field(default=0.0)
    """Share of the KV cache in use, 0 to 1."""


class EngineError(Exception):
    """The engine failed on this request; others go on. Its text may hold nothing of the document."""


class EngineRefusedError(EngineError):
    """The request is more than this engine can ever take; another attempt would end the same."""


class EngineDeadError(EngineError):
    """The engine is gone and every request with it."""


class EngineUnavailableError(ValueError):
    """The engine that the settings name cannot run here; the message says what to change or install."""


class Engine(Protocol):
    """Turns images into text, many requests at a time, on the loop that started it."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def budget(self) -> Budget:
        """How much it can hold. Fixed once started."""
        ...

    async def start(self) -> None:
        """Load the model; returns when the engine is ready."""
        ...

    async def stop(self) -> None:
        """End every request and free all processes and memory."""
        ...

    def cost(self, request: EngineRequest) -> int:
        """Return the tokens this request takes of the budget: exact input plus expected output."""
        ...

    async def generate(self, request: EngineRequest) -> Generation:
        """Return the text. Cancelling the caller aborts the request in the engine. Raises `EngineError`."""
        ...

    async def abort(self, request_id: str) -> None:
        """End one request; its caller gets `asyncio.CancelledError`. An unknown id is no error."""
        ...

    def load(self) -> Load:
        """Return what runs and waits now. Raises `EngineDeadError`, as soon as that is known."""
        ...
