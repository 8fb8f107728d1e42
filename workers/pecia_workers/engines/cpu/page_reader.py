"""One OCR library as the fleet sees it. Apart from `page_reading`, whose OpenCV a worker of a GPU need not have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Block, Confidence, Doubt, Stored


class PageRead(Stored):
    """What was read of a page."""

    blocks: tuple[Block, ...]
    """In reading order; empty if no text was found."""
    coverage: Confidence | None
    """Share of the page's letters that stand where text was read; None: it has no letters."""
    doubts: tuple[Doubt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReader:
    """One OCR library with its models. Its functions run in a process of their own, one page at a time."""

    name: str
    model: str
    languages: frozenset[str]
    """ISO 639-1 codes it reads."""
    revision: str
    """What changes whenever its model or version does."""
    load: Callable[[], None]
    """Load the model into the process that calls it."""
    read: Callable[[NDArray[np.uint8]], PageRead]
    """Read a page."""
    data: tuple[Path, ...] = ()
    """What `load` opens beside the files of Python's packages."""


def load_readers(loads: tuple[Callable[[], None], ...], nice: int = 0) -> None:
    """Make a fresh process ready to read, so much nicer than others."""
    os.nice(nice)
    for load in loads:
        load()
