"""Exact input tokens of pictures and clips, by model family, from the checkpoint's own processor files."""

from pecia_workers.batching.cost.base import (
    CheckpointError,
    CostError,
    NoVideoInputError,
    RefusedSizeError,
    TextTokens,
    TokenCounter,
    TooManyTokensError,
    UnknownFamilyError,
)
from pecia_workers.batching.cost.counter import processor_counter
from pecia_workers.batching.cost.families import counter_for

__all__ = [
    "CheckpointError",
    "CostError",
    "NoVideoInputError",
    "RefusedSizeError",
    "TextTokens",
    "TokenCounter",
    "TooManyTokensError",
    "UnknownFamilyError",
    "counter_for",
    "processor_counter",
]
