"""What engine workers can set: the model and how it runs, what is in it at a time, how pages are read with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, SecretStr

from pecia_schemas.settings.base import ConnectionSettings, Duration


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
    """Reader card that says what the model is told about a page and in which form it answers, as `olmocr`. Empty: by
    the model's name."""
    profile: str = ""
    """Model and sizes for one kind of GPU, as `l4` or `h100`: what `vllm` takes where nothing is set here. Empty: for
    the GPU that is found, or `cpu`. `none`: vLLM's own choices. Ends with `.toml`: the file that `pecia engine tune`
    wrote."""
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
    engine_timeout: Duration = timedelta(minutes=2)
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
    output_quantile: float = Field(default=0.5, gt=0, lt=1)
    """Share of a workload's outputs that are no longer than what is expected of one."""


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
    """Processes of the CPU engine that do so, half a gigabyte each. 0: one for every second core, at most eight."""
    cache: bool = True
    """Whether what was read before, by the same model in the same way, is the result at once. A task can say no."""
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
