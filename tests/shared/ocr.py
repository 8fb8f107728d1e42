"""The CPU engine's OCR in a process of its own: it takes subnormal numbers for zero, which other tests need."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecia_workers.engines.cpu import rapidocr
from pecia_workers.engines.cpu.ocr_engine import PageRead

ReadPixels: TypeAlias = Callable[[NDArray[np.uint8]], PageRead]


@contextmanager
def ocr_process() -> Iterator[ReadPixels]:
    """Yield what reads a page."""
    with ProcessPoolExecutor(1, get_context("spawn"), rapidocr.load_model) as process:
        yield lambda pixels: process.submit(rapidocr.read_page, pixels).result()
