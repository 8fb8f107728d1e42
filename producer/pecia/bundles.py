"""Writes the documents of a bundle to one file each, optionally in folders by patient, with a manifest."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pecia.errors import InvalidOptionError
from pecia.formats import Format
from pecia.job import AnyJob
from pecia.saving import Stems, stem_of
from pecia_schemas import storable
from pecia_schemas.bundled import Bundle
from pecia_schemas.media import Ordinals
from pecia_schemas.results import BundledDocument

PATTERN: Final = "{date}-{kind}-{number}"
"""Default name of a document's file; it does not name the patient."""
MANIFEST: Final = "manifest.json"
_PLACES: Final = ("date", "kind", "number", "patient", "title")
_PLACE: Final = re.compile(r"\{(\w*)\}")


class By(StrEnum):
    """How the files of a bundle are laid out."""

    DOCUMENT = "document"
    """All documents in one folder."""
    PATIENT = "patient"
    """One folder for each patient, and one for each document of an unknown patient."""


def check_pattern(pattern: str) -> None:
    """Raise `InvalidOptionError` unless a pattern has only text and known placeholders."""
    unknown = [name for name in _PLACE.findall(pattern) if name not in _PLACES]
    if unknown or re.search(r"[{}]", _PLACE.sub("", pattern)) or not pattern.strip():
        known = ", ".join(f"{{{name}}}" for name in _PLACES)
        raise InvalidOptionError(f"A pattern of names may contain {known} and other text.")


def name_of(document: BundledDocument, pattern: str = PATTERN) -> str:
    """Return the file name of a document for a pattern, without a suffix."""
    part = document.part
    values = {
        "date": part.date.isoformat() if part.date else "undated",
        "kind": part.kind.value,
        "number": f"{part.number:02}",
        "patient": part.identity.name or "unknown",
        "title": part.title or "untitled",
    }
    called = _PLACE.sub(lambda place: values[place[1]], pattern)
    return stem_of(f"{called}.") or f"document-{part.number:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the documents of a bundle become files."""

    by: By = By.DOCUMENT
    pattern: str = PATTERN
    with_conflicts: bool = False
    """Whether documents with a patient conflict are written too, each in its own folder."""

    def __post_init__(self) -> None:
        """Raise `InvalidOptionError` for an invalid pattern."""
        check_pattern(self.pattern)

    def write(
        self, job_id: UUID, bundle: Bundle, suffix: str, save: Callable[[BundledDocument, str], str]
    ) -> tuple[list[str], list[BundledDocument], str]:
        """Write each document by `save`, which takes the document and a file name and returns the file's SHA-256.

        Return the file names, the documents that are held back, and the manifest.
        """
        stems: dict[str, Stems] = {}
        files: list[str] = []
        held: list[BundledDocument] = []
        entries: list[dict[str, Any]] = []
        for document in bundle.documents:
            file = digest = None
            if document.part.has_conflict and not self.with_conflicts:
                held.append(document)
            else:
                folder = _folder_of(document) if self.by is By.PATIENT else ""
                stem = stems.setdefault(folder, Stems()).add(name_of(document, self.pattern))
                file = f"{folder}/{stem}{suffix}" if folder else f"{stem}{suffix}"
                digest = save(document, file)
                files.append(file)
            entries.append(_entry(document, file, digest))
        whole = {
            "job": str(job_id),
            "documents": entries,
            "separators": list(bundle.split.separators) if bundle.split else [],
            "failed": [page.number for page in bundle.failed],
        }
        return files, held, json.dumps(whole, ensure_ascii=False, indent=2) + "\n"


def save_documents(
    job: AnyJob,
    bundle: Bundle,
    folder: str | os.PathLike[str],
    format: Format = Format.PDF,  # noqa: A002  as `Job.save` has it
    layout: Layout | None = None,
) -> tuple[list[Path], list[BundledDocument]]:
    """Write each document of a job's bundle to a file, and `manifest.json`. Return the files, and documents held back.

    A document with pages of two patients, or not of the expected one, is held back unless the layout includes
    conflicts. Existing files are replaced. Raises the errors of `Job.save`.
    """
    root = Path(folder)

    def save(document: BundledDocument, file: str) -> str:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        job.save(path, format, result=document)
        with path.open("rb") as written:
            return hashlib.file_digest(written, "sha256").hexdigest()

    files, held, manifest = (layout or Layout()).write(job.id, bundle, format.suffix, save)
    root.mkdir(parents=True, exist_ok=True)
    (root / MANIFEST).write_text(manifest, encoding="utf-8")
    return [root / file for file in files], held


def _folder_of(document: BundledDocument) -> str:
    part = document.part
    if part.has_conflict:
        return f"conflict-{part.number:02}"
    return f"patient-{part.patient:02}" if part.patient else f"unknown-{part.number:02}"


def _entry(document: BundledDocument, file: str | None, digest: str | None) -> dict[str, Any]:
    """Return a document's entry in the manifest. It names no patient."""
    part = document.part
    return {
        "number": part.number,
        "pages": list(part.pages),
        "failed": [page.number for page in document.failed],
        "kind": part.kind.value,
        "date": part.date and part.date.isoformat(),
        "patient": part.patient,
        "doubts": sorted({doubt.reason.value for doubt in part.doubts}),
        "file": file,
        "sha256": digest,
    }


def table_of(bundle: Bundle) -> tuple[Sequence[str], list[tuple[object, ...]]]:
    """Return headings and a row for each document, those with a patient conflict first."""
    headings = ("document", "pages", "kind", "patient", "date", "doubts", "title")
    ordered = sorted(bundle.documents, key=lambda document: not document.part.has_conflict)
    return headings, [
        (
            document.part.number,
            Ordinals(page - 1 for page in document.part.pages).written(storable.PAGES),
            document.part.kind,
            document.part.identity.name or "unknown",
            document.part.date,
            ", ".join(sorted({doubt.reason for doubt in document.part.doubts})),
            document.part.title,
        )
        for document in ordered
    ]
