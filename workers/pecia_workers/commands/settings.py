"""The fleet's settings for a command, the machine that is meant, and weights by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from pecia_schemas import running
from pecia_schemas.settings import SettingsError, WorkerSettings, read_settings
from pecia_workers.commands.showing import USAGE, refused
from pecia_workers.engines.models import visible_gpus
from pecia_workers.engines.profiles import NO_PROFILE, Profile, memory_of, profile_named, profile_of

MixOption = Annotated[str, typer.Option(help="Document types by weight: prescription=2,chart=1.")]
Quality = Annotated[
    bool, typer.Option("--quality", help="The model that reads best, not the one that reads most.")
]
ModelName = Annotated[str, typer.Option(help="Plan with this one: a directory, or a name on the Hub.")]


def settings_or_exit() -> WorkerSettings:
    """Return the settings of the environment; exit 2 with a sentence if one is wrong."""
    try:
        return read_settings(WorkerSettings)
    except SettingsError as error:
        raise refused(error, USAGE) from None


def require(needs: str, wanted: Mapping[str, object], otherwise: str) -> None:
    """Exit 2 with a sentence that names what is wanted and empty."""
    if missing := [name for name, value in wanted.items() if not value]:
        raise refused(f"{needs} {', '.join(missing)}{otherwise}", USAGE)


def settings_of_fleet() -> WorkerSettings:
    """Return the settings, pointing to a fleet that runs on this machine if they name no stores.

    Without such a fleet the stores stay unnamed. Exits 2 if it is open which fleet is meant.
    """
    settings = settings_or_exit()
    if settings.database_url.get_secret_value() or not (settings.home or running.running_fleets()):
        return settings
    try:
        fleet = running.find(settings.home)
    except running.NoFleetError as error:
        raise refused(error, USAGE) from None
    return settings.with_stores(
        database_url=fleet.database_url, redis_url=fleet.redis_url, payload_url=fleet.payload_url
    )


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


_Name = TypeVar("_Name", bound=StrEnum)


def weights(text: str, names: type[_Name], option: str) -> dict[_Name, float]:
    """Return the weights that an option gives; a name without one counts 1. Raises `typer.BadParameter`."""
    found = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if name not in set(names):
            raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}.", param_hint=option)
        try:
            found[names(name)] = float(weight or 1)
        except ValueError:
            raise typer.BadParameter(f"{weight!r} is no weight.", param_hint=option) from None
    if min(found.values()) < 0 or not sum(found.values()):
        raise typer.BadParameter("Weights are not negative, and one is more than 0.", param_hint=option)
    return found
