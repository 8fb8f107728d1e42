"""Facts about GPUs and models before loading: memory, KV cache, and the model's files on this machine.

The KV cache holds two tensors, keys and values, in each layer with attention: for every token `kv_heads` vectors of
`head_dim` numbers. Source: vLLM `v1/kv_cache_interface.py::AttentionSpec.unpadded_page_size_bytes`, there for one layer
and one block. Nothing here loads CUDA or torch: the driver's own tool lists the GPUs.
"""

import hashlib
import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from pecia_schemas.settings import WorkerSettings
from pecia_schemas.tasks import DocumentType, page_cost
from pecia_workers.protocol.base import WHOLE, Layers

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable by which CUDA and vLLM choose GPUs."""
_ASK = ("nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT_S = 20.0  # without its persistence daemon a driver wakes every card first
_MIB = 2**20

BLOCK = 16
"""Tokens in one block of vLLM's cache on a GPU, its unit of allocation."""
_A4_INCHES: Final = (8.27, 11.69)
_WIDE: Final = frozenset({"float32", "float"})
_GPU_SHARE: Final = 0.92  # vLLM's own, where no setting says: `config/cache.py`

_STATE: Final = "mamba"
_FLAT: Final = ("disable_hybrid_kv_cache_manager", "disable_sliding_window")
"""Options of vLLM that make all layers keep all tokens."""
_WINDOWED: Final = ("sliding_window", "sliding_window_mla")
"""Kinds of layer groups that do not keep all of a request, by vLLM's `KVCacheSpecKind`."""
_NEARLY_EQUAL: Final = 1.5

_TEXT = ("text_config", "llm_config")
"""Keys under which configurations of vision-language models have the language model's."""
_WINDOW_TYPE: Final = "sliding_attention"
_STATE_TYPES: Final = frozenset({"linear_attention", "mamba", "conv"})
_WHOLE_TYPES: Final = frozenset({"full_attention", "attention"})
"""Values of `layer_types` for layers that keep all, by transformers' names."""
_THREADS: Final = 8
_BLOBS: Final = "blobs"
"""Directory of files in the Hub's cache, each named by a hash of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or a slice of one."""

    handle: str
    """Its name in `CUDA_VISIBLE_DEVICES`."""
    name: str
    memory_bytes: int
    """0: unknown."""


