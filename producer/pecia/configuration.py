"""Finds the stores of a client: by its arguments, the settings, or the fleet that runs on this machine."""

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

    Raises `ConfigurationError`, whose text never contains a URL.
    """
    settings = settings or from_environment()
    if through := _gateway(settings, database_url, api_key):
        return through
    if find_spec("psycopg") is None:
        raise ConfigurationError(
            "A client without a gateway accesses Postgres, Redis and the payload store itself: "
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
        raise InvalidSettingError(f"Set {names} too: a client needs all three stores of a fleet.")
    if settings.tracing:
        try:
            tracing.enable()
        except tracing.TracingUnavailableError as error:
            raise ConfigurationError(f"PECIA_TRACING {error}") from None
    return settings.with_stores(**given, found_in=found_in)


def located(settings: ClientSettings) -> ClientSettings:
    """Return settings with the current URLs of the stores: a fleet that was found on this machine may have moved.

    The fleet is looked up only in its home, because another fleet does not have the jobs. While none runs there, the
    former URLs stay.
    """
    if settings.found_in:
        with suppress(running.NoFleetError):
            return settings.with_stores(**_stores_of(running.find(settings.found_in)))
    return settings


def document_settings() -> DocumentSettings:
    """Return the settings for access to buckets of documents. Raises `InvalidSettingError`."""
    from pecia_schemas.settings.worker import DocumentSettings  # noqa: PLC0415  most clients reach no bucket

    return read(DocumentSettings)


def _gateway(settings: ClientSettings, url: str | None, api_key: str | None) -> ClientSettings | None:
    """Return settings with a gateway and its key, or None if the client uses stores."""
    if url is None and not settings.database_url.get_secret_value():
        url = settings.gateway_url
    if not (url or "").startswith(("https://", "http://")):
        return None
    key = settings.api_key if api_key is None else SecretStr(api_key)
    if not key.get_secret_value().isascii() or not key.get_secret_value():
        raise InvalidSettingError(
            "A gateway needs a key: set api_key or PECIA_API_KEY to the key that `pecia access create` printed."
        )
    return settings.model_copy(update={"gateway_url": url, "api_key": key})


def database_url(settings: ClientSettings) -> str:
    """Return the current URL of Postgres."""
    return located(settings).database_url.get_secret_value()


def redis_url(settings: ClientSettings) -> str:
    """Return the current URL of Redis. Raises `InvalidSettingError` for any other URL."""
    url = located(settings).redis_url.get_secret_value()
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise no_redis_url()
    return url


def no_redis_url() -> InvalidSettingError:
    """Return the error for a URL that is not one of Redis."""
    return InvalidSettingError(
        "PECIA_REDIS_URL is not a Redis URL: it must begin with redis://, rediss:// or unix://."
    )


def client_name(settings: ClientSettings) -> str:
    """Return the client's name: as set, or else `user@host`."""
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
