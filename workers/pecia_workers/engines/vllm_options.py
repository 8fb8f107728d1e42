"""What the fleet's settings say to vLLM, by vLLM's own names."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from pecia_workers.engines.base import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pecia_schemas.settings import WorkerSettings

_NAMES: Final = {
    "model": "model",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_bytes": "kv_cache_memory_bytes",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
}
"""Settings of the fleet, and the engine's argument that each of them is."""

_FIXED: Final[Mapping[str, Any]] = {
    "limit_mm_per_prompt": {"image": 1, "video": 0},  # a part is a page: keep no memory for more
    "disable_log_stats": True,  # the fleet's own logger stays
}


def engine_arguments(settings: WorkerSettings, known: Collection[str]) -> dict[str, Any]:
    """Return the arguments for vLLM's engine; what a setting leaves empty is vLLM's own choice.

    `settings.engine_options` win over everything. Raises `EngineUnavailableError` for an option that is not `known`.
    """
    for option in settings.engine_options:
        if option not in known:
            raise EngineUnavailableError(_unknown(option, known))
    chosen = {theirs: getattr(settings, ours) for ours, theirs in _NAMES.items()}
    return {**_FIXED, **{name: value for name, value in chosen.items() if value}, **settings.engine_options}


def _unknown(option: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(option, sorted(known), n=1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else "they are the fields of vllm.engine.arg_utils.AsyncEngineArgs."
    )
    return f"PECIA_ENGINE_OPTIONS: {option!r} is no option of this vLLM: {hint}"
