"""Tesseract through tesserocr: Korean, and English beside it. Its language data is the machine's, not the wheel's."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pecia_workers.engines.base import EngineUnavailableError
from pecia_workers.engines.cpu.page_reader import PageReader

REMEDY: Final = (
    "On the CPU Korean takes pip install 'pecia[korean]' and Tesseract's data for it: apt install tesseract-ocr-kor"
    " tesseract-ocr-eng, or the directory of kor.traineddata and eng.traineddata in PECIA_TESSDATA or TESSDATA_PREFIX."
)
_FILES: Final = ("kor.traineddata", "eng.traineddata")
_SYSTEM: Final = ("/usr/share/tesseract-ocr/*/tessdata", "/usr/share/tessdata", "/usr/local/share/tessdata")


def tesseract_reader(tessdata: str) -> PageReader:
    """Return the reader, its models not loaded; `tessdata` is the setting.

    Raises `EngineUnavailableError` if tesserocr or the data is missing.
    """
    directory = find_tessdata(tessdata)
    if directory is None or importlib.util.find_spec("tesserocr") is None:
        raise EngineUnavailableError(f"Tesseract is not there or has no Korean. {REMEDY}")
    from pecia_workers.engines.cpu.tesseract_process import load_model, read_page  # noqa: PLC0415  pecia[korean]

    return PageReader(
        name="tesseract",
        model="Tesseract kor+eng",
        languages=frozenset({"ko", "en"}),
        revision=f"tesserocr {version('tesserocr')} {_fingerprint(directory)}",
        load=partial(load_model, directory),
        read=read_page,
        data=(directory,),
    )


def find_tessdata(setting: str = "") -> Path | None:
    """Return the directory that has the data for Korean and English.

    One that is named by the setting is the only one that is looked at.
    """
    places = [Path(setting)] if setting else _usual_places()
    return next((place for place in places if all((place / file).is_file() for file in _FILES)), None)


def _usual_places() -> Iterator[Path]:
    if prefix := os.environ.get("TESSDATA_PREFIX"):
        yield Path(prefix)
        yield Path(prefix, "tessdata")  # as Tesseract 3 understood it
    for pattern in _SYSTEM:
        yield from sorted(Path("/").glob(pattern.removeprefix("/")), reverse=True)


def _fingerprint(directory: Path) -> str:
    """Return a hash over the language data: tens of megabytes, a tenth of a second."""
    digest = hashlib.sha256()
    for file in _FILES:
        digest.update((directory / file).read_bytes())
    return digest.hexdigest()[:16]
