"""Settings of clients and of the fleet: argument, then `PECIA_*` in the environment, then `.env`.

An unknown `PECIA_*` name is refused with a suggestion, so that a typing error never has a silent effect.
"""

import difflib
import os
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, DotEnvSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as UnparsableError

from pecia_schemas import storable
from pecia_schemas.encryption import Keyring
from pecia_schemas.messages import WINDOW
from pecia_schemas.states import Lane

if TYPE_CHECKING:
    from pecia_schemas.settings.worker import WorkerSettings

__all__ = ["ClientSettings", "ConnectionSettings", "SettingsError", "WorkerSettings"]

S = TypeVar("S", bound="ConnectionSettings")

PREFIX = "PECIA_"

LISTENER_PORT = 8787
"""Port of `pecia webhook listen`, on this machine only."""


def _are_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for network in networks:
            ip_network(network)
    except ValueError:
        raise ValueError(
            "contains an invalid network: write `10.1.0.0/16`, or `10.1.2.3/32` for one address."
        ) from None
    return networks


Networks = Annotated[tuple[str, ...], AfterValidator(_are_networks)]
"""Networks of IPv4 or IPv6 with their prefix, or single addresses."""


def _seconds(value: Any) -> Any:
    """Convert a number in the environment to seconds; pydantic needs a number, not text."""
    with suppress(TypeError, ValueError):
        return float(value)
    return value


Duration = Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))]
"""Seconds, or ISO 8601 such as `PT15S`."""


class SettingsError(ValueError):
    """A setting is unknown or invalid. The message gives name and reason, never the value, which may be a password."""


class ConnectionSettings(BaseSettings):
    """Addresses of the three stores, and settings that client and fleet must share."""

    model_config = SettingsConfigDict(
        defer_build=True, env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True
    )

    home: str = ""
    """Data directory of `pecia up`, by which clients without store URLs choose a fleet. Empty: a directory of the user
    (of the system for root); for clients, the only fleet that runs on this machine."""
    database_url: SecretStr = SecretStr("")
    """Postgres, `postgresql://user:password@host/database`. Empty: the fleet that `pecia up` runs on this machine."""
    redis_url: SecretStr = SecretStr("")
    """Redis, `redis://`, `rediss://` or `unix://`. Empty: as above."""
    payload_url: str = ""
    """Store of documents: a directory or `s3://bucket/prefix`. Empty: as above."""
    payload_options: dict[str, str] = Field(default_factory=dict)
    """Options of the object store as JSON, for example `{"endpoint": "https://…", "region": "…"}`."""
    encryption_keys: SecretStr = SecretStr("")
    """Keys that encrypt documents and results, as JSON: `{"name": "32 bytes in base64"}`. The first encrypts, all can
    decrypt. Empty: no encryption."""
    window: int = Field(default=WINDOW, ge=1)
    """Maximum parts of a stage and lane that wait in Redis. Further parts wait in Postgres, and their order is kept."""
    tracing: bool = False
    """Whether job traces are sent to OpenTelemetry; needs `pecia[otel]`. The fleet and the `pecia` command use the
    `OTEL_*` variables, an application uses its own SDK."""
    _found_in: str = PrivateAttr(default="")

    @field_validator("encryption_keys")
    @classmethod
    def _are_keys(cls, setting: SecretStr) -> SecretStr:
        Keyring.of(setting)
        return setting

    @property
    def keyring(self) -> Keyring:
        """The encryption keys, ready for use."""
        return Keyring.of(self.encryption_keys)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_names(cls, values: Any) -> Any:
        own = _names(cls)
        for name in map(str.upper, (*os.environ, *DotEnvSettingsSource(cls).env_vars)):
            if name.startswith(PREFIX) and name not in own and name not in (known := known_names()):
                near = difflib.get_close_matches(name, sorted(known), n=1)
                hint = f"did you mean {near[0]}?" if near else "see docs/settings.md for all names."
                raise ValueError(f"{name} is not a setting of Pecia: {hint}")
        return values

    @property
    def found_in(self) -> str:
        """Home of the fleet on this machine that was found; empty if the stores were set by URL."""
        return self._found_in

    def with_stores(self, *, database_url: str, redis_url: str, payload_url: str, found_in: str = "") -> Self:
        """Return a copy with these stores, possibly those of a fleet found by its home."""
        urls = {"database_url": SecretStr(database_url), "redis_url": SecretStr(redis_url)}
        copy = self.model_copy(update=urls | {"payload_url": payload_url})
        copy._found_in = found_in  # noqa: SLF001  of this class
        return copy


def read_settings(settings: type[S]) -> S:
    """Return the settings from the environment and `.env`. Raises `SettingsError`."""
    try:
        return settings()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"The file .env cannot be read: {reason}.") from None
    except UnparsableError as error:  # names the field and its source
        name = next((name for name in settings.model_fields if f'"{name}"' in str(error)), "")
        raise SettingsError(_sentence((name,), "is not valid JSON: see docs/settings.md")) from None
    except ValidationError as error:
        # The error's own text repeats the input, including passwords.
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        sentence = "; ".join(_sentence(problem["loc"], problem["msg"]) for problem in problems)
        raise SettingsError(sentence) from None


def _sentence(location: tuple[int | str, ...], message: str) -> str:
    name = f"{PREFIX}{location[0]} ".upper() if location else ""
    return name + message.removeprefix("Value error, ")


def known_names() -> frozenset[str]:
    """Return every `PECIA_*` name of a client or the fleet."""
    from pecia_schemas.settings.worker import WorkerSettings  # noqa: PLC0415  a client does not need it

    return _names(ClientSettings) | _names(WorkerSettings)


def _names(settings: type[BaseSettings]) -> frozenset[str]:
    return frozenset(PREFIX + field.upper() for field in settings.model_fields)


class ClientSettings(ConnectionSettings):
    """Settings of an application that submits and waits."""

    client_name: Annotated[str, Field(max_length=storable.NAME)] = ""
    """Name of the submitter, stored with each job for operators. Empty: `user@host`."""
    gateway_url: str = Field(default="", pattern=r"^(https?://\S+)?$")
    """Gateway through which a fleet is reached, instead of its stores: `https://pecia.example.org`."""
    api_key: SecretStr = SecretStr("")
    """API key for the gateway, as printed by `pecia access create`."""
    poll_interval: Duration = timedelta(seconds=1)
    """How often a waiting client checks the job if no announcement comes."""
    connect_timeout: Duration = timedelta(seconds=5)
    """Maximum time for Postgres or Redis to accept a connection."""
    fair_by: str = ""
    """Metadata key for taking turns inside a lane: jobs with the same value, such as a tenant, share one turn. Empty,
    or a job without the key: each job has its own turns."""
    max_backlog: dict[Lane, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Maximum number of waiting parts in a lane before a submit is refused, or waits, as JSON: `{"bulk": 100000}`. A
    document counts as one until it is cut into pages. Lanes not listed have no limit."""
    max_endpoints: int = Field(default=50, ge=1)
    """Maximum number of endpoints that a tenant, or a client without a tenant, may register through the gateway with
    this setting."""


def __getattr__(name: str) -> Any:
    if name != "WorkerSettings":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pecia_schemas.settings.worker import WorkerSettings  # noqa: PLC0415  a client does not need it

    return WorkerSettings
