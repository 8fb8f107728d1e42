"""The result of a bundle: its pages, and the documents that they form."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any

from pecia_schemas.bundles import Split
from pecia_schemas.fhir import fhir_of
from pecia_schemas.results import BundledDocument, Document


class Bundle(Document):
    """The result of `ReadBundle`: all pages of the bundle, and their split into documents."""

    split: Split | None = None
    """None if the split failed, or does not exist yet."""

    @property
    def revision(self) -> int:
        """Number of the last revision of the pages and documents; 0 if never revised."""
        last = self.split.revision if self.split else None
        return max(super().revision, last.number if last else 0)

    @cached_property
    def documents(self) -> tuple[BundledDocument, ...]:
        """The documents in order, each with its pages that were read; pages that failed are in its `failed`."""
        read = {page.number: page for page in self.pages}
        failed = {page.number: page for page in self.failed}
        return tuple(
            BundledDocument(
                part=part,
                pages=tuple(read[number] for number in part.pages if number in read),
                failed=tuple(failed[number] for number in part.pages if number in failed),
            )
            for part in (self.split.documents if self.split else ())
        )

    def to_fhir(self, *, with_conflicts: bool = False, recorded: datetime | None = None) -> Any:
        """Return the documents as a FHIR R4B Bundle of `fhir.resources`, which validates it: a pydantic model.

        `with_conflicts` includes documents whose patient is in conflict, without a patient. `recorded` is the time of
        creation, by default now. Raises `ImportError` without pecia[fhir].
        """
        return fhir_of(self.documents, with_conflicts=with_conflicts, recorded=recorded)
