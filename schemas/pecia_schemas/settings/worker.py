"""off."""

import base64
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator

from pecia_schemas.settings import ConnectionSettings, Duration, Networks
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Preparation

_LEAST_KEY_BYTES = 24
"""Minimum in Standard Webhooks."""


class EngineSettings(ConnectionSettings):
    """Model and engine."""

    engine: str = "cpu"
    """Engine that reads: `cpu` (English and Chinese by `rapidocr`, Korean by `tesseract` where that is installed; each
    can also be set alone), `vllm` (a vision-language model), `ray` (such a model on a Ray cluster, only for
    pages) or `openai` (a server with a model); `simulated` and `simulated:instant` do not read."""
    stages: Literal["", "read", "caption"] = ""
    """Work of an engine worker: `read` documents or `caption` videos. Empty: both, if the engine can."""
    engine_processes: int = Field(default=0, ge=0)
    """Processes of the CPU engine. 0: one for each core."""
    tessdata: str = ""
    """Directory of Tesseract's language data, `kor.traineddata` and `eng.traineddata`. Empty: `TESSDATA_PREFIX`, then
    the directory of the system's packages."""
    model: str = ""
    """Model for `vllm` or `ray`: a directory, or a name on the Hugging Face Hub. For `openai`: the name of a model on
    its server, or a directory with the same checkpoint. Empty: the profile's recommendation, or the only one served."""
    card: str = ""
    """Reader card with the model's prompt and answer format, such as `olmocr`. Empty: chosen by
    the model's name."""
    profile: str = ""
    """Model and sizes for one kind of GPU, such as `l4` or `h100`: defaults of `vllm` for unset values. Empty: for the
    GPU that is found, or `cpu`. `none`: vLLM's own defaults. A name that ends with `.toml`: a file from
    `pecia engine tune`."""
    prefer_quality: bool = False
    """Whether to use the profile's model for quality instead of the one for speed."""
    quantization: str = ""
    """Quantisation of the model's weights. Empty: from the checkpoint, which is right for AWQ."""
    max_model_len: int = Field(default=0, ge=0)
    """Maximum tokens of a request: picture, prompt and answer. Unset: from the profile; 0: the model's own maximum."""
    max_output_tokens: int = Field(default=0, ge=0)
    """Maximum tokens of a page's text. 0: all that the rest of the request leaves."""
    caption_tokens: int = Field(default=0, ge=0)
    """Maximum tokens of a caption. Unset: from the profile; 0: from its preset and style."""
    max_num_seqs: int = Field(default=0, ge=0)
    """Requests that vLLM runs at a time. Unset: from the profile; 0: vLLM's default. Also for the next settings."""
    page_seconds: float = Field(default=0, ge=0)
    """Maximum seconds for a page in a full engine: the plan then reads fewer pages at a time, if necessary. 0: the most
    efficient number."""
    max_num_batched_tokens: int = Field(default=0, ge=0)
    """Maximum tokens in one step of vLLM. A single picture may exceed it."""
    kv_cache_bytes: int = Field(default=0, ge=0)
    """Size of vLLM's KV cache, in bytes."""
    gpu_memory_utilization: float = Field(default=0, ge=0, le=1)
    """Share of the GPU's memory for vLLM, if the KV cache has no size of its own."""
    enforce_eager: bool = False
    """Start without compiling the model: starts sooner, but runs slower on a GPU."""
    preparers: int | None = Field(default=None, ge=0)
    """Processes that prepare pages for `vllm` before admission. 0: a thread of the worker prepares them. Unset:
    one for every four cores, at most four."""
    prepared_bytes: int = Field(default=1024**3, ge=1)
    """Maximum bytes of prepared pages that wait for room in the engine. An urgent page does not count those of
    lower lanes."""
    adapters: dict[str, str] = Field(default_factory=dict)
    """LoRA adapters that tasks may name, as JSON of names and directories: `{"radiology": "/models/radiology"}`."""
    max_lora_rank: int = Field(default=64, ge=1)
    """Maximum rank of the adapters."""
    kv_cache_dtype: str = ""
    """Type of the KV cache: `fp8` halves its memory. Empty: the model's own. The same holds for the next settings."""
    kv_offload_bytes: int = Field(default=0, ge=0)
    """Bytes of main memory for KV blocks that would otherwise be dropped."""
    kv_offload_backend: Literal["", "native", "lmcache"] = ""
    """What moves these blocks: vLLM itself or LMCache."""
    video_pruning_rate: float = Field(default=0, ge=0, lt=1)
    """Share of a video segment's tokens that is dropped as redundant."""
    speculative_config: dict[str, Any] = Field(default_factory=dict)
    """Speculative decoding as JSON, with vLLM's names: `{"method": "ngram", "num_speculative_tokens": 5}`."""
    tensor_parallel_size: int = Field(default=0, ge=0)
    """Number of GPUs that share one model. 0: one worker for each GPU."""
    ray_engines: int = Field(default=0, ge=0)
    """Copies of the model that `ray` runs in its cluster. 0: as many as the GPUs can hold."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's engine as JSON, with its own names: `{"tensor_parallel_size": 2}`."""
    engine_url: str = ""
    """Server for `openai`, with OpenAI's chat API: `http://gpu-1:8000/v1`."""
    engine_api_key: SecretStr = SecretStr("")
    """API key for that server. Empty: it needs none."""
    engine_connections: int = Field(default=32, ge=1)
    """Maximum simultaneous requests to that server. A lower `PECIA_MAX_NUM_SEQS` takes precedence."""
    engine_ready_timeout: Duration = timedelta(minutes=10)
    """How long the worker waits for that server to start or return before it gives up."""
    engine_timeout: Duration = Field(default=timedelta(minutes=2), gt=timedelta())
    """Maximum silence of that server during a request."""


