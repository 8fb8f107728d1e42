"""What the fleet's settings say to vLLM, by vLLM's own names; and what vLLM says of its cache."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pecia_schemas import Stage
from pecia_schemas.settings import WorkerSettings
from pecia_workers.engines.base import WHOLE, EngineUnavailableError, Layers
from pecia_workers.engines.reader_cards import card_of
from pecia_workers.engines.registry import stages_served

_NAMES: Final = (
    *("model", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes", "kv_cache_dtype"),
    *("gpu_memory_utilization", "quantization", "enforce_eager", "video_pruning_rate", "speculative_config"),
    "tensor_parallel_size",
)
"""Settings of the fleet that the engine has as arguments."""
_OTHER_NAMES: Final = {"kv_cache_bytes": "kv_cache_memory_bytes"}

_FIXED: Final[Mapping[str, Any]] = {
    "scheduling_policy": "priority",  # or vLLM refuses a request that has one
    "disable_log_stats": True,  # the fleet's own logger stays
    # One that was rendered and given up could not be asked again; and pages stay no longer than they are read.
    "mm_processor_cache_gb": 0,
    # Knows most of JSON Schema; and no model can fill its answer with line breaks instead of values.
    "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
}

_STATE: Final = "mamba"
_WINDOWED: Final = ("sliding_window", "sliding_window_mla")
"""Kinds of groups of layers that keep less than all of a request: vLLM's `KVCacheSpecKind`."""
_GIB: Final = 2**30


def engine_arguments(settings: WorkerSettings, known: Collection[str]) -> dict[str, Any]:
    """Return the arguments for vLLM's engine; what a setting leaves empty is the reader card's or vLLM's own choice.

    `settings.engine_options` win over everything. Raises `EngineUnavailableError` for an option that is not `known`.
    """
    for option in settings.engine_options:
        if option not in known:
            near = difflib.get_close_matches(option, sorted(known), n=1)
            fields = "they are the fields of vllm.engine.arg_utils.AsyncEngineArgs."
            hint = f"did you mean {near[0]!r}?" if near else fields
            raise EngineUnavailableError(
                f"PECIA_ENGINE_OPTIONS: {option!r} is no option of this vLLM: {hint}"
            )
    chosen = {_OTHER_NAMES.get(name, name): getattr(settings, name) for name in _NAMES}
    return {
        **_FIXED,
        **{name: value for name, value in chosen.items() if value},
        **_pictures(settings),
        **_adapters(settings),
        **_offloading(settings),
        **card_of(settings.model, settings.card).engine_options,
        **settings.engine_options,
    }


def _pictures(settings: WorkerSettings) -> dict[str, Any]:
    """Return what one request may hold: a page; where clips are captioned one, or its frames if a model knows no video.

    What is not allowed takes no memory: vLLM keeps as much as the largest that it allows.
    """
    if Stage.CAPTION in stages_served(settings):
        return {"limit_mm_per_prompt": {"image": settings.video_frames, "video": 1}}
    return {"limit_mm_per_prompt": {"image": 1, "video": 0}}


def _adapters(settings: WorkerSettings) -> dict[str, Any]:
    """Return a slot for each adapter and one more.

    On the CPU vLLM 0.32 gives requests without an adapter what is in the last slot: it must stay empty
    (vllm-project/vllm#48421).
    """
    if not settings.adapters:
        return {}
    return {
        "enable_lora": True,
        "max_loras": len(settings.adapters) + 1,
        "max_lora_rank": settings.max_lora_rank,
    }


def _offloading(settings: WorkerSettings) -> dict[str, Any]:
    """Return vLLM's switch; it is the size that turns it on, though LMCache's server keeps a size of its own."""
    backend = settings.kv_offload_backend or "native"
    if not settings.kv_offload_bytes and backend != "lmcache":
        return {}
    return {"kv_offloading_size": settings.kv_offload_bytes / _GIB, "kv_offloading_backend": backend}


def layers_of(groups: Sequence[Mapping[str, Any]], block: int, share: float, in_flight: int) -> Layers:
    """Return what the groups of layers that share vLLM's cache keep of a request.

    `block` is the size of its blocks in tokens, and `share` what one of these tokens is of the budget. A group may put
    more tokens into a block than another. A window holds a block more than its tokens fill, for it may begin within
    one; the state of a Mamba layer is a block, or two where prefixes are cached. Source:
    `SlidingWindowSpec.max_admission_blocks_per_request` and `MambaSpec` in vLLM's `v1/kv_cache_interface.py`.
    """
    if len(groups) <= 1 and not any(group["sliding_window"] for group in groups):
        return WHOLE
    whole, windows = 0.0, []
    for group in groups:
        size, window = group["block_size"], group["sliding_window"]
        if group["kind"] == _STATE:
            windows.append((2 * block, share))
        elif group["kind"] in _WINDOWED and window:
            windows.append(((math.ceil(window / size) + 1) * size, share * block / size))
        else:
            whole += share * block / size
    return Layers(whole=whole, windows=tuple(windows), in_flight=in_flight)
