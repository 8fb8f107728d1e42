"""What a request takes of an engine's budget."""

from __future__ import annotations

from dataclasses import replace

from pecia_schemas.cost import EXPECTED_OUTPUT_TOKENS, PROMPT_TOKENS, image_tokens
from pecia_workers.engines.base import EngineRequest


def picture_tokens(request: EngineRequest) -> int:
    """Return the tokens of the request's pictures by the fleet's price formula."""
    return sum(image_tokens(image.shape[1], image.shape[0]) for image in request.images)


def prompt_tokens(request: EngineRequest) -> int:
    """Return the tokens that are read before the first is written, by the fleet's price formula."""
    return picture_tokens(request) + PROMPT_TOKENS


def bounded(request: EngineRequest, most: int) -> EngineRequest:
    """Return the request; one without a maximum of its own gets `most` output tokens. 0: no limit."""
    return replace(request, max_output_tokens=request.max_output_tokens or most or None)


def expected_output(request: EngineRequest) -> int:
    """Return the tokens that will probably be written, never more than the request's maximum."""
    expected = request.expected_output_tokens or EXPECTED_OUTPUT_TOKENS[request.workload]
    return min(expected, request.max_output_tokens or expected)


def request_cost(request: EngineRequest) -> int:
    """Return the tokens of pictures, prompt and expected answer by the fleet's price formula."""
    return prompt_tokens(request) + expected_output(request)
