"""What a fleet can set."""

import base64
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator

from pecia_schemas.settings import ConnectionSettings, Duration, Networks
from pecia_schemas.states import Lane
from pecia_schemas.tasks import Preparation

_LEAST_KEY_BYTES = 24
"""Standard Webhooks' minimum."""


class EngineSettings(ConnectionSettings):
    """The model and how it runs."""

    engine: str = "cpu"
    """Which engine reads: `cpu` (English and Chinese by `rapidocr`, Korean by `tesseract` where that is installed; each
    of the two can be named alone), `vllm` (a vision-language model), `ray` (one on a Ray cluster, for
    pages alone) or `openai` (a server that runs one); `simulated` and `simulated:instant` read nothing."""
    stages: Literal["", "read", "caption"] = ""
    """What an engine worker does: `read` documents or `caption` videos. Empty: both, as far as its engine can."""
    engine_processes: int = Field(default=0, ge=0)
    """Processes of the CPU engine. 0: one for each core."""
    tessdata: str = ""
    """Directory with Tesseract's language data, `kor.traineddata` and `eng.traineddata`. Empty: `TESSDATA_PREFIX`, then
    where the system's packages put it."""
    model: str = ""
    """The model that `vllm` or `ray` runs: a directory, or a name on the Hugging Face Hub. For `openai`: what its
    server serves, by that name, or by a directory with the same checkpoint. Empty: what the profile recommends; the
    only one it serves."""
    card: str = ""
    """Reader card that has the model's prompt and its form of answer, as `olmocr`. Empty: by
    the model's name."""
    profile: str = ""
    """Model and sizes for one kind of GPU, as `l4` or `h100`: what `vllm` takes where nothing is set here. Empty: for
    the GPU that is found, or `cpu`. `none`: vLLM's own choices. Ends with `.toml`: the file that `pecia engine tune`
    wrote."""
    prefer_quality: bool = False
    """Whether the profile's model shall be that of the best reading rather than that of the most pages."""
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
    page_seconds: float = Field(default=0, ge=0)
    """Seconds that a page may take in the engine when it is full: the plan then reads fewer pages at a time, if it has
    to. 0: as many as are worth it."""
    max_num_batched_tokens: int = Field(default=0, ge=0)
    """Tokens in one step of vLLM. A picture may have more."""
    kv_cache_bytes: int = Field(default=0, ge=0)
    """Size of vLLM's KV cache, in bytes."""
    gpu_memory_utilization: float = Field(default=0, ge=0, le=1)
    """Share of the GPU's memory that vLLM takes, if the KV cache has no size of its own."""
    enforce_eager: bool = False
    """Start without compiling the model: sooner ready, slower on a GPU."""
    preparers: int | None = Field(default=None, ge=0)
    """Processes that make pages ready for `vllm` before they are admitted. 0: the worker does it, on one thread. Unset:
    one for every four cores, at most four."""
    prepared_bytes: int = Field(default=1024**3, ge=1)
    """What pages that are ready may take while they wait for room in the engine, in bytes. For an urgent page those of
    lower lanes do not count."""
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
    ray_engines: int = Field(default=0, ge=0)
    """Copies of the model that `ray` runs in its cluster. 0: as many as its GPUs hold."""
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
    engine_timeout: Duration = Field(default=timedelta(minutes=2), gt=timedelta())
    """How long that server may be silent in the midst of a request."""


class BatchingSettings(ConnectionSettings):
    """What is in the engine at a time."""

    max_in_flight: int = Field(default=0, ge=0)
    """Parts that one worker holds at a time. 0: as many as its engine wants."""
    max_tokens_in_flight: int = Field(default=0, ge=0)
    """Token budget of one worker. 0: what its engine can hold."""
    admission: Literal["continuous", "shortest", "dynamic", "static"] = "continuous"
    """When requests enter the engine: as soon as they fit, in the order of arrival or the shortest first, or in batches
    that close when full or after a wait."""
    batch_tokens: int = Field(default=0, ge=0)
    """Most tokens of a dynamic batch. 0: what the engine holds, shared by the batches that run at a time."""
    batch_min: int = Field(default=10, ge=1)
    """Least size of a dynamic batch that closes because it is full."""
    batch_max: int = Field(default=100, ge=1)
    """Most requests in a dynamic batch. 24 GB GPU: 80, 40 GB: 150."""
    batch_concurrent: int = Field(default=20, ge=1)
    """Dynamic batches in the engine at a time. 24 GB GPU: 15, 40 GB: 30."""
    batch_window: Duration = timedelta(milliseconds=100)
    """How long the first request of a dynamic batch waits for others."""
    beside_urgent: float = Field(default=0.1, gt=0, le=1)
    """Share of the engine's time in which pages of lower lanes begin while an urgent one is in it. What has begun goes
    on. 1: they begin as ever."""
    output_quantile: float = Field(default=0.5, gt=0, lt=1)
    """Share of a workload's outputs that are no longer than the expected length."""


