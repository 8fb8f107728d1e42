"""Where documents may come from, how large they may be, how they are decoded."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, field_validator

from pecia_schemas.settings.base import ConnectionSettings, Duration
from pecia_schemas.settings.networks import Networks
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
