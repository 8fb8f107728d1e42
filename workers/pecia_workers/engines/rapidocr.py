"""PP-OCR through rapidocr, its models out of the wheel: English and Chinese."""

from __future__ import annotations

from importlib.metadata import version

from pecia_workers.engines.page_reader import PageReader
from pecia_workers.engines.rapidocr_process import load_model, read_page


def rapidocr_reader() -> PageReader:
    """Return the reader, its models not loaded."""
    return PageReader(
        name="rapidocr",
        model="PP-OCRv6-small",
        languages=frozenset({"en", "zh"}),
        revision=" ".join(f"{name} {version(name)}" for name in ("rapidocr", "onnxruntime")),
        load=load_model,
        read=read_page,
    )