class ReadingSettings(ConnectionSettings):
    """How pages are read and videos watched."""

    max_readings: int = Field(default=4, ge=1)
    """Readings of one page by a language model, the first among them, before the best one stands. 1: never twice."""
    log_probabilities: bool = True
    """Ask a language model how sure it was of each token of a page: `doubts` and `confidence` come of it."""
    fallback_engine: Literal["", "cpu", "rapidocr", "tesseract"] = ""
    """CPU engine that gets the last try at a page of which no reading was good, if its task names a language that this
    engine knows. Empty: none."""
    fallback_processes: int = Field(default=1, ge=1)
    """Processes of that engine, half a gigabyte each: so many pages at a time."""
    witness: Literal["auto", "layer", "ocr", "none"] = "auto"
    """Who reads a page beside a language model, and finds what it swapped, made up or left out: its own text `layer`,
    else the CPU engine (`ocr`). `auto`: what there is, if the engine is a language model. A task can say otherwise."""
    witness_processes: int = Field(default=0, ge=0)
    """Processes of the CPU engine that do so, half a gigabyte each. 0: one for each core that no decoder has, of the
    cores that there are for each GPU of the machine; at least one for every second core."""
    witness_device: Literal["cpu", "cuda"] = "cpu"
    """Where the networks of a witness run. `cuda` takes onnxruntime-gpu in place of onnxruntime, and is untried."""
    canary_every: int = Field(default=0, ge=0)
    """Pages for which an engine is given one canary page, whose text is known; what it has read is committed once that
    was read right, and read again by a new engine if it was not. 0: never."""
    cache: bool = True
    """Whether an earlier reading by the same model in the same way is the result at once. A task can say no."""
    cache_by: str = ""
    """Metadata key by which results are shared: jobs with the same value share theirs. Empty, or a job without that
    key: only jobs of the same client with the very same metadata."""
    cache_revision: str = ""
    """Any text that changes when the model or its adapters do. Needed where Pecia cannot see that: results of `openai`
    are shared only if this is set. For `vllm` it stands for the files, which are not read then."""
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
    """Steps by which decoded pages are prepared, as JSON; steps that are left out are switched off. `[]`: pages are
    read as they are. A task can choose others."""
    decode_processes: int = Field(default=0, ge=0)
    """Processes that decode and render. 0: one for each core, at most four."""
    decode_timeout: Duration = Field(default=timedelta(seconds=60), gt=timedelta())
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
                raise ValueError(
                    "names something that is no bucket: write `scans`, or `archive/outbox/` for a part of one, without `s3://`."
                )
        return buckets