def visible_gpus() -> tuple[Gpu, ...]:
    """Return this process's GPUs, in the order of `CUDA_VISIBLE_DEVICES`; none without a driver."""
    try:
        listed = subprocess.run(_ASK, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = (line.split(", ") for line in listed.splitlines())
    gpus = tuple(
        Gpu(handle=uuid, name=name, memory_bytes=int(memory) * _MIB if memory.isdecimal() else 0)
        for uuid, name, memory in rows
    )
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in filter(None, map(str.strip, visible.split(","))):
        if entry.isdecimal():
            chosen += gpus[int(entry) :][:1]
        elif entry.startswith("MIG-") and gpus:  # a slice, which only its id names
            chosen.append(Gpu(handle=entry, name="MIG", memory_bytes=0))
        else:  # the beginning of an id
            chosen += [gpu for gpu in gpus if gpu.handle.startswith(entry)][:1]
    return tuple(chosen)


def shares(gpus: Sequence[Gpu], together: int) -> list[str]:
    """Return `CUDA_VISIBLE_DEVICES` for each worker, with `together` GPUs each; a remainder is not used."""
    handles = [gpu.handle for gpu in gpus]
    last = len(handles) - together + 1
    return [",".join(handles[first : first + together]) for first in range(0, last, together)]


def gpus_per_worker(settings: WorkerSettings) -> int:
    """Return how many GPUs share one model."""
    return _tensor_parallel(settings) * int(settings.engine_options.get("pipeline_parallel_size") or 1)


def _tensor_parallel(settings: WorkerSettings) -> int:
    """Return how many GPUs share each layer of one model."""
    return int(settings.engine_options.get("tensor_parallel_size") or settings.tensor_parallel_size or 1)


class Model(BaseModel):
    """Properties of a checkpoint that determine its memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    quantization: str
    """By vLLM's name, or `none`."""
    layers: int
    """Those with attention."""
    kv_heads: int
    head_dim: int
    context: int
    """Most tokens of one request."""
    weights_gb: float
    """In 10^9 bytes; 0: the weights are not on this machine."""
    license: str = ""
    weight_bits: int = 0
    """Bits of a weight in a quantised layer; 0: by `quantization`."""
    parameters_b: float = 0
    """10^9 weights that compute one token; 0: unknown."""
    windowed: int = 0
    """Layers that keep only the last `window` tokens of a request."""
    window: int = 0
    unclear: str = ""
    """What the configuration leaves open about its layers' cache, and how that is counted; empty if nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """Properties of a model that determine its KV cache."""

    layers: int
    """Those with attention."""
    kv_heads: int
    head_dim: int
    dtype_bytes: int = 2
    """Bytes of one number: 2 in 16 bits, 1 in fp8."""
    windowed: int = 0
    window: int = 0
    """`windowed` layers keep only the last `window` tokens of a request."""

    @property
    def bytes_per_token(self) -> int:
        """Return 2 x layers x kv_heads x head_dim x dtype_bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes


def kv_shape(settings: WorkerSettings, model: Model) -> KvShape:
    """Return the shape over all GPUs: each holds at least one head, a copy if there are too few."""
    wide = settings.engine_options.get("dtype") in _WIDE
    is_flat = any(settings.engine_options.get(name) for name in _FLAT)
    return KvShape(
        layers=model.layers,
        kv_heads=max(model.kv_heads, _tensor_parallel(settings)),
        head_dim=model.head_dim,
        dtype_bytes=1 if settings.kv_cache_dtype.startswith("fp8") else 4 if wide else 2,
        windowed=0 if is_flat else model.windowed,
        window=model.window,
    )


def kv_tokens(shape: KvShape, memory_bytes: int) -> int:
    """Return the tokens that fit into this memory, in full blocks; 0 if it is negative."""
    return max(0, memory_bytes) // (shape.bytes_per_token * BLOCK) * BLOCK


def layers_of(groups: Sequence[Mapping[str, Any]], block: int, share: float, in_flight: int) -> Layers:
    """Return how much of a request the groups of layers in vLLM's cache keep.

    `block`: size of blocks in tokens; `share`: budget of one of these tokens. Groups may store different numbers of
    tokens in a block. A window needs one block more than its tokens fill, since it may start inside a block; the state
    of a Mamba layer is one block, or two with prefix caching. Source:
    `SlidingWindowSpec.max_admission_blocks_per_request` and `MambaSpec` in vLLM's `v1/kv_cache_interface.py`.
    """
    if len(groups) <= 1 and not any(group["sliding_window"] for group in groups):
        return WHOLE
    full, windows = 0.0, []
    for group in groups:
        size, window = group["block_size"], group["sliding_window"]
        if group["kind"] == _STATE:
            windows.append((2 * block, share))
        elif group["kind"] in _WINDOWED and window:
            windows.append(((math.ceil(window / size) + 1) * size, share * block / size))
        else:
            full += share * block / size
    return Layers(full=full, windows=tuple(windows), in_flight=in_flight)


def layers_planned(shape: KvShape, in_flight: int = 0) -> Layers:
    """Return how much of a request the layers will keep, in tokens kept by all layers.

    vLLM forms groups of equal numbers of layers of one kind; the last may be padded. Source:
    `_get_kv_cache_groups_uniform_page_size` in its `v1/core/kv_cache_utils.py`.
    """
    full = shape.layers - shape.windowed
    least, most = sorted((full or shape.windowed, shape.windowed or full))
    size = most if most < _NEARLY_EQUAL * least else least
    group = {"kind": "full_attention", "block_size": BLOCK, "sliding_window": None}
    windowed = {**group, "kind": _WINDOWED[0], "sliding_window": shape.window}
    groups = [group] * math.ceil(full / size) + [windowed] * math.ceil(shape.windowed / size)
    return layers_of(groups, BLOCK, size / shape.layers, in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of the GPUs that share one model, by use, in bytes."""

    of_gpu: int
    """Memory of each GPU; 0 on the CPU."""
    gpus: int
    usable: int
    """Usable memory of all of them, by `gpu_memory_utilization`."""
    weights: int
    """0: unknown."""
    reserve: int
    """An estimated reserve."""
    kv_cache: int
    """The remaining memory, or the setting `kv_cache_bytes`."""


def memory_plan(settings: WorkerSettings, model: Model, memory_bytes: int, reserve_bytes: int) -> MemoryPlan:
    """Return the memory plan for GPUs of this size, each with a reserve."""
    gpus = _tensor_parallel(settings)
    usable = int(memory_bytes * (settings.gpu_memory_utilization or _GPU_SHARE)) * gpus
    weights, reserve = round(model.weights_gb * 1e9), reserve_bytes * gpus
    return MemoryPlan(
        of_gpu=memory_bytes,
        gpus=gpus,
        usable=usable,
        weights=weights,
        reserve=reserve,
        kv_cache=settings.kv_cache_bytes * gpus or max(0, usable - weights - reserve),
    )


def page_tokens(settings: WorkerSettings) -> int:
    """Return the tokens of an A4 page of mixed documents: picture, prompt and expected text."""
    width, height = (round(inches * settings.render_dpi) for inches in _A4_INCHES)
    return page_cost(width, height, DocumentType.MIXED)


def local_checkpoint(model: str, revision: str | None = None) -> Path | None:
    """Return the directory of a checkpoint, or of a name in the Hub's cache; None if it is not on this machine."""
    directory = Path(model)
    if directory.is_dir():
        return directory
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  comes with pecia[vllm]

        found = snapshot_download(model, revision=revision, allow_patterns=["*.json"], local_files_only=True)
    except (ImportError, OSError, ValueError):  # without the Hub's library there is no cache of its models
        return None
    return Path(found)


def local_model(name: str) -> Model | None:
    """Return a model's properties from its files on this machine; None without files, or for an unknown kind."""
    directory = local_checkpoint(name)
    if directory is None:
        return None
    try:
        config = json.loads((directory / "config.json").read_bytes())
        text = next((config[name] for name in _TEXT if config.get(name)), config)
        heads = text["num_attention_heads"]
        quantization = config.get("quantization_config") or text.get("quantization_config") or {}
        kinds = Counter(text.get("layer_types") or {"": text["num_hidden_layers"]})
        window = text.get("sliding_window") if text.get("use_sliding_window", True) else None
        unclear = []
        if window and "" in kinds:
            unclear.append(
                f"which layers have the window of {window:,} tokens is not said, so all count as keeping every token"
            )
        for kind, number in kinds.items():
            if kind in _STATE_TYPES:
                unclear.append(f"the states of {number} layers of {kind!r} take memory that is not counted")
            elif kind and kind not in _WHOLE_TYPES and not (kind == _WINDOW_TYPE and window):
                unclear.append(f"{number} layers of {kind!r} count as keeping every token")
        groups = quantization.get("config_groups") or {"": {}}  # of a checkpoint by llm-compressor
        weights = next(iter(groups.values())).get("weights") or {}
        return Model(
            quantization=str(quantization.get("quant_method", "none")),
            weight_bits=weights.get("num_bits", 0),
            layers=sum(number for kind, number in kinds.items() if kind not in _STATE_TYPES),
            windowed=kinds[_WINDOW_TYPE] if window else 0,
            window=window or 0,
            unclear="; ".join(unclear),
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or text["hidden_size"] // heads,
            context=text["max_position_embeddings"],
            weights_gb=sum(file.stat().st_size for file in directory.glob("*.safetensors")) / 1e9,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


_PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")
_LONGEST_SIDE: Final = 2**15
"""Largest `longest_edge`, in pixels, that means a side; Qwen's processors use that name for a picture's pixels."""


def picture_limits(name: str, options: Mapping[str, Any]) -> dict[str, int]:
    """Return `most_pixels` or `longest_side` of pictures by the model's own processor; empty if unknown.

    `options`: vLLM's, whose `mm_processor_kwargs` override the checkpoint's files.
    """
    directory, limits = local_checkpoint(name) if name else None, dict[str, int]()
    files = [_processor(directory / file) for file in _PROCESSORS] if directory else []
    for values in [*files, options.get("mm_processor_kwargs") or {}]:
        size = values.get("size")
        edge = int(size.get("longest_edge") or 0) if isinstance(size, Mapping) else 0
        if pixels := values.get("max_pixels") or (edge if edge > _LONGEST_SIDE else 0):
            limits["most_pixels"] = int(pixels)
        elif edge:
            limits["longest_side"] = edge
    return limits


def _processor(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
        return dict(values.get("image_processor") or values)
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def revision_of(settings: WorkerSettings) -> str | None:
    """Return an identifier of the configured model and its adapters.

    Reads all their files, about two gigabytes a second for each core, but only the names of those in the Hub's cache.
    None if one of them is not on this machine.
    """
    places = [local_checkpoint(settings.model, settings.engine_options.get("revision"))]
    places += [local_checkpoint(name) for _, name in sorted(settings.adapters.items())]
    found = [place for place in places if place]
    try:
        return fingerprint(found) if len(found) == len(places) else None
    except OSError:
        return None


def vllm_revision(settings: WorkerSettings) -> str | None:
    """Return the revision of vLLM and the model, by a setting or the model's files; None if no results are cached."""
    if not settings.cache:
        return None
    from vllm import __version__  # noqa: PLC0415  only where it runs; its distribution has several names

    model = settings.cache_revision or revision_of(settings)
    return model and f"vllm {__version__} {model}"


def fingerprint(directories: Iterable[Path]) -> str:
    """Return a hash over names and contents of all files, independent of the directory. Raises `OSError`."""
    digest = hashlib.sha256()
    with ThreadPoolExecutor(_THREADS) as threads:
        for directory in directories:
            names = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]
            files = sorted(name for name in names if not any(part.startswith(".") for part in name.parts))
            contents = threads.map(_content, [directory / name for name in files])
            for name, content in zip(files, contents, strict=True):
                digest.update(f"{name.as_posix()}\0{content}\0".encode())
            digest.update(b"\0")
    return digest.hexdigest()


def _content(file: Path) -> str:
    target = file.resolve()
    if file.is_symlink() and target.parent.name == _BLOBS:
        return target.name
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
