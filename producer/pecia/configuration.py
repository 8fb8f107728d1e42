"""Which stores a client talks to: its arguments, the settings, or the fleet that runs on this machine."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from pydantic import SecretStr

from pecia.errors import ConfigurationError, InvalidSettingError
from pecia_schemas import refusals, running, storable, tracing
from pecia_schemas.messages import CANCEL_CHANNEL, job_channel
from pecia_schemas.settings import ClientSettings, SettingsError, read_settings
from pecia_schemas.states import JobState

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline as AsyncPipeline
    from redis.client import Pipeline

    from pecia_schemas.settings.worker import DocumentSettings

R = TypeVar("R")

_STORES = ("database_url", "redis_url", "payload_url")


def resolve(
    settings: ClientSettings | None,
    *,
    database_url: str | None,
    redis_url: str | None,
    payload_url: str | None,
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
            "pip install 'pecia[stores]', or name a gateway: Client(\"https://…\", api_key=…), PECIA_GATEWAY_URL."
        )
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


def document_settings() -> DocumentSettings:
    """Return how buckets of documents are reached. Raises `InvalidSettingError`."""
    from pecia_schemas.settings.worker import DocumentSettings  # noqa: PLC0415  most clients reach no bucket

    try:
        return read_settings(DocumentSettings)
    except SettingsError as error:
        raise InvalidSettingError(str(error)) from None


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


def redis_url(settings: ClientSettings) -> str:
    """Return where Redis is. Raises `InvalidSettingError` for a URL of something else, before Redis is needed."""
    url = settings.redis_url.get_secret_value()
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise no_redis_url()
    return url


def no_redis_url() -> InvalidSettingError:
    """Return what is wrong with a URL that names no Redis."""
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
        if running.running_fleets():
            raise InvalidSettingError(str(error)) from None
        raise ConfigurationError(str(error)) from None
    return {name: str(getattr(fleet, name)) for name in _STORES}


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"PECIA_{name.upper()}" for name in names)


log = logging.getLogger(__name__)

_CONNECT_S = 1.0
_SOCKET_S = 5.0
RETRIES = 1
"""Of a command: a pooled connection may have gone stale."""
_REST_S = 5.0
"""How long a Redis that failed is left alone."""


class Breaker:
    """A circuit breaker before Redis: one that failed is left alone for a while, and a refusal is told once."""

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url
        self._rests_until = 0.0
        self._complained = False

    @property
    def resting(self) -> bool:
        """Whether Redis is left alone at this moment."""
        return time.monotonic() < self._rests_until

    def rest(self) -> None:
        """Leave Redis alone for a while: it has just failed."""
        self._rests_until = time.monotonic() + _REST_S

    def failed(self, error: Exception) -> None:
        """Leave Redis alone. Say once if it refuses us: that, unlike an outage, does not mend, and fails no call."""
        self.rest()
        if not self._complained and (refusal := refusals.of_redis(error, self._url)):
            self._complained = True
            log.warning("%s Until then work waits for the fleet's relay.", refusal)


def announce(pipe: Pipeline | AsyncPipeline, job_ids: Collection[UUID], state: JobState) -> None:
    """Put on a pipeline what tells of jobs that they are in this state now."""
    for job_id in job_ids:
        if state is JobState.CANCELLED:
            pipe.publish(CANCEL_CHANNEL, str(job_id))
        pipe.publish(job_channel(job_id), state)


def open_redis(create: Callable[..., R], redis_url: str, connect_timeout: timedelta, retry: object) -> R:
    """Return a Redis as a client wants it, made by redis-py's `Redis.from_url` or its asynchronous twin."""
    try:
        return create(
            redis_url,
            decode_responses=True,
            encoding_errors="replace",  # a publisher can send what is no text
            socket_connect_timeout=min(_CONNECT_S, connect_timeout.total_seconds()),
            socket_timeout=_SOCKET_S,
            retry=retry,
        )
    except ValueError:
        raise no_redis_url() from None
