"""The CPU engine's OCR in a process of its own: it takes subnormal numbers for zero, which other tests need."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecia_schemas.blocks import Line
from pecia_workers.engines.cpu import networks, rapidocr
from pecia_workers.engines.cpu.ocr_engine import PageRead
from pecia_workers.protocol.base import Piece

ReadPixels: TypeAlias = Callable[[NDArray[np.uint8]], PageRead]
ReadPieces: TypeAlias = Callable[[NDArray[np.uint8], Sequence[Piece]], Sequence[Line]]


@contextmanager
def ocr_process() -> Iterator[ReadPixels]:
    """Yield what reads a page."""
    with ProcessPoolExecutor(1, get_context("spawn"), networks.load_model) as process:
        yield lambda pixels: process.submit(rapidocr.read_page, pixels).result()


@contextmanager
def witness_process() -> Iterator[tuple[ReadPixels, ReadPieces]]:
    """Yield what reads a page at a glance, and what reads pieces of it again."""
    with ProcessPoolExecutor(1, get_context("spawn"), networks.load_witness) as process:
        yield (
            lambda pixels: process.submit(rapidocr.glance, pixels).result(),
            lambda pixels, pieces: (
                process.submit(rapidocr.read_pieces, pixels, pieces).result().blocks[0].lines
            ),
        )