class RetentionSettings(ConnectionSettings):
    """Retention periods by kind of record."""

    keep_payloads: Duration = timedelta()
    """How long documents are kept after the last job that was given them is over. 0: for ever, as in all that
    follows."""
    keep_results: Duration = timedelta()
    """How long results are kept after their job is over. Its row and counters stay."""
    keep_events: Duration = timedelta()
    """How long events are kept."""
    keep_deliveries: Duration = timedelta()
    """How long callbacks are kept that have arrived or were given up."""
    keep_jobs: Duration = timedelta()
    """How long jobs are kept after they are over. With a job goes all that belongs to it, its document too."""
    keep_audit: Duration = timedelta()
    """How long the record of who read and erased results is kept."""
    keep_workers: Duration = timedelta(days=1)
    """How long the row of a worker that is gone is kept."""


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
            raise ValueError("is no name to log in by: printable ASCII without a colon.")
        return user

    @field_validator("flower_password")
    @classmethod
    def _is_password(cls, password: SecretStr) -> SecretStr:
        if not _is_plain(password.get_secret_value()):
            raise ValueError("holds what no browser sends alike: printable ASCII alone.")
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
    gateway_connections: int = Field(default=800, ge=1)
    """Connections that a process serves at a time. More need more file descriptors (`ulimit -n`)."""
    gateway_rate: float = Field(default=50, gt=0)
    """Requests a second that each key may make, at all gateways together; for a moment twice as many."""
    gateway_streams: int = Field(default=50, ge=1)
    """Streams of events, and requests that `wait` for a job's end, that a key may have open."""
    gateway_upload_bytes: int = Field(default=512 * 1024**2, ge=1)
    """Most bytes of documents that a key may be sending to a process at a time; one request may always be as large
    as `PECIA_GATEWAY_MAX_BYTES`."""
    gateway_spool_bytes: int = Field(default=2 * 1024**3, ge=1)
    """Most bytes of documents that all keys may be sending to a process: they lie in its temporary directory."""
    gateway_drawings: int = Field(default=2, ge=1)
    """PDF and facsimile results that a process draws at a time, of each key one."""


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
    webhook_timeout: Duration = Field(default=timedelta(seconds=15), gt=timedelta())
    """How long a receiver may take in all."""
    webhook_concurrency: int = Field(default=4, ge=1)
    """Callbacks that one webhook worker posts to one endpoint at a time, if that took the last one."""
    webhook_attempts: int = Field(default=14, ge=1)
    """Tries before a delivery is dead."""
    webhook_retry_delay: Duration = Field(default=timedelta(seconds=5), gt=timedelta())
    """Wait before the second try; three times as long before each further one, with jitter."""
    webhook_retry_longest: Duration = Field(default=timedelta(hours=12), gt=timedelta())
    """Longest wait between two tries, also if a receiver asks for more."""
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
            raise ValueError(
                f"is no key: write `whsec_` and at least {_LEAST_KEY_BYTES} random bytes in base64."
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
    """What a fleet can set."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much the fleet says about its work."""
    log_format: Literal["text", "json"] = "text"
    """Logs for people or for machines; never text of a document in either."""
    watch_folder: str = ""
    """What `pecia up` watches as `pecia watch-folder` does: a folder, made if missing, or s3://bucket/prefix."""
    drain_timeout: Duration = timedelta(seconds=30)
    """How long a stopping worker may finish what it has begun before it gives the rest back."""
    termination_notice: str = Field(default="", pattern=r"^(/.*)?$")
    """Path, from the root, of a file that appears when this machine will be taken away: its workers then stop as if by
    SIGTERM. Empty: they stop by SIGTERM alone."""

    lease: Duration = Field(default=timedelta(seconds=15), gt=timedelta())
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
    lane_patience: Duration = timedelta(minutes=1)
    """A lower lane in which something waits and that was not served for so long is served one part first. 0: never."""
    max_attempts: int = Field(default=4, ge=1)
    """Attempts at a part whose failure is retryable."""
    retry_delay: Duration = timedelta(seconds=2)
    """Wait before the second attempt; doubles with each further one, with jitter."""
    part_timeout: Duration = Field(default=timedelta(minutes=5), gt=timedelta())
    """How long one attempt at a part may work; waits for a decoder, the engine or a store do not count."""

    upkeep_interval: Duration = Field(default=timedelta(seconds=2), gt=timedelta())
    """How often the relay looks."""

    remote_control: Literal["look", "revoke"] = "look"
    """What Celery's remote control, and so every publisher in Redis, may do to a worker: `look`, or also `revoke`
    parts. `pecia cancel` needs neither."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Where each process serves `/metrics`, `/healthz` and `/readyz`; if it is taken, at one of the next 15.
    0: not at all."""
    metrics_address: str = "127.0.0.1"
    """The address it listens on. They show counts and no ids, and ask for no password."""

    @field_validator("lane_shares")
    @classmethod
    def _leave_something(cls, shares: dict[Lane, float]) -> dict[Lane, float]:
        if Lane.URGENT in shares or sum(shares.values()) >= 1:
            raise ValueError(
                "names the lower lanes alone: the urgent one has the rest, so less than 1 in all."
            )
        return shares
