"""The fleet's settings for a command: a mistake in them is one line, not a traceback."""

from __future__ import annotations

import typer

from pecia_schemas import running
from pecia_schemas.settings import SettingsError, WorkerSettings, read_settings


def settings_or_exit() -> WorkerSettings:
    """Return the settings of the environment; exit 2 with a sentence if one is wrong."""
    try:
        return read_settings(WorkerSettings)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


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
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    return settings.with_stores(
        database_url=fleet.database_url, redis_url=fleet.redis_url, payload_url=fleet.payload_url
    )
