"""The machine that a plan is for, and the settings that it is asked with."""

from __future__ import annotations

from typing import Any

from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.gpus import visible_gpus
from pecia_workers.engines.profiles import NO_PROFILE, Profile, memory_of, profile_named, profile_of


def asked_for(settings: WorkerSettings, *, model: str, quality: bool) -> WorkerSettings:
    """Return the settings of a vLLM worker with what was asked for."""
    changed: dict[str, Any] = {"engine": "vllm"}
    if model:
        changed["model"] = model
    if quality:
        changed["prefer_quality"] = True
    return settings.model_copy(update=changed)


def machine_named(name: str) -> tuple[Profile, int]:
    """Return the profile of this name and its GPU's memory; of the GPU that is here, without a name.

    Raises `EngineUnavailableError` for an unknown profile.
    """
    if name and name != NO_PROFILE:
        profile = profile_named(name)
        return profile, profile.memory_bytes
    gpus = visible_gpus()
    profile = profile_of(gpus)
    return profile, memory_of(profile, gpus)
