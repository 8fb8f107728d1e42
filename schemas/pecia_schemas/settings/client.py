"""What an application that submits and waits can set."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field, SecretStr

from pecia_schemas import lengths
from pecia_schemas.settings.base import ConnectionSettings, Duration
from pecia_schemas.states import Lane


class ClientSettings(ConnectionSettings):
    """What an application that submits and waits can set."""

    client_name: Annotated[str, Field(max_length=lengths.NAME)] = ""
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
