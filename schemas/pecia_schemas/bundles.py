"""The split of a bundle of scans: its documents with their beginnings, kinds and patients."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from pecia_schemas import storable
from pecia_schemas.blocks import Box, Confidence, Stored, Text

SURE_KIND: Final = 0.7
"""Probability from which on the kind of a document is not in doubt."""


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
    """A sign that a document begins at a page, or continues there."""

    FIRST = "first"
    """The page is the bundle's first."""
    SEPARATOR = "separator"
    """A separator sheet or separator barcode precedes the page."""
    BARCODE = "barcode"
    """The page has a barcode with the id of another document, or of the same."""
    PAGE_NUMBER = "page_number"
    HEAD = "head"
    """A letterhead or title is at the top of the page."""
    KIND = "kind"
    IDENTITY = "identity"
    SIZE = "size"
    """The paper or the scanner differs."""
    BLANK = "blank"
    """A blank back precedes the page."""
    MODEL = "model"
    """A language model judged the page."""
    PERSON = "person"
    """A person decided it in a review."""


class Cut(Stored):
    """The beginning of a document."""

    page: int = Field(ge=1)
    """The document's first page, by its number in the bundle."""
    probability: Confidence
    """Probability that a document begins at this page."""
    signs: tuple[CutSign, ...] = ()


class IdentitySign(StrEnum):
    """A sign that identifies a patient."""

    NAME = "name"
    BIRTH_DATE = "birth_date"
    RECORD_NUMBER = "record_number"
    INSURANCE_NUMBER = "insurance_number"


class IdentityPlace(Stored):
    """A sign of identity with its place."""

    sign: IdentitySign
    text: Text
    """The text as written on the page."""
    page: int = Field(ge=1)
    box: Box | None = None
    doubted: bool = False
    """Whether a doubt of the page concerns it."""


class Identity(Stored):
    """A patient, by the signs on the pages."""

    name: Text | None = None
    birth_date: dt.date | None = None
    record_numbers: tuple[Text, ...] = ()
    insurance_numbers: tuple[Text, ...] = ()
    places: tuple[IdentityPlace, ...] = ()


class Likeness(StrEnum):
    """Whether two identities belong to one patient."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class BundleDoubtReason(StrEnum):
    """Reason to review a document of a bundle."""

    IDENTITY_CONFLICT = "identity_conflict"
    """A page names another patient than the document, or than the expected patient."""
    CUT = "cut"
    """The beginning or the end of the document is in doubt."""
    KIND = "kind"


class BundleDoubt(Stored):
    """A doubt about a document of a bundle."""

    reason: BundleDoubtReason
    pages: tuple[int, ...]


class DocumentPart(Stored):
    """One document of a bundle."""

    number: int = Field(ge=1)
    """Number of the document, from 1."""
    pages: tuple[int, ...] = Field(min_length=1)
    """Numbers of the document's pages in the bundle, in order, including blank backs."""
    cut: Cut
    kind: DocumentKind
    kind_probability: Confidence
    kind_words: tuple[Text, ...] = ()
    """At most five words of the document that indicate its kind."""
    title: Text | None = None
    date: dt.date | None = None
    """Date of the document itself, not a date of birth or print."""
    language: str | None = None
    """Language of most of the document's text, by ISO 639-1."""
    identity: Identity = Identity.model_construct()
    patient: int | None = Field(default=None, ge=1)
    """Number of the patient, from 1, equal for all documents surely of one patient; None if unknown or in conflict."""
    doubts: tuple[BundleDoubt, ...] = ()

    @property
    def has_conflict(self) -> bool:
        """Whether patients contradict each other, so that the document must be reviewed before it leaves the fleet."""
        return any(doubt.reason is BundleDoubtReason.IDENTITY_CONFLICT for doubt in self.doubts)


class Subject(Stored):
    """The patient that a caller expects."""

    name: Text | None = None
    birth_date: dt.date | None = None
    record_numbers: tuple[Text, ...] = ()
    insurance_numbers: tuple[Text, ...] = ()


class SplitPage(Stored):
    """Properties of one page of a bundle."""

    number: int = Field(ge=1)
    begins: Confidence = 0.0
    """Probability that a document begins at this page."""
    patients: tuple[int, ...] = ()
    """Numbers in `Split.patients` of the patients that the page names, or of the one that a person decided."""
    kind: DocumentKind = DocumentKind.OTHER
    kind_probability: Confidence = 0.0
    title: Text | None = None
    date: dt.date | None = None
    language: str | None = None


class SplitAction(StrEnum):
    """Kind of a correction of a bundle's documents."""

    CUT = "cut"
    """Begin a document at `page`."""
    JOIN = "join"
    """Join the document that begins at `page` to the one before."""
    MOVE = "move"
    """Move `page`, which may be a separator sheet, to `document`."""
    KIND = "kind"
    """Set the kind of `document` to `kind`."""
    PATIENT = "patient"
    """Set the patient of `document` to `patient`, or to a patient with that `identity`."""
    ACCEPT = "accept"
    """Accept `document` as it is, and drop its doubts."""


class SplitChange(Stored):
    """One correction of a bundle's documents."""

    action: SplitAction
    page: int | None = None
    document: int | None = None
    """Number of the document."""
    kind: DocumentKind | None = None
    patient: int | None = None
    """Number of the patient in `Split.patients`."""
    identity: Subject | None = None
    """A patient that is not in `Split.patients`."""
    same_patient: bool = False
    """Explicit decision that the pages belong to one patient, although they name several or another one."""
    reason: Annotated[Text, Field(max_length=storable.REASON)] = ""
    """Stored with the result, encrypted with the job's key."""


class SplitRevision(Stored):
    """A correction of a bundle's documents, with its author and time."""

    number: int = Field(ge=1)
    """Number of the revision, from 1, counted over all pages of the job and its documents."""
    by: str
    """Name of the client, as in the audit trail."""
    at: dt.datetime
    change: SplitChange


class PatientDecision(Stored):
    """A person's decision that pages belong to one patient, whatever they name."""

    by: str
    at: dt.datetime
    reason: Text = ""
    pages: tuple[int, ...]
    patient: int | None
    """Number of the patient in `Split.patients`; None if the pages name none but form one document."""


class Split(Stored):
    """The documents of a bundle."""

    documents: tuple[DocumentPart, ...]
    separators: tuple[int, ...] = ()
    """Pages that are separator sheets and belong to no document."""
    page_signs: tuple[SplitPage, ...] = ()
    """Properties of each page, which corrections need."""
    patients: tuple[Identity, ...] = ()
    """The patients that pages name, numbered from 1. Only a person can decide that two numbers are one patient."""
    expected: tuple[int, ...] | None = None
    """Numbers of the patient that the caller expects, or None if the caller expects none."""
    decisions: tuple[PatientDecision, ...] = ()
    """All decisions of people about patients that differ from the names on the pages, or add to them."""
    revision: SplitRevision | None = None
    """The last correction, or None without one."""

    @property
    def needs_review(self) -> bool:
        """Whether a document needs a review."""
        return any(document.doubts for document in self.documents)

    @property
    def named(self) -> set[int]:
        """The numbers of all patients of documents, and of all that pages name."""
        named = {patient for page in self.page_signs for patient in page.patients}
        return named | {document.patient for document in self.documents if document.patient}

    @property
    def conflicts(self) -> int:
        """Number of documents in conflict."""
        return sum(document.has_conflict for document in self.documents)