class BatchingSettings(ConnectionSettings):
    """Amount of work in the engine."""

    max_in_flight: int = Field(default=0, ge=0)
    """Parts that one worker holds at a time. 0: as many as its engine needs."""
    max_tokens_in_flight: int = Field(default=0, ge=0)
    """Token budget of one worker. 0: the capacity of its engine."""
    admission: Literal["continuous", "shortest", "dynamic", "static"] = "continuous"
    """When requests enter the engine: as soon as they fit, in order of arrival or shortest first, or in batches
    that close when full or after a wait."""
    batch_tokens: int = Field(default=0, ge=0)
    """Maximum tokens of a dynamic batch. 0: the engine's capacity, divided by the number of simultaneous batches."""
    batch_min: int = Field(default=10, ge=1)
    """Minimum size of a dynamic batch that closes because it is full."""
    batch_max: int = Field(default=100, ge=1)
    """Maximum requests in a dynamic batch. 24 GB GPU: 80, 40 GB: 150."""
    batch_concurrent: int = Field(default=20, ge=1)
    """Simultaneous dynamic batches in the engine. 24 GB GPU: 15, 40 GB: 30."""
    batch_window: Duration = timedelta(milliseconds=100)
    """How long the first request of a dynamic batch waits for others."""
    beside_urgent: float = Field(default=0.1, gt=0, le=1)
    """Share of the engine's time in which pages of lower lanes may start while an urgent one is in it. Started pages
    continue. 1: no restriction."""
    output_quantile: float = Field(default=0.5, gt=0, lt=1)
    """Share of a workload's outputs that are at most as long as the expected length."""


class ReadingSettings(ConnectionSettings):
    """Reading of pages and captioning of videos."""

    max_readings: int = Field(default=4, ge=1)
    """Maximum readings of a page by a language model, including the first; the best is kept. 1: never repeated."""
    log_probabilities: bool = True
    """Request token probabilities of a page from a language model: the source of `doubts` and `confidence`."""
    fallback_engine: Literal["", "cpu", "rapidocr", "tesseract"] = ""
    """CPU engine for a last attempt at a page without a good reading, if its task names a language of that
    engine. Empty: none."""
    fallback_processes: int = Field(default=1, ge=1)
    """Processes of that engine, each half a gigabyte for one page at a time."""
    witness: Literal["auto", "layer", "ocr", "none"] = "auto"
    """Witness of a page that a language model reads, to find swapped, invented or missing text: the page's text
    `layer` or the CPU engine (`ocr`). `auto`: whichever exists, if the engine is a language model. Tasks may differ."""
    witness_processes: int = Field(default=0, ge=0)
    """Processes of the CPU engine as witness, each half a gigabyte. 0: one for each core without a decoder, among the
    cores for each GPU of the machine; at least one for every second core."""
    witness_device: Literal["cpu", "cuda"] = "cpu"
    """Device for the networks of a witness. `cuda` needs onnxruntime-gpu instead of onnxruntime, and is untested."""
    canary_every: int = Field(default=0, ge=0)
    """Number of pages between canary pages, whose text is known. Results of an engine are committed after a correct
    canary; otherwise a new engine reads the pages again. 0: never."""
    cache: bool = True
    """Whether an earlier reading by the same model and options is reused. A task can disable this."""
    cache_by: str = ""
    """Metadata key for sharing results: jobs with the same value share them. Empty, or a job without that
    key: only jobs of the same client with exactly the same metadata."""
    cache_revision: str = ""
    """Any text that changes with the model or its adapters. Needed where Pecia cannot detect that: results of `openai`
    are shared only if this is set. For `vllm` it replaces the files, which are then not read."""
    video_frames: int = Field(default=16, ge=2, le=768)
    """Maximum frames of a video segment for the engine."""
    video_sampling: Literal["uniform", "fps", "scene"] = "uniform"
    """Selection of frames: a fixed number for every segment, evenly spaced; a number according to `video_fps`; or
    frames at changes of the picture."""
    video_fps: float = Field(default=1.0, gt=0, le=60)
    """Frames for each second of a segment, if sampled by `fps`."""
    video_segment: Duration = Field(default=timedelta(seconds=30), gt=timedelta())
    """Length of a video segment if the task has none."""
    video_pixels: int = Field(default=9_633_792, ge=100_352, le=200_000_000)
    """Maximum pixels of all frames of a segment together; frames are scaled down to it."""


