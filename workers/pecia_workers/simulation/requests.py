"""What arrives at a simulated engine: pages of a mix of documents, and how long each of them is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pecia_schemas.states import Lane
from pecia_schemas.tasks import PROMPT_TOKENS, DocumentType, image_tokens
from pecia_workers.engines.output_lengths import DrawnLengths

A4_AT_150_DPI: Final = (1240, 1754)
PAGE_PROMPT: Final = image_tokens(*A4_AT_150_DPI) + PROMPT_TOKENS
"""Tokens of an A4 page's picture at 150 dpi and of its instruction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One page that arrives."""

    id: str
    arrived: float
    """Seconds since the start."""
    workload: DocumentType
    prompt: int
    output: int
    """Tokens it will write; no policy is told."""
    lane: Lane = Lane.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What pages are of, and which lanes they are for, by weight."""

    types: Mapping[DocumentType, float] = field(default_factory=lambda: {DocumentType.MIXED: 1.0})
    lanes: Mapping[Lane, float] = field(default_factory=lambda: {Lane.NORMAL: 1.0})


def drawn(arrivals: Sequence[float], mix: Mix, seed: int) -> list[Request]:
    """Return an A4 page for each moment, drawn from the mix; the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311  a workload, no secret
    types = rng.choices(list(mix.types), list(mix.types.values()), k=len(arrivals))
    lanes = rng.choices(list(mix.lanes), list(mix.lanes.values()), k=len(arrivals))
    lengths = DrawnLengths(seed=seed)
    return [
        Request(
            id=str(number),
            arrived=arrived,
            workload=workload,
            prompt=PAGE_PROMPT,
            output=lengths(str(number), workload),
            lane=lane,
        )
        for number, (arrived, workload, lane) in enumerate(zip(arrivals, types, lanes, strict=True))
    ]
