"""Settings of clients and of the fleet: argument, then `PECIA_*` in the environment, then `.env`.

Two classes, `ClientSettings` and `WorkerSettings`, one place. An unknown `PECIA_*` name is refused with a suggestion,
so that a typing error never becomes a silent default.
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
"""Where `pecia webhook listen` listens, on this machine alone."""


def _are_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for network in networks:
            ip_network(network)
    except ValueError:
        raise ValueError(
            "names something that is no network: write `10.1.0.0/16`, or `10.1.2.3/32` for one address."
        ) from None
    return networks


Networks = Annotated[tuple[str, ...], AfterValidator(_are_networks)]
"""Networks of IPv4 or IPv6 with their prefix, or single addresses."""


def _seconds(value: Any) -> Any:
    """Take a bare number in the environment for seconds; pydantic wants a number that is no text."""
    with suppress(TypeError, ValueError):
        return float(value)
    return value


Duration = Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))]
"""Seconds, or ISO 8601 as in `PT15S`."""


class SettingsError(ValueError):
    """A setting is unknown or has no meaning. Says which and why, never its value: that may be a password."""


class ConnectionSettings(BaseSettings):
    """Where the three stores are: what client and fleet must agree on."""

    model_config = SettingsConfigDict(
        defer_build=True, env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True
    )

    home: str = ""
    """Where `pecia up` keeps its servers' data; clients without store URLs choose a fleet by it. Empty: a directory of
    the user's (of the system's for root); for clients the only fleet that runs on this machine."""
    database_url: SecretStr = SecretStr("")
    """Postgres, `postgresql://user:password@host/database`. Empty: the fleet that `pecia up` runs on this machine."""
    redis_url: SecretStr = SecretStr("")
    """Redis, `redis://`, `rediss://` or `unix://`. Empty: as above."""
    payload_url: str = ""
    """Where documents are stored: a directory or `s3://bucket/prefix`. Empty: as above."""
    payload_options: dict[str, str] = Field(default_factory=dict)
    """Options of the object store as JSON, for example `{"endpoint": "https://…", "region": "…"}`."""
    encryption_keys: SecretStr = SecretStr("")
    """Keys that documents and results are encrypted under, as JSON: `{"name": "32 bytes in base64"}`. The first
    encrypts, the others only decrypt. Empty: nothing is encrypted."""
    window: int = Field(default=WINDOW, ge=1)
    """Most parts of a stage and lane that wait in Redis. Further parts wait in Postgres, and their order is kept."""
    tracing: bool = False
    """Whether traces of jobs go to OpenTelemetry, which takes `pecia[otel]`: from the fleet and the `pecia` command to
    where the `OTEL_*` variables say, from an application by its own SDK."""
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
                hint = f"did you mean {near[0]}?" if near else "see docs/settings.md for the names there are."
                raise ValueError(f"{name} is no setting of Pecia: {hint}")
        return values

    @property
    def found_in(self) -> str:
        """Home of the fleet on this machine whose stores these are; empty if they were given by their URLs."""
        return self._found_in

    def with_stores(self, *, database_url: str, redis_url: str, payload_url: str, found_in: str = "") -> Self:
        """Return a copy that points to these stores, which may be those of a fleet that was found in its home."""
        urls = {"database_url": SecretStr(database_url), "redis_url": SecretStr(redis_url)}
        copy = self.model_copy(update=urls | {"payload_url": payload_url})
        copy._found_in = found_in  # noqa: SLF001  of this class
        return copy


def read_settings(settings: type[S]) -> S:
    """Return the settings that the environment and `.env` give. Raises `SettingsError`."""
    try:
        return settings()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise SettingsError(f"The file .env cannot be read: {reason}.") from None
    except UnparsableError as error:  # names the field, and what it is of
        name = next((name for name in settings.model_fields if f'"{name}"' in str(error)), "")
        raise SettingsError(_sentence((name,), "is no JSON: see docs/settings.md")) from None
    except ValidationError as error:
        # The error's own text repeats the input, passwords included.
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        sentence = "; ".join(_sentence(problem["loc"], problem["msg"]) for problem in problems)
        raise SettingsError(sentence) from None


def _sentence(location: tuple[int | str, ...], message: str) -> str:
    name = f"{PREFIX}{location[0]} ".upper() if location else ""
    return name + message.removeprefix("Value error, ")


def known_names() -> frozenset[str]:
    """Return every `PECIA_*` name that a client or the fleet understands."""
    from pecia_schemas.settings.worker import WorkerSettings  # noqa: PLC0415  a client does without it

    return _names(ClientSettings) | _names(WorkerSettings)


def _names(settings: type[BaseSettings]) -> frozenset[str]:
    return frozenset(PREFIX + field.upper() for field in settings.model_fields)


class ClientSettings(ConnectionSettings):
    """What an application that submits and waits can set."""

    client_name: Annotated[str, Field(max_length=storable.NAME)] = ""
    """Who submits, for the operators' eyes: stored with each job. Empty: `user@host`."""
    gateway_url: str = Field(default="", pattern=r"^(https?://\S+)?$")
    """The gateway by which a fleet is reached, in the place of its stores: `https://pecia.example.org`."""
    api_key: SecretStr = SecretStr("")
    """The key to show there, as `pecia access create` printed it."""
    poll_interval: Duration = timedelta(seconds=1)
    """How often a waiting client looks by itself when no announcement comes."""
    connect_timeout: Duration = timedelta(seconds=5)
    """How long Postgres or Redis may take to accept a connection."""
    fair_by: str = ""
    """Metadata key by which jobs take turns inside a lane: those with the same value, say a tenant, take theirs as one.
    Empty, or a job without that key: each job takes turns of its own."""
    max_backlog: dict[Lane, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Parts that may wait in a lane before a submit is refused, or waits, as JSON: `{"bulk": 100000}`. A document
    counts as one until it is cut into pages. A lane that is not named has no limit."""
    max_endpoints: int = Field(default=50, ge=1)
    """Endpoints that a tenant may have registered, through the gateway that has this setting; and that a client without
    a tenant may."""


def __getattr__(name: str) -> Any:
    if name != "WorkerSettings":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pecia_schemas.settings.worker import WorkerSettings  # noqa: PLC0415  a client does without it

    return WorkerSettings
