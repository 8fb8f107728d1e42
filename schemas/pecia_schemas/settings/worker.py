"""What a fleet can set."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator

from pecia_schemas.settings.base import ConnectionSettings, Duration, Networks
from pecia_schemas.settings.engine import BatchingSettings, EngineSettings, ReadingSettings
from pecia_schemas.settings.services import FlowerSettings, GatewaySettings, WebhookSettings
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Preparation


class DocumentSettings(ConnectionSettings):
    """Where documents may come from, how large they may be, how they are decoded."""

    source_hosts: tuple[str, ...] = ()
    """Hosts from which documents may be fetched by URL, as JSON: `["files.example.org", "*.example.com"]`. `[]`: all
    whose addresses are public."""
    source_allow: Networks = ()
    """Networks from which documents may be fetched although they are private, as JSON: `["10.1.0.0/16"]`."""
    source_ports: tuple[int, ...] = (443, 80)
    """Ports from which documents may be fetched, as JSON. `[]`: any."""
    source_buckets: tuple[str, ...] = ()
    """Buckets, or parts of them, whose objects any submitter may have read by `s3://`, as JSON:
    `["scans", "archive/outbox/"]`. `[]`: none."""
    source_options: dict[str, str] = Field(default_factory=dict)
    """Options of the object store for `s3://` sources as JSON, credentials among them. Empty: those of the payload
    store if that is S3, else the usual `AWS_*` variables."""
    source_timeout: Duration = Field(default=timedelta(minutes=2), gt=timedelta())
    """How long one fetch of a document may take in all."""
    source_silence: Duration = Field(default=timedelta(seconds=15), gt=timedelta())
    """How long the server of a document's URL may take to accept a connection, or be silent."""

    max_payload_bytes: int = Field(default=512 * 1024**2, ge=1)
    """Largest file, in bytes."""
    max_page_pixels: int = Field(default=40_000_000, ge=1)
    """Largest single page, picture or frame, in pixels."""
    max_total_pixels: int = Field(default=20_000_000_000, ge=1)
    """Largest sum of the pixels of a document's frames."""
    max_pages: int = Field(default=5_000, ge=1)
    """Most pages in one document."""
    max_video_duration: Duration = Field(default=timedelta(hours=2), gt=timedelta())
    """Longest video."""
    max_segments: int = Field(default=1_000, ge=1)
    """Most segments of one video."""
    render_dpi: int = Field(default=150, ge=36, le=600)
    """Resolution at which PDF pages are rendered, in dots per inch."""
    prepare: tuple[Preparation, ...] = tuple(Preparation)
    """Steps by which decoded pages are prepared, as JSON; what is left out is switched off. `[]`: pages are read as
    they are. A task can choose others."""
    decode_processes: int = Field(default=0, ge=0)
    """Processes that decode and render. 0: one for each core, at most four."""
    decode_timeout: Duration = timedelta(seconds=60)
    """How long decoding one page or video segment may take before its process is ended."""
    decode_memory_bytes: int = Field(default=2 * 1024**3, ge=256 * 1024**2)
    """Address space of one decoding process, in bytes, above what it needs to start."""
    spool_dir: str = ""
    """Where a worker keeps copies of payloads from S3, and decrypted ones while they are read; in `/dev/shm` they never
    touch a disk. Empty: the temporary directory."""

    @field_validator("source_buckets")
    @classmethod
    def _are_buckets(cls, buckets: tuple[str, ...]) -> tuple[str, ...]:
        for bucket in buckets:
            segments = bucket.removesuffix("/").split("/")
            if ":" in segments[0] or any(segment in ("", ".", "..") for segment in segments):
                message = "names what is no bucket: write `scans`, or `archive/outbox/` for a part of one, without `s3://`."
                raise ValueError(message)
        return buckets


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
