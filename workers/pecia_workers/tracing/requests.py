"""The span of one request to an engine, by OpenTelemetry's conventions for generative models."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pecia_schemas import tracing
from pecia_schemas.tracing import Kind

if TYPE_CHECKING:
    from pecia_schemas.tracing import Attributes, Span
    from pecia_workers.engines.base import Capabilities, EngineRequest, Generation, Generator

_NS = 1_000_000_000


def admitted(seconds: float) -> None:
    """Tell how long a request has waited for room in the engine, until now."""
    now = time.time_ns()
    tracing.past("admit", began=now - round(seconds * _NS), ended=now)


async def generate(engine: Generator, request: EngineRequest, tokens: int | None = None) -> Generation:
    """Return the engine's text, asked for in a span that says what it took; `tokens` is what was reserved for it."""
    if tracing.current().traceparent is None:
        return await engine.generate(request)
    with tracing.span(
        f"chat {engine.capabilities.model}",
        _asked(engine.capabilities, request, tokens),
        kind=Kind.CLIENT,
    ) as span:
        began = time.time_ns()
        generation = await engine.generate(request)
        _answered(span, generation, began)
        return generation


def _asked(engine: Capabilities, request: EngineRequest, tokens: int | None) -> Attributes:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": engine.name,
        "gen_ai.request.model": engine.model,
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "pecia.workload": request.workload,
        "pecia.cost": tokens,
        "pecia.images": len(request.images),
    }


def _answered(span: Span, generation: Generation, began: int) -> None:
    usage = generation.usage
    span.tell(
        {
            "gen_ai.usage.input_tokens": usage.prompt,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cached,
            "pecia.usage.image_tokens": usage.image,
            "pecia.verdict": generation.verdict,
        }
    )
    if generation.first_token_s is not None:
        first = began + round(generation.first_token_s * _NS)
        tracing.past("prefill", began=began, ended=first)
        tracing.past("decode", began=first, ended=max(first, time.time_ns()))


@dataclass(frozen=True, slots=True)
class TracedGenerator:
    """A generator, each of whose requests is a span."""

    generator: Generator

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self.generator.capabilities

    async def generate(self, request: EngineRequest) -> Generation:
        """Return its text."""
        return await generate(self.generator, request)
