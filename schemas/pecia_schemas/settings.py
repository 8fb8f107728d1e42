"""Settings of clients and of the fleet: argument, then `PECIA_*` in the environment, then `.env`.

Two classes, one place. An unknown `PECIA_*` name is refused with a suggestion, so that a typing error never becomes a
silent default.
"""

from __future__ import annotations

import base64
import difflib
import os
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from pecia_schemas.encryption import Keyring
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Preparation

PREFIX = "PECIA_"

S = TypeVar("S", bound="ConnectionSettings")


def _seconds(value: Any) -> Any:
    """Take a bare number in the environment for seconds; pydantic wants a number that is no text."""
    with suppress(TypeError, ValueError):
        return float(value)
    return value


Duration = Annotated[timedelta, BeforeValidator(_seconds)]
"""Seconds, or ISO 8601 as in `PT15S`."""


_LEAST_KEY_BYTES = 24
"""Standard Webhooks' minimum."""


class SettingsError(ValueError):
    """A setting is unknown or has no meaning. Says which and why, never its value: that may be a password."""


class ConnectionSettings(BaseSettings):
    """Where the three stores are: what client and fleet must agree on."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

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
        known = known_names()
        for name in os.environ:
            if name.startswith(PREFIX) and name not in known:
                near = difflib.get_close_matches(name, sorted(known), n=1)
                hint = f"did you mean {near[0]}?" if near else "see docs/settings.md for the names there are."
                message = f"{name} is no setting of Pecia: {hint}"
                raise ValueError(message)
        return values

    def with_stores(self, *, database_url: str, redis_url: str, payload_url: str) -> Self:
        """Return a copy that points to these stores."""
        return self.model_copy(
            update={
                "database_url": SecretStr(database_url),
                "redis_url": SecretStr(redis_url),
                "payload_url": payload_url,
            }
        )


class ClientSettings(ConnectionSettings):
    """What an application that submits and waits can set."""

    client_name: str = ""
    """Who submits, for the operators' eyes: stored with each job. Empty: `user@host`."""
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


