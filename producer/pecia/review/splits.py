"""Corrections of a bundle's split, without I/O. Only a recorded decision can combine pages of two patients.

The patients that a page names are fixed when the bundle is split (`SplitPage.patients`), or by a later decision, which
the result records. Pages that name two patients form one document only in conflict, or by such a decision.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from pecia.errors import IdentityConflictError, InvalidOptionError
from pecia_schemas.bundles import (
    SURE_KIND,
    BundleDoubt,
    BundleDoubtReason,
    Cut,
    CutSign,
    DocumentKind,
    DocumentPart,
    Identity,
    PatientDecision,
    Split,
    SplitAction,
    SplitChange,
    SplitPage,
    SplitRevision,
    Subject,
)
from pecia_schemas.identities import claim_of, name_parts, only_same


def corrected(split: Split, change: SplitChange, *, number: int, by: str, at: datetime) -> Split:
    """Return the new revision of the split.

    Raises `InvalidOptionError` for an invalid change, `IdentityConflictError` if the change needs `same_patient`.
    """
    draft = _Draft(split, change, by, at)
    draft.apply()
    return draft.finished().model_copy(
        update={"revision": SplitRevision(number=number, by=by, at=at, change=change)}
    )


@dataclass(slots=True)
class _Part:
    """A document while it is corrected."""

    was: DocumentPart
    pages: list[int]
    touched: bool = False


class _Draft:
    def __init__(self, split: Split, change: SplitChange, by: str, at: datetime) -> None:
        self._split, self._change, self._by, self._at = split, change, by, at
        self._signs = {page.number: page for page in split.page_signs}
        self._parts = [_Part(part, list(part.pages)) for part in split.documents]
        self._separators = list(split.separators)
        self._patients = list(split.patients)
        self._expected = split.expected
        self._decisions = list(split.decisions)
        self._settled: set[int] = set()
        """Pages for which a person has decided the document."""

    def apply(self) -> None:
        """Apply the change."""
        {
            SplitAction.CUT: self._cut,
            SplitAction.JOIN: self._join,
            SplitAction.MOVE: self._move,
            SplitAction.KIND: self._set_kind,
            SplitAction.PATIENT: self._set_patient,
            SplitAction.ACCEPT: self._accept,
        }[self._change.action]()

    def _cut(self) -> None:
        part = self._part_with(self._change.page)
        page = self._change.page or 0
        if part.pages[0] == page:
            raise InvalidOptionError(f"A document already begins at page {page}.")
        behind = [each for each in part.pages if each >= page]
        part.pages, part.touched = [each for each in part.pages if each < page], True
        fresh = _Part(_first_seen(self._signs[page]), behind, touched=True)
        self._parts.insert(self._parts.index(part) + 1, fresh)
        self._settled.add(page)

    def _join(self) -> None:
        part = self._part_with(self._change.page)
        place = self._parts.index(part)
        if place == 0 or part.pages[0] != self._change.page:
            raise InvalidOptionError("Name the first page of the second or a later document.")
        before = self._parts[place - 1]
        self._guard(before, [before, part])
        self._parts.remove(part)
        before.pages, before.touched = sorted(before.pages + part.pages), True
        self._settled.add(part.pages[0])

    def _move(self) -> None:
        page, to = self._change.page or 0, self._part_numbered()
        if page in self._separators:
            self._separators.remove(page)
        else:
            origin = self._part_with(page)
            if origin is to:
                raise InvalidOptionError(f"Page {page} already belongs to that document.")
            self._guard(to, [to, _Part(origin.was, [page])])
            origin.pages.remove(page)
            origin.touched = True
        to.pages, to.touched = sorted([*to.pages, page]), True
        self._parts = [part for part in self._parts if part.pages]
        self._settled.add(page)

    def _set_kind(self) -> None:
        part, kind = self._part_numbered(), self._change.kind
        if kind is None:
            raise InvalidOptionError("Name a kind.")
        doubts = tuple(doubt for doubt in part.was.doubts if doubt.reason is not BundleDoubtReason.KIND)
        part.was = part.was.model_copy(update={"kind": kind, "kind_probability": 1.0, "doubts": doubts})

    def _set_patient(self) -> None:
        part, change = self._part_numbered(), self._change
        if (change.patient is None) is (change.identity is None):
            raise InvalidOptionError("Name a patient by number, or give an identity.")
        if change.identity is not None:
            patient = self._typed(change.identity)
        elif not 1 <= (patient := change.patient or 0) <= len(self._patients):
            raise InvalidOptionError(f"This bundle has no patient {patient}.")
        if self._named(part.pages) - {patient} or part.was.has_conflict:
            self._demand_decision()
        self._decide(part, patient)

    def _typed(self, identity: Subject) -> int:
        """Return the number of a typed patient: of the only known one who is surely the same, or of a new one."""
        typed = claim_of(identity)
        if not (name_parts(typed.name) or typed.births or typed.numbers or typed.policies):
            raise InvalidOptionError("Give the patient's name, date of birth or a number.")
        return only_same(typed, map(claim_of, self._patients)) or self._add(Identity(**identity.model_dump()))

    def _accept(self) -> None:
        part = self._part_numbered()
        if part.was.has_conflict:
            self._demand_decision()
            self._decide(part, self._accepted_owner(part))
        part.was, part.touched = part.was.model_copy(update={"doubts": ()}), True
        following = self._parts[self._parts.index(part) + 1 :][:1]
        self._settled |= {*part.pages, *(after.pages[0] for after in following)}

    def _accepted_owner(self, part: _Part) -> int | None:
        """Return the patient of an accepted document: the expected one, if any."""
        owner = self._owner(part)
        if self._expected is None or owner in self._expected:
            return owner
        if owner is None and self._expected:
            return self._expected[0]
        accepted = self._add(self._patients[owner - 1] if owner else Identity())
        self._expected = (*self._expected, accepted)
        return accepted

    def _guard(self, into: _Part, sources: Sequence[_Part]) -> None:
        """Raise unless the pages name at most one patient, or the change states that they are the same patient."""
        pages = list(chain.from_iterable(source.pages for source in sources))
        named = self._named(pages)
        if len(named) < 2 or any(named <= self._named(source.pages) for source in sources):  # noqa: PLR2004
            return
        self._demand_decision()
        self._decide(_Part(into.was, pages), self._owner(into) or min(named))

    def _demand_decision(self) -> None:
        if not self._change.same_patient:
            raise IdentityConflictError(
                "These pages name different patients, or may not belong to the expected one: if they do belong to one "
                "patient, confirm that explicitly (`same_patient`)."
            )

    def _decide(self, part: _Part, patient: int | None) -> None:
        """Record a person's decision about the patient of these pages."""
        patients = (patient,) if patient else ()
        for page in part.pages:
            self._signs[page] = self._signs[page].model_copy(update={"patients": patients})
        part.touched = True
        self._decisions.append(
            PatientDecision(
                by=self._by,
                at=self._at,
                reason=self._change.reason,
                pages=tuple(sorted(part.pages)),
                patient=patient,
            )
        )

    def finished(self) -> Split:
        """Return the current documents, with the remaining doubts."""
        doubts = [doubt for part in self._split.documents for doubt in part.doubts]
        unsure = _pages_of(doubts, BundleDoubtReason.CUT) - self._settled
        astray = {
            page
            for page in _pages_of(doubts, BundleDoubtReason.IDENTITY_CONFLICT) - self._settled
            if not self._signs[page].patients
        }
        documents = []
        for number, part in enumerate(self._parts, 1):
            made = self._remade(part, astray) if part.touched else part.was
            others = [doubt for doubt in made.doubts if doubt.reason is not BundleDoubtReason.CUT]
            edges = [after.pages[0] for after in self._parts[number : number + 1]]
            if pages := sorted(unsure & {*part.pages, *edges}):
                others.append(BundleDoubt(reason=BundleDoubtReason.CUT, pages=tuple(pages)))
            documents.append(made.model_copy(update={"number": number, "doubts": tuple(others)}))
        return self._split.model_copy(
            update={
                "documents": tuple(documents),
                "separators": tuple(self._separators),
                "page_signs": tuple(self._signs.values()),
                "patients": tuple(self._patients),
                "expected": self._expected,
                "decisions": tuple(self._decisions),
            }
        )

    def _remade(self, part: _Part, astray: Collection[int]) -> DocumentPart:
        """Return a document after its pages or patient have changed."""
        named, owner, was = self._named(part.pages), self._owner(part), part.was
        conflict = {page for page in part.pages if {*self._signs[page].patients} - {owner}}
        if self._expected is not None and (not named or named - {*self._expected}):
            conflict = {*part.pages}
        if len(part.pages) > 1:
            conflict |= {*part.pages} & {*astray}
        doubts = [doubt for doubt in was.doubts if doubt.reason is BundleDoubtReason.KIND]
        if conflict:
            reason = BundleDoubtReason.IDENTITY_CONFLICT
            doubts.insert(0, BundleDoubt(reason=reason, pages=tuple(sorted(conflict))))
        identity = self._patients[owner - 1] if owner else Identity()
        places = tuple(place for place in identity.places if place.page in part.pages)
        update: dict[str, Any] = {
            "pages": tuple(part.pages),
            "identity": identity.model_copy(update={"places": places}),
            "patient": None if conflict else owner,
            "doubts": tuple(doubts),
        }
        if part.pages[0] != was.cut.page:
            update["cut"] = _by_person(part.pages[0])
        return was.model_copy(update=update)

    def _named(self, pages: Iterable[int]) -> set[int]:
        return {patient for page in pages for patient in self._signs[page].patients}

    def _owner(self, part: _Part) -> int | None:
        """Return the patient that most pages of a document name, the first of several."""
        named = [patient for page in part.pages for patient in self._signs[page].patients]
        return max(named, key=named.count, default=None)

    def _add(self, identity: Identity) -> int:
        self._patients.append(identity)
        return len(self._patients)

    def _part_with(self, page: int | None) -> _Part:
        for part in self._parts:
            if page in part.pages:
                return part
        raise InvalidOptionError(f"No document of this bundle has page {page}.")

    def _part_numbered(self) -> _Part:
        number = self._change.document or 0
        if not 1 <= number <= len(self._parts):
            raise InvalidOptionError(f"This bundle has no document {number}.")
        return self._parts[number - 1]


def _first_seen(page: SplitPage) -> DocumentPart:
    """Return the document that begins at a page, with the signs of that page only."""
    doubt = BundleDoubt(reason=BundleDoubtReason.KIND, pages=(page.number,))
    is_sure = page.kind is DocumentKind.OTHER or page.kind_probability >= SURE_KIND
    return DocumentPart(
        number=1,
        pages=(page.number,),
        cut=_by_person(page.number),
        kind=page.kind,
        kind_probability=page.kind_probability,
        title=page.title,
        date=page.date,
        language=page.language,
        doubts=() if is_sure else (doubt,),
    )


def _by_person(page: int) -> Cut:
    return Cut(page=page, probability=1.0, signs=(CutSign.PERSON,))


def _pages_of(doubts: Iterable[BundleDoubt], reason: BundleDoubtReason) -> set[int]:
    return {page for doubt in doubts if doubt.reason is reason for page in doubt.pages}
