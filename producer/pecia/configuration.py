"""Which stores a client talks to: its arguments, the settings, or the fleet that runs on this machine."""

from __future__ import annotations

import getpass
import os
import socket

from pydantic import SecretStr

from pecia.errors import ConfigurationError, InvalidSettingError
from pecia_schemas import lengths, running, tracing
from pecia_schemas.settings import ClientSettings, SettingsError, read_settings

_STORES = ("database_url", "redis_url", "payload_url")


def resolve(
    settings: ClientSettings | None,
    *,
    database_url: str | None,
    redis_url: str | None,
    payload_url: str | None,
) -> ClientSettings:
    """Return settings that name all three stores. Raises `ConfigurationError`, never with a URL in its text."""
    settings = settings or from_environment()
    given = _urls(settings) | {
        name: url
        for name, url in zip(_STORES, (database_url, redis_url, payload_url), strict=True)
        if url is not None
    }
    missing = [name for name in _STORES if not given[name]]
    if missing == list(_STORES):
        given, missing = _of_running_fleet(settings.home), []
    if missing:
        raise InvalidSettingError(f"Set {_listed(missing)} too: the three stores of a fleet belong together.")
    if settings.tracing:
        _trace()
    return settings.with_stores(**given)


def client_name(settings: ClientSettings) -> str:
    """Return who submits: as set, else `user@host`."""
    if settings.client_name:
        return settings.client_name
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in passwd
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}".encode(errors="replace").decode()[: lengths.NAME]


def from_environment() -> ClientSettings:
    """Return what the environment and `.env` say. Raises `InvalidSettingError`."""
    try:
        return read_settings(ClientSettings)
    except SettingsError as error:
        raise InvalidSettingError(str(error)) from None


def _trace() -> None:
    try:
        tracing.enable()
    except tracing.TracingUnavailableError as error:
        raise ConfigurationError(f"PECIA_TRACING {error}") from None


def _urls(settings: ClientSettings) -> dict[str, str]:
    values = {name: getattr(settings, name) for name in _STORES}
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in values.items()
    }


def _of_running_fleet(home: str) -> dict[str, str]:
    try:
        fleet = running.find(home)
    except running.NoFleetError as error:
        raise ConfigurationError(str(error)) from None
    return {name: str(getattr(fleet, name)) for name in _STORES}


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"PECIA_{name.upper()}" for name in names)
