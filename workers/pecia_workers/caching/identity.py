"""Who reads: all of a worker that its readings depend on, beside the page and the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import Capabilities

_DECISIVE: Final = (
    "card",
    "engine_options",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "max_output_tokens",
    "max_readings",
    "quantization",
    "speculative_config",
    "video_pruning_rate",
)
"""Settings on which the text depends. What they do to frames and pages shows in the pixels, and is left out."""


def identity_of(settings: WorkerSettings, engines: Sequence[Capabilities]) -> Mapping[str, Any] | None:
    """Return what two workers have in common whose readings are worth the same.

    None if a model could become another without a trace here: then nothing of it may be read later.
    """
    if not settings.cache_revision and any(engine.revision is None for engine in engines):
        return None
    return {
        "pecia": version("pecia"),
        "engines": [(engine.name, engine.model, engine.revision) for engine in engines],
        "revision": settings.cache_revision,
        "settings": {name: getattr(settings, name) for name in _DECISIVE},
    }
