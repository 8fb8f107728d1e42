"""What Flower, the gateway and callbacks can be set to."""

from __future__ import annotations

import base64
from datetime import timedelta

from pydantic import Field, SecretStr, field_validator

from pecia_schemas.settings.base import ConnectionSettings, Duration, Networks


class FlowerSettings(ConnectionSettings):
    """Where Flower is served, and to whom."""

    flower_port: int = Field(default=5555, ge=0, le=65535)
    """Where `pecia up` and `pecia flower` serve Flower. 0: not at all."""
    flower_address: str = "127.0.0.1"
    """The address it listens on. On another than loopback, let a proxy with TLS stand before it."""
    flower_user: str = "pecia"
    """Whom it lets in."""
    flower_password: SecretStr = SecretStr("")
    """By which password. Empty: `pecia up` makes one and keeps it in its home, `pecia flower` refuses to start."""
    flower_max_tasks: int = Field(default=5_000, ge=1)
    """Most parts that it keeps in memory, the latest ones: 90 MB for 5,000, half a gigabyte for 100,000."""
    flower_url_prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_/-]*$")
    """Path under which a proxy serves it, as in `flower` for `https://scans.example.org/flower/`."""

    @field_validator("flower_user")
    @classmethod
    def _is_user(cls, user: str) -> str:
        if not user or ":" in user or not _is_plain(user):
            message = "is no name to log in by: printable ASCII without a colon."
            raise ValueError(message)
        return user

    @field_validator("flower_password")
    @classmethod
    def _is_password(cls, password: SecretStr) -> SecretStr:
        if not _is_plain(password.get_secret_value()):
            message = "holds what no browser sends alike: printable ASCII alone."
            raise ValueError(message)
        return password


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


class GatewaySettings(ConnectionSettings):
    """Where the gateway is served, and how much it takes."""

    gateway_port: int = Field(default=8780, ge=1, le=65535)
    """Where `pecia gateway` and `pecia up --gateway` serve HTTP."""
    gateway_address: str = "127.0.0.1"
    """The address it listens on. On another than loopback, let a proxy with TLS stand before it."""
    gateway_max_bytes: int = Field(default=256 * 1024**2, ge=1)
    """Most bytes in the body of a request, all its documents together."""
    gateway_rate: float = Field(default=50, gt=0)
    """Requests a second that each key may make, at each process of the gateway; for a moment twice as many."""
    gateway_streams: int = Field(default=20, ge=1)
    """Streams of events that a key may have open at a time, at each process."""


_LEAST_KEY_BYTES = 24
"""Standard Webhooks' minimum."""

LISTENER_PORT = 8787
"""Where `pecia webhook listen` listens, on this machine alone."""


class WebhookSettings(ConnectionSettings):
    """How callbacks are signed, where they may go, and how often they are tried."""

    webhook_secret: SecretStr = SecretStr("")
    """Key that signs the callbacks of jobs' own webhooks, `whsec_…` as Standard Webhooks write it. Empty: `pecia up`
    with its own Postgres makes one and keeps it in its home; elsewhere these callbacks wait until it is set."""
    webhook_allow: Networks = ()
    """Networks that callbacks may reach although they are private, as JSON: `["10.1.0.0/16"]`."""
    webhook_ports: tuple[int, ...] = (443, 80)
    """Ports that callbacks may use, as JSON. `[]`: any."""
    webhook_listener: int = Field(default=0, ge=0, le=65535)
    """One more port that callbacks may use, on 127.0.0.1 and ::1 alone. 0: none; but `pecia up` with its own Postgres
    lets in 8787, where `pecia webhook listen` listens."""
    webhook_former_secret: SecretStr = SecretStr("")
    """The key before that one, while receivers change theirs: callbacks bear both signatures. Empty: only one."""
    webhook_timeout: Duration = timedelta(seconds=15)
    """How long a receiver may take in all."""
    webhook_concurrency: int = Field(default=4, ge=1)
    """Callbacks that one webhook worker posts to one endpoint at a time."""
    webhook_attempts: int = Field(default=14, ge=1)
    """Tries before a delivery is dead."""
    webhook_retry_delay: Duration = Field(default=timedelta(seconds=5), gt=timedelta())
    """Wait before the second try; three times as long before each further one, with jitter."""
    webhook_retry_longest: Duration = Field(default=timedelta(hours=12), gt=timedelta())
    """Longest wait between two tries, also of one that a receiver asks for."""
    webhook_pause_after: int = Field(default=10, ge=1)
    """Tries at one endpoint that fail, one after the other, before it is paused: then one callback at a time tries
    whether it is back."""
    webhook_pause: Duration = Field(default=timedelta(minutes=1), gt=timedelta())
    """First such pause; each further one is twice as long, up to an hour."""
    webhook_give_up: Duration = Field(default=timedelta(days=4), gt=timedelta())
    """Age at which a delivery is dead, however often it was tried."""
    webhook_links: dict[str, str] = Field(default_factory=dict)
    """Links that callbacks carry, as JSON, `{job_id}` standing for the job's id:
    `{"job": "https://scans.example.org/jobs/{job_id}"}`."""

    @field_validator("webhook_secret", "webhook_former_secret")
    @classmethod
    def _is_key(cls, secret: SecretStr) -> SecretStr:
        encoded = secret.get_secret_value().removeprefix("whsec_")
        try:
            length = len(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))
        except ValueError:
            length = 0
        if secret and length < _LEAST_KEY_BYTES:
            message = f"is no key: write `whsec_` and at least {_LEAST_KEY_BYTES} random bytes in base64."
            raise ValueError(message)
        return secret
