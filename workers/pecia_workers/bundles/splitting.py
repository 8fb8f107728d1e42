"""Where the documents of a bundle begin."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import Final

from pecia_schemas.bundles import (
    BundleDoubt,
    BundleDoubtReason,
    Cut,
    CutSign,
    DocumentKind,
    DocumentPart,
    Identity,
    Split,
    Subject,
)
from pecia_schemas.results import Page

_NUMBER: Final = re.compile(r"Page (\d+) of (\d+)")
_NAME: Final = re.compile(r"(?:Patient|Name): *([A-Z][\w'-]+(?: [A-Z][\w'-]+)+)")
_BORN: Final = re.compile(r"(?:Born|Date of birth): *(\d{4}-\d\d-\d\d)")
_RECORD: Final = re.compile(r"(?:Record|MRN):? *([A-Z0-9-]+)")
_KINDS: Final = {
    "laboratory": DocumentKind.LAB_RESULT,
    "prescription": DocumentKind.PRESCRIPTION,
    "letter": DocumentKind.LETTER,
    "invoice": DocumentKind.INVOICE,
}


def split(pages: Iterable[Page], *, subject: Subject | None = None) -> Split:
    """Return the documents of a bundle, in the order of its pages."""
    documents: list[DocumentPart] = []
    patients: dict[str, int] = {}
    for page in pages:
        text = page.text
        number = _NUMBER.search(text)
        if documents and (page.blank or (number and number[1] != "1")):
            last = documents[-1]
            documents[-1] = last.model_copy(update={"pages": (*last.pages, page.number)})
            continue
        name, born, record = (
            found and found[1] for found in (p.search(text) for p in (_NAME, _BORN, _RECORD))
        )
        kind = next((kind for word, kind in _KINDS.items() if word in text.lower()), DocumentKind.OTHER)
        strange = subject and subject.name and name and subject.name != name
        doubts = (
            (BundleDoubt(reason=BundleDoubtReason.IDENTITY_CONFLICT, pages=(page.number,)),)
            if strange
            else ()
        )
        documents.append(
            DocumentPart(
                number=len(documents) + 1,
                pages=(page.number,),
                cut=Cut(page=page.number, probability=1.0, signs=(CutSign.PAGE_NUMBER,)),
                kind=kind,
                kind_probability=0.9,
                title=next(iter(text.splitlines()), None),
                identity=Identity(
                    name=name,
                    birth_date=dt.date.fromisoformat(born) if born else None,
                    record_numbers=(record,) if record else (),
                ),
                patient=None if strange or not name else patients.setdefault(name, len(patients) + 1),
                doubts=doubts,
            )
        )
    return Split(documents=tuple(documents))