class DocumentSettings(ConnectionSettings):
    """Sources of documents, their limits and decoding."""

    source_hosts: tuple[str, ...] = ()
    """Hosts from which documents may be fetched by URL, as JSON: `["files.example.org", "*.example.com"]`. `[]`: all
    hosts with public addresses."""
    source_allow: Networks = ()
    """Private networks from which documents may be fetched, as JSON: `["10.1.0.0/16"]`."""
    source_ports: tuple[int, ...] = (443, 80)
    """Ports from which documents may be fetched, as JSON. `[]`: any."""
    source_buckets: tuple[str, ...] = ()
    """Buckets, or parts of them, whose objects any submitter may read by `s3://`, as JSON:
    `["scans", "archive/outbox/"]`. `[]`: none."""
    source_options: dict[str, str] = Field(default_factory=dict)
    """Options of the object store for `s3://` sources as JSON, including credentials. Empty: those of the payload
    store if it is S3, else the usual `AWS_*` variables."""
    source_timeout: Duration = Field(default=timedelta(minutes=2), gt=timedelta())
    """Maximum total time for fetching a document."""
    source_silence: Duration = Field(default=timedelta(seconds=15), gt=timedelta())
    """How long the server of a document's URL may take to accept a connection, or be silent."""

    max_payload_bytes: int = Field(default=512 * 1024**2, ge=1)
    """Maximum file size in bytes."""
    max_page_pixels: int = Field(default=40_000_000, ge=1)
    """Maximum pixels of a page, picture or frame."""
    max_total_pixels: int = Field(default=20_000_000_000, ge=1)
    """Maximum total pixels of a document's frames."""
    max_pages: int = Field(default=5_000, ge=1)
    """Maximum pages in a document."""
    max_video_duration: Duration = Field(default=timedelta(hours=2), gt=timedelta())
    """Maximum length of a video."""
    max_segments: int = Field(default=1_000, ge=1)
    """Maximum segments of a video."""
    render_dpi: int = Field(default=150, ge=36, le=600)
    """Resolution of rendered PDF pages, in dots per inch."""
    prepare: tuple[Preparation, ...] = tuple(Preparation)
    """Steps that prepare decoded pages, as JSON; omitted steps are disabled. `[]`: no
    preparation. A task can choose others."""
    decode_processes: int = Field(default=0, ge=0)
    """Processes that decode and render. 0: one for each core, at most four."""
    decode_timeout: Duration = Field(default=timedelta(seconds=60), gt=timedelta())
    """Maximum time for decoding a page or video segment before its process is ended."""
    decode_memory_bytes: int = Field(default=2 * 1024**3, ge=256 * 1024**2)
    """Address space of a decoding process in bytes, beyond its size at start."""
    spool_dir: str = ""
    """Directory for copies of payloads from S3, and decrypted ones during reading; in `/dev/shm` they never touch a
    disk. Empty: the temporary directory."""

    @field_validator("source_buckets")
    @classmethod
    def _are_buckets(cls, buckets: tuple[str, ...]) -> tuple[str, ...]:
        for bucket in buckets:
            segments = bucket.removesuffix("/").split("/")
            if ":" in segments[0] or any(segment in ("", ".", "..") for segment in segments):
                raise ValueError(
                    "contains an invalid bucket: write `scans`, or `archive/outbox/` for a part of one, without `s3://`."
                )
        return buckets


