"""Results in the forms that people and other programs take: pure functions from a result to what a file holds."""

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
    """A form that a result can be written in."""

    TEXT = "text"
    """Words alone, a form feed between pages."""
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    """All tables, an empty line between them."""
    JSON = "json"
    """The complete result, as `Document.model_validate_json` reads it back."""
    FIELDS = "fields"
    """JSON lines: what `fields=` asked for, an object for each page."""
    HOCR = "hocr"
    """Blocks, lines and words with their places and confidence, as XHTML."""
    PDF = "pdf"
    """The pages' pictures with the text, invisible, over them: searchable."""
    FACSIMILE = "facsimile"
    """HTML with the pages' pictures beside the text: one file that needs nothing else."""
    FHIR = "fhir"
    """Of bundles: a FHIR R4B Bundle as JSON, without the documents whose patient is in conflict."""
    SRT = "srt"
    VTT = "vtt"

    @property
    def suffix(self) -> str:
        """What a file of this form ends in."""
        return _SUFFIXES.get(self, f".{self.value}")

    @property
    def is_binary(self) -> bool:
        """Whether it needs the document's pictures."""
        return self in (Format.PDF, Format.FACSIMILE)

    @classmethod
    def of(cls, path: Path) -> Format:
        """Return the form that a file's suffix names. Raises `InvalidFormatError`."""
        found = _BY_SUFFIX.get("".join(path.suffixes[-2:]).lower()) or _BY_SUFFIX.get(path.suffix.lower())
        if found is None:
            raise InvalidFormatError(
                f"The suffix {path.suffix!r} names no format: end the name in one of {', '.join(_BY_SUFFIX)}, "
                f"or say which of {', '.join(cls)} it shall be."
            )
        return found


_SUFFIXES = {
    Format.TEXT: ".txt",
    Format.MARKDOWN: ".md",
    Format.FIELDS: ".jsonl",
    Format.FACSIMILE: ".html",
    Format.FHIR: ".fhir.json",
}
"""Those that are not the form's own name."""
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
        # A document that is asked for by itself is given with its conflict.
        whole = result.to_fhir() if isinstance(result, Bundle) else fhir_of([result], with_conflicts=True)
    except ImportError:
        raise ConfigurationError(f"FHIR is checked by fhir.resources: {install_command('fhir')}") from None
    written: str = whole.model_dump_json(indent=2)
    return f"{written}\n"


_OF_CAPTIONS: Mapping[Format, Callable[[Captions], str]] = {
    Format.TEXT: text.plain_captions,
    Format.MARKDOWN: text.markdown_captions,
    Format.JSON: lambda captions: captions.model_dump_json(indent=2) + "\n",
    Format.SRT: text.srt,
    Format.VTT: text.webvtt,
}


def render(result: Result, format: Format | str) -> str:  # noqa: A002  what everybody calls it
    """Return the result in that form, as the text of a file. What a partial result lacks is said where it can be.

    Raises `InvalidFormatError` for a form that a result of this kind does not have, and for `pdf` and
    `facsimile`, which have pictures: `Job.save` writes them. Raises as `check_patients`.
    """
    form = known(format)
    check(form, type(result))
    check_patients(result, form)
    if form.is_binary:
        raise InvalidFormatError(
            f"A {form} is made of the document's pictures: `job.save('name{form.suffix}', '{form}')` writes it."
        )
    if isinstance(result, Captions):
        return _OF_CAPTIONS[form](result)
    if form is Format.FHIR:
        return _fhir(cast("Bundle | BundledDocument", result))
    return _OF_DOCUMENTS[form](result)


def check_patients(result: Result, form: Format) -> None:
    """Raise `IdentityConflictError` for a bundle not surely of one patient: only JSON and FHIR keep them apart."""
    if form in (Format.JSON, Format.FHIR) or not isinstance(result, Bundle) or result.split is None:
        return
    if (conflicts := result.split.conflicts) or len(result.split.named) > 1:
        what = f"{conflicts} documents in conflict" if conflicts else f"{len(result.split.named)} patients"
        raise IdentityConflictError(
            f"This bundle has {what}, and is not written as one file: take its documents one by one (`pecia result JOB "
            "--by document -o DIR`; `pecia.bundles.save_documents`), through a gateway as html, or correct them with "
            "`pecia review --job JOB`."
        )


def known(name: Format | str) -> Format:
    """Return the form of this name. Raises `InvalidFormatError`."""
    try:
        return Format(name)
    except ValueError:
        raise InvalidFormatError(f"A format is one of {', '.join(Format)}.") from None


def check(form: Format, kind: type[object]) -> None:
    """Raise `InvalidFormatError` if results of this type do not have this form."""
    forms = [*_OF_CAPTIONS] if kind is Captions else [*_OF_DOCUMENTS, Format.PDF, Format.FACSIMILE]
    if issubclass(kind, Bundle | BundledDocument):
        forms.append(Format.FHIR)
    if form not in forms:
        what = "A captioned video" if kind is Captions else "A document"
        raise InvalidFormatError(f"{what} has no form {form}: take one of {', '.join(forms)}.")
