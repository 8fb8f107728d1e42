"""The engines without a language model of their own keep every engine's promises."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from pecia_schemas.results import Verdict
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType
from pecia_workers.engines.registry import create_engine
from pecia_workers.engines.simulated import IterationModel, SimulatedEngine
from pecia_workers.media.samples import sample_document
from pecia_workers.protocol.base import Engine
from tests.shared.chat_server import Behaviour, ChatServerDouble, serving
from tests.shared.engine_contract import *  # noqa: F403  the tests themselves
from tests.shared.forking import LastingTemplate, fork_from
from tests.shared.korean import korean_tessdata
from tests.shared.virtual_time import FixedLength

pytest.importorskip("rapidocr", reason="pecia[local] brings the CPU engine")

pytestmark = pytest.mark.gate


def rapidocr() -> Engine:
    return create_engine(WorkerSettings(engine="rapidocr", engine_processes=1))


def tesseract() -> Engine:
    pytest.importorskip("tesserocr", reason="pecia[korean] brings tesserocr")
    return create_engine(
        WorkerSettings(engine="tesseract", tessdata=str(korean_tessdata()), engine_processes=1)
    )


def simulated() -> Engine:
    """A second a page, one after the other."""
    model = IterationModel(base_s=0.01, prefill_token_s=0, decode_sequence_s=0, max_num_seqs=1)
    return SimulatedEngine(model, FixedLength(100))


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServerDouble]:
    with serving(Behaviour(takes_s=1)) as server:
        yield server


@pytest.fixture(scope="module", params=[rapidocr, tesseract, simulated, "openai"])
def make_engine(
    request: pytest.FixtureRequest, lasting_template: LastingTemplate, server: ChatServerDouble
) -> Iterator[Callable[[], Engine]]:
    asking = WorkerSettings(engine="openai", engine_url=server.url, max_num_seqs=1)
    with pytest.MonkeyPatch.context() as patch:
        fork_from(lasting_template, patch)
        yield (lambda: create_engine(asking)) if request.param == "openai" else request.param


@pytest.fixture(scope="module")
def page() -> NDArray[np.uint8]:
    return np.array(sample_document(DocumentType.PRESCRIPTION).pages[0].image)


@pytest.fixture
def acceptable() -> set[Verdict]:
    return {Verdict.OK}
