"""A count that does not come from a formula is believed where the engine agrees, and only there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pecia_workers.batching.cost import processor_counter
from pecia_workers.engines.base import EngineRequest
from pecia_workers.engines.vllm_pricing import Modalities, calibrated

FRAME = 7


class Processor:
    """Counts a token for each 28 x 28 pixels, as transformers' processors say it."""

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> Any:
        return {"num_image_tokens": [_tokens(width, height) for height, width in image_sizes]}


class Renderer:
    """An engine that shows a picture to the model as one row of tokens more."""

    def __init__(self, row: int) -> None:
        self.row = row

    async def prompt_tokens(self, request: EngineRequest) -> int:
        sizes = [(int(image.shape[1]), int(image.shape[0])) for image in request.images]
        pictures = sum(_tokens(width, height) + self.row * (height // 28) for width, height in sizes)
        return FRAME + len(request.instruction) + pictures


def _tokens(width: int, height: int) -> int:
    return (width // 28) * (height // 28)


@pytest.mark.parametrize("row", [0, 1])
def test_a_processors_count_is_taken_if_the_engine_counts_the_same(row: int) -> None:
    counter = processor_counter(Processor(), "mystery_vl")
    assert counter is not None

    price = asyncio.run(calibrated(counter, len, Renderer(row), Modalities(images=1, clips=False)))

    assert (price is not None) == (row == 0)
    assert price is None or price.bare == FRAME


def test_a_processor_that_does_not_count_is_no_counter() -> None:
    assert processor_counter(SimpleNamespace(), "mystery_vl") is None
