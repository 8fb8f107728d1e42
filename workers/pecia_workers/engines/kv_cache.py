"""How much memory the KV cache takes.

Two tensors, keys and values, in each layer with attention: for every token `kv_heads` vectors of `head_dim` numbers.
Source: vLLM `v1/kv_cache_interface.py::AttentionSpec.unpadded_page_size_bytes`, there for one layer and one block.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 16
"""Tokens in one block of vLLM's cache on a GPU: the smallest piece that a sequence takes."""


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


def kv_bytes(shape: KvShape, tokens: int, sequences: int = 1) -> int:
    """Return the bytes of `sequences` sequences of `tokens` tokens each."""
    return shape.bytes_per_token * tokens * sequences


def kv_tokens(shape: KvShape, memory_bytes: int) -> int:
    """Return the tokens that fit into this memory, in whole blocks; 0 if it is negative."""
    return max(0, memory_bytes) // (shape.bytes_per_token * BLOCK) * BLOCK
