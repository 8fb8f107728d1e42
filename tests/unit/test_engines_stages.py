"""What a worker does is known before its engine has started, and is what the engine says of itself."""

import pytest
from typer.testing import CliRunner

from pecia.cli.app import app
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.app import queues_of
from pecia_workers.engines.base import Engine, stages_of, stages_served
from pecia_workers.engines.openai.engine import OpenAiEngine
from pecia_workers.engines.ray.engine import RayEngine
from pecia_workers.engines.registry import create_engine
from pecia_workers.engines.simulated import InstantEngine, SimulatedEngine
from pecia_workers.engines.vllm.engine import VllmEngine

STORES = {"PECIA_DATABASE_URL": "postgresql://h/d", "PECIA_REDIS_URL": "redis://h", "PECIA_PAYLOAD_URL": "/p"}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("openai", OpenAiEngine(WorkerSettings(engine_url="http://h/v1"))),
        ("cpu", create_engine(WorkerSettings(engine="cpu"))),
        ("rapidocr", create_engine(WorkerSettings(engine="rapidocr"))),
        ("simulated", SimulatedEngine()),
        ("simulated:instant", InstantEngine()),
        ("vllm", VllmEngine(WorkerSettings(model="m"))),
        ("ray", RayEngine(WorkerSettings(model="m"))),
    ],
)
def test_an_engine_can_do_what_is_said_of_it(name: str, engine: Engine) -> None:
    assert stages_of(name) == engine.capabilities.stages


def test_a_worker_does_all_that_its_engine_can_or_one_kind_of_it() -> None:
    def served(**settings: str) -> frozenset[Stage]:
        return stages_served(WorkerSettings.model_validate(settings))

    assert served(engine="vllm") == {Stage.READ, Stage.CAPTION, Stage.SUMMARIZE}
    assert served(engine="vllm", stages="read") == {Stage.READ}
    assert served(engine="vllm", stages="caption") == {Stage.CAPTION, Stage.SUMMARIZE}
    assert served(engine="rapidocr") == {Stage.READ}
    assert served(engine="rapidocr", stages="caption") == set()


def test_an_urgent_caption_goes_before_a_normal_page() -> None:
    queues = queues_of(stages_of("vllm"))
    assert queues.index("caption.urgent") < queues.index("read.normal") < queues.index("summarize.bulk")
    assert not [queue for queue in queues if queue.startswith("ingest")]


def test_a_worker_whose_engine_cannot_do_its_kind_does_not_start() -> None:
    ended = CliRunner().invoke(app, ["worker", "engine", "--stages", "caption"], env=STORES)
    assert ended.exit_code == 2
    assert "'cpu' cannot caption" in ended.output
