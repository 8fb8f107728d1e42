"""Which formula belongs to which model type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pecia_workers.batching.cost import gemma3, idefics3, internvl, llava_next, qwen2_vl, qwen3_vl
from pecia_workers.batching.cost.base import TextTokens, TokenCounter, UnknownFamilyError
from pecia_workers.batching.cost.checkpoint import CheckpointTokenizer, ProcessorFiles
from pecia_workers.batching.cost.counter import FamilyCounter

_FAMILIES: dict[str, Callable[[ProcessorFiles, TextTokens], FamilyCounter]] = {
    "gemma3": gemma3.counter,
    "idefics3": idefics3.counter,
    "internvl": internvl.counter,
    "internvl_chat": internvl.chat_counter,
    "llava_next": llava_next.counter,
    "llava_next_video": llava_next.video_counter,
    "qwen2_5_vl": qwen2_vl.counter,
    "qwen2_vl": qwen2_vl.counter,
    "qwen3_5": qwen3_vl.counter,
    "qwen3_5_moe": qwen3_vl.counter,
    "qwen3_vl": qwen3_vl.counter,
    "qwen3_vl_moe": qwen3_vl.counter,
    "smolvlm": idefics3.counter,
}
_REMEMBERED_TEXTS = 4096  # a time stamp or the markup of one grid each


def counter_for(
    checkpoint: Path,
    mm_processor_kwargs: Mapping[str, Any] | None = None,
    *,
    text_tokens: TextTokens | None = None,
    video_pruning_rate: float = 0.0,
) -> TokenCounter:
    """Return the token counter of the checkpoint in a local directory.

    `mm_processor_kwargs` and `video_pruning_rate` (by vLLM's method "evs") are those the engine was started with.
    `text_tokens` counts the text that stands between a
    picture's tokens (time stamps, tile names); by default the checkpoint's tokenizer.json does. Raises
    `UnknownFamilyError`, `CheckpointError`.
    """
    files = ProcessorFiles.read(checkpoint, mm_processor_kwargs, video_pruning_rate)
    family = _FAMILIES.get(files.model_type)
    if family is None:
        raise UnknownFamilyError(files.model_type, sorted(_FAMILIES))
    count = text_tokens or CheckpointTokenizer(checkpoint)
    return family(files, lru_cache(maxsize=_REMEMBERED_TEXTS)(count))
