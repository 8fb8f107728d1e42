"""The documents of `pecia demo` and `pecia sample`, as files: a set whose text is known, good scans and bad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pecia_schemas import DocumentType, Lane
from pecia_workers.local import sample_documents as samples
from pecia_workers.local.accuracy import accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One document and what is expected of it."""

    title: str
    path: Path
    document_type: DocumentType
    lane: Lane
    text: str | None
    """What stands on it, a form feed between pages; None for the one that cannot be read."""

    def accuracy(self, read: str) -> float:
        """Return how well a text agrees with what stands on it: 1.0 is exact."""
        return accuracy(read, self.text or "")


class _Sketch(NamedTuple):
    title: str
    name: str
    document_type: DocumentType
    seed: int
    write: Callable[[samples.SampleDocument, Path], None]
    lane: Lane


# In the order in which the demo hands them over: bulk first, the urgent one last.
_SKETCHES: Final = (
    _Sketch("hospital chart", "chart.pdf", DocumentType.CHART, 0, samples.write_pdf, Lane.BULK),
    _Sketch(
        "diagnosis certificate", "diagnosis.png", DocumentType.DIAGNOSIS, 0, samples.write_png, Lane.BULK
    ),
    _Sketch("lab result", "lab.png", DocumentType.LAB_RESULT, 0, samples.write_png, Lane.BULK),
    _Sketch("scan turned by 90°", "turned.jpg", DocumentType.DIAGNOSIS, 1, samples.write_scan, Lane.NORMAL),
    _Sketch(
        "damaged upload", "damaged.png", DocumentType.LAB_RESULT, 1, samples.write_damaged_png, Lane.NORMAL
    ),
    _Sketch(
        "prescription, sent last",
        "prescription.png",
        DocumentType.PRESCRIPTION,
        0,
        samples.write_png,
        Lane.URGENT,
    ),
)


def write_exhibits(directory: Path) -> list[Exhibit]:
    """Write those that the directory lacks; what stands there under such a name is left as it is."""
    return [_exhibit(directory, sketch) for sketch in _SKETCHES]


def _exhibit(directory: Path, sketch: _Sketch) -> Exhibit:
    document = samples.sample_document(sketch.document_type, sketch.seed)
    path = directory / sketch.name
    if not path.exists():
        sketch.write(document, path)
    text = document.text if path.suffix == ".pdf" else document.text.partition("\f")[0]
    return Exhibit(
        title=sketch.title,
        path=path,
        document_type=sketch.document_type,
        lane=sketch.lane,
        text=None if sketch.write is samples.write_damaged_png else text,
    )
