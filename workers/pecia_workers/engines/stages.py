"""What engines can do, known before any is started: which queues a worker consumes follows from it."""

from __future__ import annotations

from typing import Final

from pecia_schemas import Stage
from pecia_schemas.settings import WorkerSettings

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
