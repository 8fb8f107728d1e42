"""Which stores a client talks to: its arguments, the settings, or the fleet that runs on this machine."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from pydantic import SecretStr

from pecia.errors import ConfigurationError, InvalidSettingError
from pecia_schemas import running, storable, tracing
from pecia_schemas.installing import install_command
from pecia_schemas.settings import ClientSettings, ConnectionSettings, SettingsError, read_settings

if TYPE_CHECKING:
    from pecia_schemas.settings.worker import DocumentSettings

S = TypeVar("S", bound=ConnectionSettings)

_STORES = ("database_url", "redis_url", "payload_url")


def resolve(
    settings: ClientSettings | None = None,
    *,
    database_url: str | None = None,
    redis_url: str | None = None,
    payload_url: str | None = None,
    api_key: str | None = None,
) -> ClientSettings:
    """Return settings that name all three stores, or a gateway.

    Raises `ConfigurationError`, never with a URL in its text.
    """
    settings = settings or from_environment()
    if through := _gateway(settings, database_url, api_key):
        return through
    if find_spec("psycopg") is None:
        raise ConfigurationError(
            "A client without a gateway reaches Postgres, Redis and the payload store itself: "
            f'{install_command("stores")}, or name a gateway: Client("https://…", api_key=…), PECIA_GATEWAY_URL.'
        )
    given: dict[str, str] = {}
    for name, url in zip(_STORES, (database_url, redis_url, payload_url), strict=True):
        value = getattr(settings, name) if url is None else url
        given[name] = value.get_secret_value() if isinstance(value, SecretStr) else value
    missing = [name for name in _STORES if not given[name]]
    found_in = settings.found_in if database_url is redis_url is payload_url is None else ""
    if missing == list(_STORES):
        given, missing = _of_running_fleet(settings.home), []
        found_in = given.pop("found_in")
    if missing:
        names = ", ".join(f"PECIA_{name.upper()}" for name in missing)
        raise InvalidSettingError(f"Set {names} too: the three stores of a fleet belong together.")
    if settings.tracing:
        try:
            tracing.enable()
        except tracing.TracingUnavailableError as error:
            raise ConfigurationError(f"PECIA_TRACING {error}") from None
    return settings.with_stores(**given, found_in=found_in)


def located(settings: ClientSettings) -> ClientSettings:
    """Return settings whose stores are where they are now: a fleet that was found on this machine may have moved.

    It is looked up in its home alone, for another fleet does not have the jobs. While none runs there, the
    stores stay where they were.
    """
    if settings.found_in:
        with suppress(running.NoFleetError):
            return settings.with_stores(**_stores_of(running.find(settings.found_in)))
    return settings


def document_settings() -> DocumentSettings:
    """Return how buckets of documents are reached. Raises `InvalidSettingError`."""
    from pecia_schemas.settings.worker import DocumentSettings  # noqa: PLC0415  most clients reach no bucket

    return read(DocumentSettings)


def _gateway(settings: ClientSettings, url: str | None, api_key: str | None) -> ClientSettings | None:
    """Return settings that name a gateway and its key; None if stores are meant."""
    if url is None and not settings.database_url.get_secret_value():
        url = settings.gateway_url
    if not (url or "").startswith(("https://", "http://")):
        return None
    key = settings.api_key if api_key is None else SecretStr(api_key)
    if not key.get_secret_value().isascii() or not key.get_secret_value():
        raise InvalidSettingError(
            "A gateway wants a key: Client(url, api_key=…) or PECIA_API_KEY, as `pecia access create` printed it."
        )
    return settings.model_copy(update={"gateway_url": url, "api_key": key})


def database_url(settings: ClientSettings) -> str:
    """Return where Postgres is now."""
    return located(settings).database_url.get_secret_value()


def redis_url(settings: ClientSettings) -> str:
    """Return where Redis is now. Raises `InvalidSettingError` for a URL of something else."""
    url = located(settings).redis_url.get_secret_value()
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise no_redis_url()
    return url


def no_redis_url() -> InvalidSettingError:
    """Return the fault of a URL that names no Redis."""
    return InvalidSettingError(
        "PECIA_REDIS_URL is no URL of a Redis: it reads redis://, rediss:// or unix://."
    )


def client_name(settings: ClientSettings) -> str:
    """Return who submits: as set, else `user@host`."""
    if settings.client_name:
        return settings.client_name
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in passwd
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}".encode(errors="replace").decode()[: storable.NAME]


def from_environment() -> ClientSettings:
    """Return a client's settings from the environment and `.env`. Raises `InvalidSettingError`."""
    return read(ClientSettings)


def read(settings: type[S]) -> S:
    """Return settings from the environment and `.env`. Raises `InvalidSettingError`."""
    try:
        return read_settings(settings)
    except SettingsError as error:
        raise InvalidSettingError(str(error)) from None


def _of_running_fleet(home: str) -> dict[str, str]:
    try:
        fleet = running.find(home)
    except running.NoFleetError as error:
        if running.running_fleets():
            raise InvalidSettingError(str(error)) from None
        raise ConfigurationError(str(error)) from None
    return _stores_of(fleet)


def _stores_of(fleet: running.RunningFleet) -> dict[str, str]:
    return {name: str(getattr(fleet, name)) for name in _STORES} | {"found_in": fleet.home}
