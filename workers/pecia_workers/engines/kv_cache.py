"""How much memory the KV cache takes, and how much there is for it.

Two tensors, keys and values, in each layer with attention: for every token `kv_heads` vectors of `head_dim` numbers.
Source: vLLM `v1/kv_cache_interface.py::AttentionSpec.unpadded_page_size_bytes`, there for one layer and one block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pecia_schemas.tasks import DocumentType, page_cost
from pecia_workers.engines.gpus import tensor_parallel

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings
    from pecia_workers.engines.models import Model

BLOCK = 16
"""Tokens in one block of vLLM's cache on a GPU: the smallest piece that a sequence takes."""
_A4_INCHES: Final = (8.27, 11.69)
_WIDE: Final = frozenset({"float32", "float"})
_GPU_SHARE: Final = 0.92  # vLLM's own, where no setting says: `config/cache.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """What of a model's shape its KV cache depends on."""

    layers: int
    """Those with attention."""
    kv_heads: int
    head_dim: int
    dtype_bytes: int = 2
    """Of one number: 2 in 16 bits, 1 in fp8."""

    @property
    def bytes_per_token(self) -> int:
        """Return 2 x layers x kv_heads x head_dim x dtype_bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What the memory of the GPUs that share one model goes to, in bytes."""

    of_gpu: int
    """Of each; 0 on the CPU."""
    gpus: int
    usable: int
    """Of all of them, by `gpu_memory_utilization`."""
    weights: int
    """0: unknown."""
    reserve: int
    """An estimate."""
    kv_cache: int
    """What is left, or the setting `kv_cache_bytes`."""


def kv_bytes(shape: KvShape, tokens: int, sequences: int = 1) -> int:
    """Return the bytes of `sequences` sequences of `tokens` tokens each."""
    return shape.bytes_per_token * tokens * sequences


def kv_tokens(shape: KvShape, memory_bytes: int) -> int:
    """Return the tokens that fit into this memory, in whole blocks; 0 if it is negative."""
    return max(0, memory_bytes) // (shape.bytes_per_token * BLOCK) * BLOCK


def memory_plan(settings: WorkerSettings, model: Model, memory_bytes: int, reserve_bytes: int) -> MemoryPlan:
    """Return what the memory goes to on GPUs of so much each, of which each keeps a reserve."""
    gpus = tensor_parallel(settings)
    usable = int(memory_bytes * (settings.gpu_memory_utilization or _GPU_SHARE)) * gpus
    weights, reserve = round(model.weights_gb * 1e9), reserve_bytes * gpus
    left = max(0, usable - weights - reserve)
    return MemoryPlan(
        of_gpu=memory_bytes,
        gpus=gpus,
        usable=usable,
        weights=weights,
        reserve=reserve,
        kv_cache=settings.kv_cache_bytes * gpus or left,
    )


def kv_shape(settings: WorkerSettings, model: Model) -> KvShape:
    """Return the shape over all GPUs: each holds at least one head, whose copy it is if there are too few."""
    wide = settings.engine_options.get("dtype") in _WIDE
    dtype_bytes = 1 if settings.kv_cache_dtype.startswith("fp8") else 4 if wide else 2
    shape = model.kv_shape(dtype_bytes)
    return replace(shape, kv_heads=max(shape.kv_heads, tensor_parallel(settings)))


def page_tokens(settings: WorkerSettings) -> int:
    """Return the tokens of an A4 page of mixed documents: picture, prompt and the text that is expected."""
    width, height = (round(inches * settings.render_dpi) for inches in _A4_INCHES)
    return page_cost(width, height, DocumentType.MIXED)
