"""What a read bundle returns: its pages, and the documents that they are."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any

from pecia_schemas.bundles import Split
from pecia_schemas.fhir import fhir_of
from pecia_schemas.results import BundledDocument, Document


class Bundle(Document):
    """What `ReadBundle` returns: all its pages, and which of them are one document."""

    split: Split | None = None
    """None if it failed, or is not there yet."""

    @property
    def revision(self) -> int:
        """The number of the last revision of its pages and its documents; 0: all is as it was read."""
        last = self.split.revision if self.split else None
        return max(super().revision, last.number if last else 0)

    @cached_property
    def documents(self) -> tuple[BundledDocument, ...]:
        """Its documents in their order, each with its pages that were read; the others are in its `failed`."""
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
        """Return its documents as a FHIR R4B Bundle of `fhir.resources`, which validates it: a model of pydantic.

        `with_conflicts`: also documents whose patient is in conflict, without a patient. `recorded`: when it was made;
        None: now. Raises `ImportError` without pecia[fhir].
        """
        return fhir_of(self.documents, with_conflicts=with_conflicts, recorded=recorded)