class RetentionSettings(ConnectionSettings):
    """Retention periods by kind of record."""

    keep_payloads: Duration = timedelta()
    """How long documents are kept after the end of the last job that uses them. 0: for ever, as in all that follows."""
    keep_results: Duration = timedelta()
    """How long results are kept after the end of their job. Its row and counters remain."""
    keep_events: Duration = timedelta()
    """How long events are kept."""
    keep_deliveries: Duration = timedelta()
    """How long delivered or abandoned callbacks are kept."""
    keep_jobs: Duration = timedelta()
    """How long jobs are kept after their end. A job is removed with all its data, including its document."""
    keep_audit: Duration = timedelta()
    """How long the log of reads and erasures of results is kept."""
    keep_workers: Duration = timedelta(days=1)
    """How long rows of stopped workers are kept."""


class FlowerSettings(ConnectionSettings):
    """Address and access of Flower."""

    flower_port: int = Field(default=5555, ge=0, le=65535)
    """Port of Flower in `pecia up` and `pecia flower`. 0: off."""
    flower_address: str = "127.0.0.1"
    """Listening address. For another than loopback, put a TLS proxy in front of it."""
    flower_user: str = "pecia"
    """User name for Flower."""
    flower_password: SecretStr = SecretStr("")
    """Password for Flower. Empty: `pecia up` creates one in its home, `pecia flower` refuses to start."""
    flower_max_tasks: int = Field(default=5_000, ge=1)
    """Maximum parts kept in memory, the latest ones: 90 MB for 5,000, half a gigabyte for 100,000."""
    flower_url_prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_/-]*$")
    """Path under which a proxy serves Flower, such as `flower` for `https://scans.example.org/flower/`."""

    @field_validator("flower_user")
    @classmethod
    def _is_user(cls, user: str) -> str:
        if not user or ":" in user or not _is_plain(user):
            raise ValueError("is not a valid user name: use printable ASCII without a colon.")
        return user

    @field_validator("flower_password")
    @classmethod
    def _is_password(cls, password: SecretStr) -> SecretStr:
        if not _is_plain(password.get_secret_value()):
            raise ValueError("must be printable ASCII only: browsers encode other characters differently.")
        return password


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


class GatewaySettings(ConnectionSettings):
    """Address and limits of the gateway."""

    gateway_port: int = Field(default=8780, ge=1, le=65535)
    """HTTP port of `pecia gateway` and `pecia up --gateway`."""
    gateway_address: str = "127.0.0.1"
    """Listening address. For another than loopback, put a TLS proxy in front of it."""
    gateway_max_bytes: int = Field(default=256 * 1024**2, ge=1)
    """Maximum bytes in the body of a request, including all its documents."""
    gateway_connections: int = Field(default=800, ge=1)
    """Simultaneous connections of a process. More need more file descriptors (`ulimit -n`)."""
    gateway_rate: float = Field(default=50, gt=0)
    """Requests per second for each key, at all gateways together; twice as many in short bursts."""
    gateway_streams: int = Field(default=50, ge=1)
    """Maximum open event streams, and requests that `wait` for a job's end, of a key."""
    gateway_upload_bytes: int = Field(default=512 * 1024**2, ge=1)
    """Maximum bytes of documents that a key may be sending to a process at a time; a single request may always be as
    large as `PECIA_GATEWAY_MAX_BYTES`."""
    gateway_spool_bytes: int = Field(default=2 * 1024**3, ge=1)
    """Maximum bytes of documents that all keys may be sending to a process; they are in its temporary directory."""
    gateway_drawings: int = Field(default=2, ge=1)
    """PDF and facsimile results that a process draws at a time, one of each key."""


