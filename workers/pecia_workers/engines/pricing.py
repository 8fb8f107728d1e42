"""What a request takes of an engine's budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecia_schemas.cost import EXPECTED_OUTPUT_TOKENS, image_tokens, page_cost

if TYPE_CHECKING:
    from pecia_workers.engines.base import EngineRequest


def picture_tokens(request: EngineRequest) -> int:
    """Return the tokens of the request's pictures by the fleet's price formula."""
    return sum(image_tokens(width, height) for height, width in _sizes(request))


def request_cost(request: EngineRequest) -> int:
    """Return the tokens of pictures, prompt and expected answer by the fleet's price formula."""
    (height, width), *others = _sizes(request)
    first = page_cost(width, height, request.document_type)
    return first + sum(image_tokens(width, height) for height, width in others)


def prompt_tokens(request: EngineRequest) -> int:
    """Return the tokens that are read before the first is written."""
    return request_cost(request) - EXPECTED_OUTPUT_TOKENS[request.document_type]


def _sizes(request: EngineRequest) -> list[tuple[int, int]]:
    return [(image.shape[0], image.shape[1]) for image in request.images]
