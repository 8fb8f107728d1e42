from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines import EngineUnavailableError, create_engine

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


@pytest.mark.parametrize(
    ("name", "model"),
    [("simulated", "iteration-level"), ("simulated:instant", "instant"), ("rapidocr", "PP-OCRv6-small")],
)
def test_the_settings_choose_the_engine(name: str, model: str) -> None:
    assert create_engine(WorkerSettings(engine=name)).capabilities.model == model


def test_an_unknown_engine_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(EngineUnavailableError, match=r"PECIA_ENGINE is one of: rapidocr, simulated"):
        create_engine(WorkerSettings(engine="tesseract"))


def test_a_missing_extra_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without_rapidocr(name: str) -> ModuleSpec | None:
        return None if name == "rapidocr" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_rapidocr)

    with pytest.raises(EngineUnavailableError, match=r"needs rapidocr: pip install 'pecia\[local\]'"):
        create_engine(WorkerSettings(engine="rapidocr"))
