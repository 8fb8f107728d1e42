"""How a bundle of scans is split: its documents, where each begins, of which kind it is, and whose."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum

from pydantic import Field

from pecia_schemas.blocks import Box, Confidence, Stored, Text


class DocumentKind(StrEnum):
    """The kind of a document in a bundle."""

    PRESCRIPTION = "prescription"
    DIAGNOSIS = "diagnosis"
    LAB_RESULT = "lab_result"
    CHART = "chart"
    LETTER = "letter"
    INVOICE = "invoice"
    CONSENT = "consent"
    OTHER = "other"


class CutSign(StrEnum):
    """A reason why a document begins at a page, or goes on there."""

    FIRST = "first"
    """It is the bundle's first page."""
    SEPARATOR = "separator"
    """A separator sheet, or a barcode for that, stands before it."""
    BARCODE = "barcode"
    """A barcode with an id of another document, or of the same."""
    PAGE_NUMBER = "page_number"
    HEAD = "head"
    """A letterhead or title at its top."""
    KIND = "kind"
    IDENTITY = "identity"
    SIZE = "size"
    """Paper or scanner differ."""
    BLANK = "blank"
    """A blank back stands before it."""
    MODEL = "model"
    """A language model's opinion."""


class Cut(Stored):
    """The beginning of a document."""

    page: int = Field(ge=1)
    """The document's first page, as the bundle counts."""
    probability: Confidence
    """That a document begins there."""
    signs: tuple[CutSign, ...] = ()


class IdentitySign(StrEnum):
    """What tells a patient."""

    NAME = "name"
    BIRTH_DATE = "birth_date"
    RECORD_NUMBER = "record_number"
    INSURANCE_NUMBER = "insurance_number"


class IdentityPlace(Stored):
    """A sign of identity where it stands."""

    sign: IdentitySign
    text: Text
    """As it is written."""
    page: int = Field(ge=1)
    box: Box | None = None
    doubted: bool = False
    """Whether a doubt of the page is on it."""


class Identity(Stored):
    """A patient, as far as the pages tell."""

    name: Text | None = None
    birth_date: dt.date | None = None
    record_numbers: tuple[Text, ...] = ()
    insurance_numbers: tuple[Text, ...] = ()
    places: tuple[IdentityPlace, ...] = ()


class Likeness(StrEnum):
    """Whether two identities are of one patient."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class BundleDoubtReason(StrEnum):
    """Why a person should look at a document of a bundle."""

    IDENTITY_CONFLICT = "identity_conflict"
    """A page names another patient than the document, or than the patient who was expected."""
    CUT = "cut"
    """It is in doubt whether the document begins there, or ends."""
    KIND = "kind"


class BundleDoubt(Stored):
    """A doubt about a document of a bundle."""

    reason: BundleDoubtReason
    pages: tuple[int, ...]


class DocumentPart(Stored):
    """One document of a bundle."""

    number: int = Field(ge=1)
    """Counted from 1."""
    pages: tuple[int, ...] = Field(min_length=1)
    """Its pages' numbers in the bundle, in order, blank backs included."""
    cut: Cut
    kind: DocumentKind
    kind_probability: Confidence
    kind_words: tuple[Text, ...] = ()
    """Words of the document that speak for the kind, at most five."""
    title: Text | None = None
    date: dt.date | None = None
    """Of the document itself, not of birth or print."""
    language: str | None = None
    """ISO 639-1, of most of its text."""
    identity: Identity = Identity.model_construct()
    patient: int | None = Field(default=None, ge=1)
    """The same for all documents that are surely of one patient, counted from 1; None: unknown, or in conflict."""
    doubts: tuple[BundleDoubt, ...] = ()

    @property
    def has_conflict(self) -> bool:
        """Whether pages or patients contradict each other: it must not leave the fleet unseen."""
        return any(doubt.reason is BundleDoubtReason.IDENTITY_CONFLICT for doubt in self.doubts)


class Subject(Stored):
    """The patient whom a caller expects."""

    name: Text | None = None
    birth_date: dt.date | None = None
    record_numbers: tuple[Text, ...] = ()
    insurance_numbers: tuple[Text, ...] = ()


class Split(Stored):
    """The documents of a bundle."""

    documents: tuple[DocumentPart, ...]
    separators: tuple[int, ...] = ()
    """Pages that are separator sheets, in no document."""

    @property
    def needs_review(self) -> bool:
        """Whether a person should look at one of the documents."""
        return any(document.doubts for document in self.documents)
