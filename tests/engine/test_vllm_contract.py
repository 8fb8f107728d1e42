"""vLLM keeps every engine's promises."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pecia_schemas.results import Verdict
from pecia_schemas.tasks import DocumentType
from pecia_workers.media.samples import sample_document
from pecia_workers.protocol.base import Engine
from tests.shared.engine_contract import *  # noqa: F403  the tests themselves


@pytest.fixture(scope="module")
def make_engine(make_vllm: Callable[..., Engine], endless_checkpoint: Path) -> Callable[[], Engine]:
    return lambda: make_vllm(endless_checkpoint, max_num_seqs=1, max_output_tokens=300)


@pytest.fixture(scope="module")
def page() -> NDArray[np.uint8]:
    return np.array(sample_document(DocumentType.PRESCRIPTION).pages[0].image)


@pytest.fixture
def acceptable() -> set[Verdict]:
    """A page may come to anything with random weights, but to nothing."""
    return {Verdict.OK, Verdict.TRUNCATED, Verdict.REPETITION}