class WorkerSettings(ConnectionSettings):
    """What a fleet can set."""

    home: str = ""
    """Where `pecia up` keeps its servers' data. Empty: a directory of the user's (of the system's for root)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much the fleet says about its work."""
    log_format: Literal["text", "json"] = "text"
    """Logs for people or for machines; never text of a document in either."""

    engine: str = "cpu"
    """Which engine reads: `cpu` (English and Chinese by `rapidocr`, Korean by `tesseract` where that is installed; each
    of the two can be named alone), `vllm` (a vision-language model) or `openai` (a server that runs one); `simulated`
    and `simulated:instant` read nothing."""
    stages: Literal["", "read", "caption"] = ""
    """What an engine worker does: `read` documents or `caption` videos. Empty: both, as far as its engine can."""
    engine_processes: int = Field(default=0, ge=0)
    """Processes of the CPU engine. 0: one for each core."""
    tessdata: str = ""
    """Directory with Tesseract's language data, `kor.traineddata` and `eng.traineddata`. Empty: `TESSDATA_PREFIX`, then
    where the system's packages put it."""
    model: str = ""
    """The model that `vllm` runs: a directory, or a name on the Hugging Face Hub. For `openai`: what its server serves,
    by that name, or by a directory with the same checkpoint. Empty: what the profile recommends; the only one it
    serves."""
    profile: str = ""
    """Model and sizes for one kind of GPU, as `l4` or `h100`: what `vllm` takes where nothing is set here. Empty: for
    the GPU that is found, or `cpu`. `none`: vLLM's own choices."""
    prefer_quality: bool = False
    """Whether the profile's model shall be the one that reads best, rather than the one that reads most."""
    quantization: str = ""
    """How the model's weights are quantised. Empty: as its checkpoint says, which is right for AWQ."""
    max_model_len: int = Field(default=0, ge=0)
    """Most tokens of one request, picture, prompt and answer. Unset: as the profile says; 0: the model's own."""
    max_output_tokens: int = Field(default=0, ge=0)
    """Most tokens of one page's text. 0: what the rest of the request leaves."""
    caption_tokens: int = Field(default=0, ge=0)
    """Most tokens of one caption. Unset: as the profile says; 0: as its preset and style say."""
    max_num_seqs: int = Field(default=0, ge=0)
    """Requests that vLLM runs at a time. Unset: as the profile says; 0: vLLM's own choice. So in all that follows."""
    max_num_batched_tokens: int = Field(default=0, ge=0)
    """Tokens in one step of vLLM, and the largest picture in tokens."""
    kv_cache_bytes: int = Field(default=0, ge=0)
    """Size of vLLM's KV cache, in bytes."""
    gpu_memory_utilization: float = Field(default=0, ge=0, le=1)
    """Share of the GPU's memory that vLLM takes, if the KV cache has no size of its own."""
    enforce_eager: bool = False
    """Start without compiling the model: sooner ready, slower on a GPU."""
    exact_cost: bool = True
    """Price each request by its model's own token formula, which is held against the engine at its start. Off: the
    engine counts once it holds the request."""
    adapters: dict[str, str] = Field(default_factory=dict)
    """LoRA adapters that tasks may name, as JSON: name and directory, `{"radiology": "/models/radiology"}`."""
    max_lora_rank: int = Field(default=64, ge=1)
    """Largest rank of the adapters."""
    kv_cache_dtype: str = ""
    """Type of the KV cache: `fp8` halves its memory. Empty: the model's own, as in all that follows."""
    kv_offload_bytes: int = Field(default=0, ge=0)
    """Main memory to which KV blocks are moved rather than dropped, in bytes."""
    kv_offload_backend: Literal["", "native", "lmcache"] = ""
    """Who moves them: vLLM itself or LMCache."""
    video_pruning_rate: float = Field(default=0, ge=0, lt=1)
    """Share of a clip's tokens that is dropped as redundant."""
    speculative_config: dict[str, Any] = Field(default_factory=dict)
    """Speculative decoding as JSON, by vLLM's names: `{"method": "ngram", "num_speculative_tokens": 5}`."""
    tensor_parallel_size: int = Field(default=0, ge=0)
    """GPUs that share one model. 0: one worker for each GPU."""
    video_frames: int = Field(default=16, ge=2, le=768)
    """Most frames of one video segment that the engine sees."""
    video_sampling: Literal["uniform", "fps", "scene"] = "uniform"
    """Which frames: so many of every segment, evenly; as many as `video_fps` says; or those where the picture
    changes."""
    video_fps: float = Field(default=1.0, gt=0, le=60)
    """Frames for each second of a segment, if they are sampled by `fps`."""
    video_segment: Duration = Field(default=timedelta(seconds=30), gt=timedelta())
    """Length of one segment of a video whose task names none."""
    video_pixels: int = Field(default=9_633_792, ge=100_352, le=200_000_000)
    """Most pixels of all frames of one segment together; frames are scaled down to it."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's engine as JSON, by its own names: `{"tensor_parallel_size": 2}`."""
    engine_url: str = ""
    """The server that `openai` asks, any that speaks OpenAI's chat API: `http://gpu-1:8000/v1`."""
    engine_api_key: SecretStr = SecretStr("")
    """What that server lets us in by. Empty: it asks for nothing."""
    engine_connections: int = Field(default=32, ge=1)
    """Requests at that server at a time. `PECIA_MAX_NUM_SEQS` wins if it is less."""
    engine_ready_timeout: Duration = timedelta(minutes=10)
    """How long that server may take to start, or be away, before the worker gives up."""
    engine_timeout: Duration = timedelta(minutes=2)
    """How long that server may be silent in the midst of a request."""
    max_in_flight: int = Field(default=0, ge=0)
    """Parts that one worker holds at a time. 0: as many as its engine wants."""
    max_tokens_in_flight: int = Field(default=0, ge=0)
    """Token budget of one worker. 0: what its engine can hold."""
    admission: Literal["continuous", "shortest", "dynamic", "static"] = "continuous"
    """When requests enter the engine: as soon as they fit, in the order of arrival or the shortest first, or in batches
    that close when full or after a wait."""
    batch_tokens: int = Field(default=4_000, ge=1)
    """Most tokens of a dynamic batch. 24 GB GPU: 3000, 40 GB: 6000."""
    batch_min: int = Field(default=10, ge=1)
    """Least size of a dynamic batch that closes because it is full."""
    batch_max: int = Field(default=100, ge=1)
    """Most requests in a dynamic batch. 24 GB GPU: 80, 40 GB: 150."""
    batch_concurrent: int = Field(default=20, ge=1)
    """Dynamic batches in the engine at a time. 24 GB GPU: 15, 40 GB: 30."""
    batch_window: Duration = timedelta(milliseconds=100)
    """How long the first request of a dynamic batch waits for others."""
    max_readings: int = Field(default=4, ge=1)
    """Readings of one page by a language model, the first among them, before the best one stands. 1: never twice."""
    fallback_engine: Literal["", "cpu", "rapidocr", "tesseract"] = ""
    """CPU engine that gets the last try at a page of which no reading was good, if its task names a language that this
    engine knows. Empty: none."""
    fallback_processes: int = Field(default=1, ge=1)
    """Processes of that engine, half a gigabyte each: so many pages at a time."""
    cache: bool = True
    """Whether what was read before, by the same model in the same way, is the result at once. A task can say no."""
    cache_by: str = ""
    """Metadata key by which results are shared: jobs with the same value share theirs. Empty, or a job without that
    key: only jobs of the same client with the very same metadata."""
    cache_revision: str = ""
    """Any text that changes when the model or its adapters do. Needed where Pecia cannot see that: results of `openai`
    are shared only if this is set. For `vllm` it stands for the files, which are not read then."""
    output_quantile: float = Field(default=0.75, gt=0, lt=1)
    """Share of a workload's outputs that are no longer than what is reserved for one."""
    drain_timeout: Duration = timedelta(seconds=30)
    """How long a stopping worker may finish what it has begun before it gives the rest back."""

    lease: Duration = timedelta(seconds=15)
    """How long a silent worker keeps its parts. Leases are renewed every sixth of it."""
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
    """How long one attempt at a part may take."""

    source_hosts: tuple[str, ...] = ()
    """Hosts from which documents may be fetched by URL, as JSON: `["files.example.org", "*.example.com"]`. `[]`: all
    whose addresses are public."""
    source_allow: tuple[str, ...] = ()
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

    webhook_secret: SecretStr = SecretStr("")
    """Key that signs callbacks, `whsec_…` as Standard Webhooks write it. Empty: callbacks wait until it is set."""
    webhook_allow: tuple[str, ...] = ()
    """Networks that callbacks may reach although they are private, as JSON: `["10.1.0.0/16"]`."""
    webhook_ports: tuple[int, ...] = (443, 80)
    """Ports that callbacks may use, as JSON. `[]`: any."""
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

    upkeep_interval: Duration = timedelta(seconds=2)
    """How often the relay and the reapers look."""
    worker_timeout: Duration = timedelta(seconds=30)
    """How long a worker may be silent in Postgres before its parts are queued again."""
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

    remote_control: Literal["look", "revoke"] = "look"
    """What Celery's remote control, and so whoever can publish in Redis, may do to a worker: `look`, or also `revoke`
    parts. `pecia cancel` needs neither."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Where each process serves `/metrics`, `/healthz` and `/readyz`; one that finds it taken has one of the next 15.
    0: not at all."""
    metrics_address: str = "127.0.0.1"
    """The address it listens on. They tell counts and no ids, and ask for no password."""
    flower_port: int = Field(default=5555, ge=0, le=65535)
    """Where `pecia up` serves Flower, on loopback. 0: not at all."""

    @field_validator("lane_shares")
    @classmethod
    def _leave_something(cls, shares: dict[Lane, float]) -> dict[Lane, float]:
        if Lane.URGENT in shares or sum(shares.values()) >= 1:
            message = "names the lower lanes alone: the urgent one has the rest, so less than 1 in all."
            raise ValueError(message)
        return shares

    @field_validator("source_allow", "webhook_allow")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        try:
            for network in networks:
                ip_network(network)
        except ValueError:
            message = "names what is no network: write `10.1.0.0/16`, or `10.1.2.3/32` for one address."
            raise ValueError(message) from None
        return networks

    @field_validator("source_buckets")
    @classmethod
    def _are_buckets(cls, buckets: tuple[str, ...]) -> tuple[str, ...]:
        for bucket in buckets:
            segments = bucket.removesuffix("/").split("/")
            if ":" in segments[0] or any(segment in ("", ".", "..") for segment in segments):
                message = "names what is no bucket: write `scans`, or `archive/outbox/` for a part of one, without `s3://`."
                raise ValueError(message)
        return buckets

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


def read_settings(settings: type[S]) -> S:
    """Return the settings that the environment and `.env` give. Raises `SettingsError`."""
    try:
        return settings()
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
    return frozenset(
        PREFIX + field.upper()
        for settings in (ClientSettings, WorkerSettings)
        for field in settings.model_fields
    )