class WebhookSettings(ConnectionSettings):
    """Signing, destinations and retries of callbacks."""

    webhook_secret: SecretStr = SecretStr("")
    """Key that signs the callbacks of jobs' own webhooks, `whsec_…` as in Standard Webhooks. Empty: `pecia up`
    with its own Postgres creates one in its home; elsewhere these callbacks wait until it is set."""
    webhook_allow: Networks = ()
    """Private networks that callbacks may reach, as JSON: `["10.1.0.0/16"]`."""
    webhook_ports: tuple[int, ...] = (443, 80)
    """Ports that callbacks may use, as JSON. `[]`: any."""
    webhook_listener: int = Field(default=0, ge=0, le=65535)
    """One more port for callbacks, on 127.0.0.1 and ::1 only. 0: none; but `pecia up` with its own Postgres
    allows 8787, the port of `pecia webhook listen`."""
    webhook_former_secret: SecretStr = SecretStr("")
    """The previous key, while receivers change theirs: callbacks have both signatures. Empty: only one."""
    webhook_timeout: Duration = Field(default=timedelta(seconds=15), gt=timedelta())
    """Maximum total time for a receiver."""
    webhook_concurrency: int = Field(default=4, ge=1)
    """Callbacks that a webhook worker posts to one endpoint at a time, if the endpoint accepted the last one."""
    webhook_attempts: int = Field(default=14, ge=1)
    """Maximum number of attempts before a delivery is dead."""
    webhook_retry_delay: Duration = Field(default=timedelta(seconds=5), gt=timedelta())
    """Wait before the second attempt; three times as long before each further one, with jitter."""
    webhook_retry_longest: Duration = Field(default=timedelta(hours=12), gt=timedelta())
    """Maximum wait between two attempts, even if a receiver asks for more."""
    webhook_pause_after: int = Field(default=10, ge=1)
    """Consecutive failures of an endpoint before it is paused: then one callback at a time tests
    whether it is back."""
    webhook_pause: Duration = Field(default=timedelta(minutes=1), gt=timedelta())
    """First such pause; each further one is twice as long, up to an hour."""
    webhook_give_up: Duration = Field(default=timedelta(days=4), gt=timedelta())
    """Age at which a delivery is dead, after any number of attempts."""
    webhook_links: dict[str, str] = Field(default_factory=dict)
    """Links in callbacks, as JSON, where `{job_id}` stands for the job's id:
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
            raise ValueError(
                f"is not a valid key: write `whsec_` and at least {_LEAST_KEY_BYTES} random bytes in base64."
            )
        return secret


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
    """All settings of a fleet."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Log level of the fleet."""
    log_format: Literal["text", "json"] = "text"
    """Logs for people or for machines; neither contains text of a document."""
    watch_folder: str = ""
    """Folder that `pecia up` watches like `pecia watch-folder`, created if missing, or s3://bucket/prefix."""
    drain_timeout: Duration = timedelta(seconds=30)
    """How long a stopping worker may finish started work before it returns the rest."""
    termination_notice: str = Field(default="", pattern=r"^(/.*)?$")
    """Absolute path of a file that announces the end of this machine: its workers then stop as on
    SIGTERM. Empty: only SIGTERM stops them."""

    lease: Duration = Field(default=timedelta(seconds=15), gt=timedelta())
    """How long a worker's heartbeat may be missing before it is considered dead and its parts run elsewhere. It beats
    four times in this time, and at least every five seconds: below ten seconds, all processes need the same value."""
    max_deaths: int = Field(default=3, ge=1)
    """Worker deaths on a part before it fails as `poisoned`. For its last attempt it runs alone in its worker."""
    lane_shares: dict[Lane, Annotated[float, Field(ge=0)]] = Field(
        default_factory=lambda: {Lane.NORMAL: 0.1, Lane.BULK: 0.05}
    )
    """Share of the claimed tokens for a lower lane while it has waiting parts, as JSON. A lane that is not listed gets
    the rest that higher ones leave."""
    lane_patience: Duration = timedelta(minutes=1)
    """A lower lane with waiting parts that was not served for this time gets one part first. 0: never."""
    max_attempts: int = Field(default=4, ge=1)
    """Maximum attempts at a part with a retryable failure."""
    retry_delay: Duration = timedelta(seconds=2)
    """Wait before the second attempt; doubles with each further one, with jitter."""
    part_timeout: Duration = Field(default=timedelta(minutes=5), gt=timedelta())
    """Maximum working time of an attempt at a part; waits for a decoder, the engine or a store do not count."""

    upkeep_interval: Duration = Field(default=timedelta(seconds=2), gt=timedelta())
    """Interval of the relay."""

    remote_control: Literal["look", "revoke"] = "look"
    """Permissions of Celery's remote control, and so of every publisher in Redis, on a worker: `look`, or also `revoke`
    parts. `pecia cancel` needs neither."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of `/metrics`, `/healthz` and `/readyz` in each process; if taken, one of the next 15."""
    metrics_address: str = "127.0.0.1"
    """Listening address. The pages show counts and no ids, and need no password."""

    @field_validator("lane_shares")
    @classmethod
    def _leave_something(cls, shares: dict[Lane, float]) -> dict[Lane, float]:
        if Lane.URGENT in shares or sum(shares.values()) >= 1:
            raise ValueError("must name lower lanes only, with a sum below 1: the urgent lane gets the rest.")
        return shares
