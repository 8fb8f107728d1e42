"""How callbacks are signed, where they may go, and how often they are tried."""

from __future__ import annotations

import base64
from datetime import timedelta

from pydantic import Field, SecretStr, field_validator

from pecia_schemas.settings.base import ConnectionSettings, Duration
from pecia_schemas.settings.networks import Networks

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
