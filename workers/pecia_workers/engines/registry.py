"""Which engine a worker runs, by the name in its settings."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.base import Engine


class EngineUnavailableError(ValueError):
    """The engine that the settings name cannot run here; the message says what to change or install."""


def create_engine(settings: WorkerSettings) -> Engine:
    """Return the engine that `settings.engine` names, not started. Raises `EngineUnavailableError`."""
    create = _ENGINES.get(settings.engine)
    if create is None:
        message = (
            f"There is no engine {settings.engine!r}. PECIA_ENGINE is one of: {', '.join(sorted(_ENGINES))}."
        )
        raise EngineUnavailableError(message)
    return create(settings)


def _rapidocr(settings: WorkerSettings) -> Engine:
    missing = [name for name in ("rapidocr", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        message = f"The engine 'rapidocr' needs {' and '.join(missing)}: pip install 'pecia[local]'."
        raise EngineUnavailableError(message)
    from pecia_workers.engines.rapidocr import RapidOcrEngine  # noqa: PLC0415  comes with pecia[local]

    return RapidOcrEngine(settings)


def _simulated(_: WorkerSettings) -> Engine:
    from pecia_workers.engines.simulated import SimulatedEngine  # noqa: PLC0415  each engine loads alone

    return SimulatedEngine()


def _instant(_: WorkerSettings) -> Engine:
    from pecia_workers.engines.simulated import InstantEngine  # noqa: PLC0415  each engine loads alone

    return InstantEngine()


_ENGINES: dict[str, Callable[[WorkerSettings], Engine]] = {
    "rapidocr": _rapidocr,
    "simulated": _simulated,
    "simulated:instant": _instant,
}
