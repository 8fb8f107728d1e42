"""The engine that asks a server keeps every engine's promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from chat_server import Behaviour, serving
from engine_contract import *  # noqa: F403  the tests themselves
from pecia_schemas import DocumentType, Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import Engine, create_engine
from pecia_workers.local.sample_documents import sample_document

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def make_engine() -> Iterator[Callable[[], Engine]]:
    with serving(Behaviour(takes_s=0.4)) as server:
        yield lambda: create_engine(WorkerSettings(engine="openai", engine_url=server.url, max_num_seqs=1))


@pytest.fixture(scope="module")
def page() -> NDArray[np.uint8]:
    return np.array(sample_document(DocumentType.PRESCRIPTION).pages[0].image)


@pytest.fixture
def acceptable() -> set[Verdict]:
    return {Verdict.OK}
