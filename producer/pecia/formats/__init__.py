"""Output formats of results: pure functions from a result to the content of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import cast

from pecia.errors import ConfigurationError, IdentityConflictError, InvalidFormatError
from pecia.formats import text
from pecia_schemas.bundled import Bundle, fhir_of
from pecia_schemas.installing import install_command
from pecia_schemas.results import BundledDocument, Captions, Document

Result = Document | Captions


class Format(StrEnum):
    """An output format of a result."""

    TEXT = "text"
    """Plain text, with a form feed between pages."""
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    """All tables, with an empty line between them."""
    JSON = "json"
    """The complete result, which `Document.model_validate_json` can read."""
    FIELDS = "fields"
    """JSON lines: the extracted fields, one object for each page."""
    HOCR = "hocr"
    """Blocks, lines and words with their places and confidence, as XHTML."""
    PDF = "pdf"
    """The pages' pictures under invisible text: searchable."""
    FACSIMILE = "facsimile"
    """HTML with the pages' pictures beside the text, in one self-contained file."""
    FHIR = "fhir"
    """For bundles: a FHIR R4B Bundle as JSON, without documents whose patient is in conflict."""
    SRT = "srt"
    VTT = "vtt"

    @property
    def suffix(self) -> str:
        """The file name suffix of this format."""
        return _SUFFIXES.get(self, f".{self.value}")

    @property
    def is_binary(self) -> bool:
        """Whether the format needs the document's pictures."""
        return self in (Format.PDF, Format.FACSIMILE)

    @classmethod
    def of(cls, path: Path) -> Format:
        """Return the format for a file's suffix. Raises `InvalidFormatError`."""
        found = _BY_SUFFIX.get("".join(path.suffixes[-2:]).lower()) or _BY_SUFFIX.get(path.suffix.lower())
        if found is None:
            raise InvalidFormatError(
                f"The suffix {path.suffix!r} names no format: use one of {', '.join(_BY_SUFFIX)}, "
                f"or name the format: {', '.join(cls)}."
            )
        return found


_SUFFIXES = {
    Format.TEXT: ".txt",
    Format.MARKDOWN: ".md",
    Format.FIELDS: ".jsonl",
    Format.FACSIMILE: ".html",
    Format.FHIR: ".fhir.json",
}
"""Suffixes that differ from the format's name."""
_BY_SUFFIX = {form.suffix: form for form in Format if form is not Format.FACSIMILE}

_OF_DOCUMENTS: Mapping[Format, Callable[[Document], str]] = {
    Format.TEXT: text.plain,
    Format.MARKDOWN: text.markdown,
    Format.HTML: text.html,
    Format.CSV: lambda document: "\r\n".join(table.to_csv() for table in document.tables),
    Format.JSON: lambda document: document.model_dump_json(indent=2) + "\n",
    Format.FIELDS: text.fields,
    Format.HOCR: text.hocr,
}


def _fhir(result: Bundle | BundledDocument) -> str:
    try:
        # A single document is written even if its patient is in conflict.
        whole = result.to_fhir() if isinstance(result, Bundle) else fhir_of([result], with_conflicts=True)
    except ImportError:
        raise ConfigurationError(f"FHIR needs fhir.resources: {install_command('fhir')}") from None
    written: str = whole.model_dump_json(indent=2)
    return f"{written}\n"


_OF_CAPTIONS: Mapping[Format, Callable[[Captions], str]] = {
    Format.TEXT: text.plain_captions,
    Format.MARKDOWN: text.markdown_captions,
    Format.JSON: lambda captions: captions.model_dump_json(indent=2) + "\n",
    Format.SRT: text.srt,
    Format.VTT: text.webvtt,
}


def render(result: Result, format: Format | str) -> str:  # noqa: A002  the usual name
    """Return the result in this format, as the text of a file. It names missing parts if the format can express that.

    Raises `InvalidFormatError` for a format that results of this kind do not have, and for `pdf` and `facsimile`,
    which need pictures: `Job.save` writes those. Raises the errors of `check_patients`.
    """
    form = known(format)
    check(form, type(result))
    check_patients(result, form)
    if form.is_binary:
        raise InvalidFormatError(
            f"A {form} needs the document's pictures: write it by `job.save('name{form.suffix}', '{form}')`."
        )
    if isinstance(result, Captions):
        return _OF_CAPTIONS[form](result)
    if form is Format.FHIR:
        return _fhir(cast("Bundle | BundledDocument", result))
    return _OF_DOCUMENTS[form](result)


def check_patients(result: Result, form: Format) -> None:
    """Raise `IdentityConflictError` for a bundle with possibly several patients, except as JSON or FHIR."""
    if form in (Format.JSON, Format.FHIR) or not isinstance(result, Bundle) or result.split is None:
        return
    if (conflicts := result.split.conflicts) or len(result.split.named) > 1:
        what = f"{conflicts} documents in conflict" if conflicts else f"{len(result.split.named)} patients"
        raise IdentityConflictError(
            f"This bundle has {what}, so it is not written as one file: write single documents (`pecia result JOB "
            "--by document -o DIR`; `pecia.bundles.save_documents`), through a gateway as html, or correct them with "
            "`pecia review --job JOB`."
        )


def known(name: Format | str) -> Format:
    """Return the format of this name. Raises `InvalidFormatError`."""
    try:
        return Format(name)
    except ValueError:
        raise InvalidFormatError(f"A format must be one of {', '.join(Format)}.") from None


def check(form: Format, kind: type[object]) -> None:
    """Raise `InvalidFormatError` if results of this type do not have this format."""
    forms = [*_OF_CAPTIONS] if kind is Captions else [*_OF_DOCUMENTS, Format.PDF, Format.FACSIMILE]
    if issubclass(kind, Bundle | BundledDocument):
        forms.append(Format.FHIR)
    if form not in forms:
        what = "A captioned video" if kind is Captions else "A document"
        raise InvalidFormatError(f"{what} does not exist as {form}: use one of {', '.join(forms)}.")
