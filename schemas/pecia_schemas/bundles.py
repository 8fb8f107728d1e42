"""How a bundle of scans is split: its documents, where each begins, of which kind it is, and whose."""

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
    PERSON = "person"
    """A person said so in a review."""


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


class SplitPage(Stored):
    """What one page of a bundle says by itself."""

    number: int = Field(ge=1)
    begins: Confidence = 0.0
    """The probability that a document begins there."""
    patients: tuple[int, ...] = ()
    """Whom it names, by their numbers in `Split.patients`, or whom a person said that it is of."""
    kind: DocumentKind = DocumentKind.OTHER
    kind_probability: Confidence = 0.0
    title: Text | None = None
    date: dt.date | None = None
    language: str | None = None


class SplitAction(StrEnum):
    """What a person corrects of a bundle's documents."""

    CUT = "cut"
    """A document begins at `page`."""
    JOIN = "join"
    """The document that begins at `page` goes on from the one before."""
    MOVE = "move"
    """`page`, which may be a separator sheet, is of `document`."""
    KIND = "kind"
    """`document` is of `kind`."""
    PATIENT = "patient"
    """`document` is of `patient`, or of a patient with that `identity`."""
    ACCEPT = "accept"
    """`document` is right as it is: its doubts are dropped."""


class SplitChange(Stored):
    """One correction of a bundle's documents."""

    action: SplitAction
    page: int | None = None
    document: int | None = None
    """Its number."""
    kind: DocumentKind | None = None
    patient: int | None = None
    """A number in `Split.patients`."""
    identity: Subject | None = None
    """A patient who is none of these."""
    same_patient: bool = False
    """An explicit decision that the pages are of one patient, although they name several or another one."""
    reason: Annotated[Text, Field(max_length=storable.REASON)] = ""
    """Stored with the result, under the job's key."""


class SplitRevision(Stored):
    """A correction of a bundle's documents: who, when, what."""

    number: int = Field(ge=1)
    """Counted from 1 through all pages of the job and its documents."""
    by: str
    """The client's name, as the audit trail has it."""
    at: dt.datetime
    change: SplitChange


class PatientDecision(Stored):
    """A person's decision that pages are of one patient, whatever they name."""

    by: str
    at: dt.datetime
    reason: Text = ""
    pages: tuple[int, ...]
    patient: int | None
    """A number in `Split.patients`; None: the pages name no patient, and are one document all the same."""


class Split(Stored):
    """The documents of a bundle."""

    documents: tuple[DocumentPart, ...]
    separators: tuple[int, ...] = ()
    """Pages that are separator sheets, in no document."""
    page_signs: tuple[SplitPage, ...] = ()
    """Of each page what a correction needs to know."""
    patients: tuple[Identity, ...] = ()
    """The patients that pages name, number 1 first. Only a person can decide that two numbers are one patient."""
    expected: tuple[int, ...] | None = None
    """Numbers of the patient that the caller expects; None: the caller expects none."""
    decisions: tuple[PatientDecision, ...] = ()
    """All that people decided about patients against, or beyond, what the pages name."""
    revision: SplitRevision | None = None
    """The last correction; None: it is as it was split."""

    @property
    def needs_review(self) -> bool:
        """Whether a person should look at one of the documents."""
        return any(document.doubts for document in self.documents)

    @property
    def named(self) -> set[int]:
        """The numbers of all patients whose the documents are, and of all whom their pages name."""
        named = {patient for page in self.page_signs for patient in page.patients}
        return named | {document.patient for document in self.documents if document.patient}

    @property
    def conflicts(self) -> int:
        """How many documents are in conflict."""
        return sum(document.has_conflict for document in self.documents)
