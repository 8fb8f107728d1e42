"""What a fleet can set."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator

from pecia_schemas.settings.base import ConnectionSettings, Duration
from pecia_schemas.settings.documents import DocumentSettings
from pecia_schemas.settings.engine import BatchingSettings, EngineSettings, ReadingSettings
from pecia_schemas.settings.flower import FlowerSettings
from pecia_schemas.settings.gateway import GatewaySettings
from pecia_schemas.settings.webhooks import WebhookSettings
from pecia_schemas.states import Lane


class RetentionSettings(ConnectionSettings):
    """How long what is kept."""

    keep_payloads: Duration = Field(default=timedelta(), ge=timedelta())
    """How long documents are kept after the last job that was given them is over. 0: for ever, as in all that
    follows."""
    keep_results: Duration = Field(default=timedelta(), ge=timedelta())
    """How long results are kept after their job is over. Its row and counters stay."""
    keep_events: Duration = Field(default=timedelta(), ge=timedelta())
    """How long events are kept."""
    keep_deliveries: Duration = Field(default=timedelta(), ge=timedelta())
    """How long callbacks are kept that have arrived or were given up."""
    keep_jobs: Duration = Field(default=timedelta(), ge=timedelta())
    """How long jobs are kept after they are over. With a job goes all that belongs to it, its document too."""
    keep_audit: Duration = Field(default=timedelta(), ge=timedelta())
    """How long it is kept who read a result and what was erased."""
    keep_workers: Duration = Field(default=timedelta(days=1), ge=timedelta())
    """How long the row of a worker that is gone is kept."""


class WorkerSettings(
    EngineSettings,
    BatchingSettings,
    ReadingSettings,
    DocumentSettings,
    WebhookSettings,
    RetentionSettings,
    FlowerSettings,
    GatewaySettings,
):
    """What a fleet can set."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much the fleet says about its work."""
    log_format: Literal["text", "json"] = "text"
    """Logs for people or for machines; never text of a document in either."""
    drain_timeout: Duration = timedelta(seconds=30)
    """How long a stopping worker may finish what it has begun before it gives the rest back."""
    termination_notice: str = ""
    """Where it is told that this machine will be taken away, so that its workers stop in time: `aws`, `gcp` or `azure`,
    the metadata service of that cloud; or the path of a file that appears then. Empty: they stop by SIGTERM alone."""
    termination_server: str = Field(default="", pattern=r"^(https?://\S+)?$")
    """Where that service answers, if not where the cloud has it: `http://[fd00:ec2::254]`."""

    lease: Duration = timedelta(seconds=15)
    """How long a worker's heartbeat may stand still before it is taken for dead and its parts run elsewhere. It beats
    four times within it, every five seconds at least: under ten seconds, all processes need the same."""
    max_deaths: int = Field(default=3, ge=1)
    """Workers that may die on a part before it fails as `poisoned`. Before the last of them it runs alone in its
    worker."""
    lane_shares: dict[Lane, Annotated[float, Field(ge=0)]] = Field(
        default_factory=lambda: {Lane.NORMAL: 0.1, Lane.BULK: 0.05}
    )
    """Share of the claimed tokens that a lower lane gets while something waits in it, as JSON. A lane that is not named
    gets what the higher ones leave."""
    lane_patience: Duration = Field(default=timedelta(minutes=1), ge=timedelta())
    """A lower lane in which something waits and that was not served for so long is served one part first. 0: never."""
    max_attempts: int = Field(default=4, ge=1)
    """Attempts at a part whose failure is retryable."""
    retry_delay: Duration = timedelta(seconds=2)
    """Wait before the second attempt; doubles with each further one, with jitter."""
    part_timeout: Duration = timedelta(minutes=5)
    """How long one attempt at a part may work; waits for a decoder, the engine or a store do not count."""

    upkeep_interval: Duration = timedelta(seconds=2)
    """How often the relay looks."""

    remote_control: Literal["look", "revoke"] = "look"
    """What Celery's remote control, and so every publisher in Redis, may do to a worker: `look`, or also `revoke`
    parts. `pecia cancel` needs neither."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Where each process serves `/metrics`, `/healthz` and `/readyz`; one that finds it taken has one of the next 15.
    0: not at all."""
    metrics_address: str = "127.0.0.1"
    """The address it listens on. They tell counts and no ids, and ask for no password."""

    @field_validator("termination_notice")
    @classmethod
    def _can_be_told(cls, notice: str) -> str:
        if notice not in ("", "aws", "gcp", "azure") and not notice.startswith("/"):
            message = "is aws, gcp, azure, or the path of a file from the root."
            raise ValueError(message)
        return notice

    @field_validator("lane_shares")
    @classmethod
    def _leave_something(cls, shares: dict[Lane, float]) -> dict[Lane, float]:
        if Lane.URGENT in shares or sum(shares.values()) >= 1:
            message = "names the lower lanes alone: the urgent one has the rest, so less than 1 in all."
            raise ValueError(message)
        return shares
