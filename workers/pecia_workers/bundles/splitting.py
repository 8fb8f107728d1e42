"""Split a bundle into documents, so that no document has pages of two patients without a conflict."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, pairwise
from typing import Final

from pecia_schemas.bundles import (
    SURE_KIND,
    BundleDoubt,
    BundleDoubtReason,
    Cut,
    CutSign,
    DocumentKind,
    DocumentPart,
    Identity,
    Likeness,
    Split,
    SplitPage,
    Subject,
)
from pecia_schemas.identities import (
    Claim,
    claim_of,
    compare,
    identity_of,
    is_expected,
    likeness_across,
    only_same,
)
from pecia_schemas.results import Page
from pecia_workers.bundles.signs import Evidence, PageSigns, judge, signs_of

WEIGHTS: Final[Mapping[str, float]] = {
    "bias": -1.68,
    "first_number": 2.52,
    "next_number": -2.02,
    "number_breaks": -0.25,
    "before_is_last": 2.22,
    "same_head": -1.93,
    "new_head": 1.1,
    "letterhead": 0.69,
    "no_head": -2.11,
    "title": 3.16,
    "same_title": 0.49,
    "other_kind": 2.47,
    "same_kind": -0.84,
    "other_date": 1.95,
    "opens": 0.5,
    "closed": 0.26,
    "goes_on": -0.59,
    "names_nobody": -1.59,
    "names_fully": 1.08,
    "same_patient": -0.63,
    "other_patient": 2.09,
    "patient_in_doubt": 0.52,
    "same_barcode": -0.79,
    "other_barcode": 0.01,
    "size": 2.03,
    "blank": 1.11,
}
"""Of the signs that a document begins: log odds, as `python -m tests.shared.drawn_bundles` fits and prints them."""
_OF_SIGNS: Final[Mapping[CutSign, str]] = {
    CutSign.PAGE_NUMBER: "first_number next_number number_breaks before_is_last",
    CutSign.HEAD: "same_head new_head letterhead no_head title same_title other_date opens closed goes_on",
    CutSign.KIND: "other_kind same_kind",
    CutSign.IDENTITY: "names_nobody names_fully same_patient other_patient patient_in_doubt",
    CutSign.BARCODE: "same_barcode other_barcode",
    CutSign.SIZE: "size",
    CutSign.BLANK: "blank",
}
_SIGN_OF: Final = {name: sign for sign, names in _OF_SIGNS.items() for name in names.split()}
_BEGINNINGS: Final = frozenset({"first_number", "before_is_last", "opens", "other_kind", "size"})
_TIES: Final = frozenset({"next_number", "same_head", "same_barcode"})
_NOTHING: Final[Mapping[str, float]] = {}
_ALIKE: Final = 0.6
"""Share of words that two headings of one institution have in common."""
_SIZES_APART: Final = 0.06
_DOUBTFUL: Final = (0.1, 0.9)
"""Range of probabilities in which a cut is doubtful."""
_LEAST_SURE: Final = 0.95
"""Least probability that a page without a patient belongs to its document, if the next is another patient's."""


@dataclass(slots=True)
class Part:
    """A document under construction."""

    cut: Cut
    pages: list[PageSigns] = field(default_factory=list)
    loose: dict[int, float] = field(default_factory=dict)
    """For each page after the first the probability that another document begins there after all."""
    contrary: set[int] = field(default_factory=set)
    """Pages without a patient that bear a sign of a beginning, whatever their other signs."""
    untied: set[int] = field(default_factory=set)
    """Pages without a patient that no number, head or barcode ties to the document."""
    claim: Claim = field(default_factory=Claim)
    """The patient named by its pages, without pages that contradict earlier ones."""
    titles: dict[str, DocumentKind] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=dict)
    first: PageSigns | None = None
    """The first page that is not blank."""
    last: PageSigns | None = None
    written: int = 0
    """How many of its pages are not blank."""

    def add(
        self, page: PageSigns, probability: float | None = None, features: Mapping[str, float] = _NOTHING
    ) -> None:
        """Add its next page; `probability`: that a document begins there, by the page's signs."""
        self.pages.append(page)
        if probability is not None:
            self.loose[page.number] = probability
            if not page.claims and features.keys() & _BEGINNINGS:
                self.contrary.add(page.number)
            elif not page.claims and not features.keys() & _TIES:
                self.untied.add(page.number)
        if page.blank:
            return
        self.first, self.last = self.first or page, page
        self.written += 1
        self.titles = self.titles or page.titles
        for kind, words in page.evidence.items():
            self.evidence.setdefault(kind, Counter()).update(words)
        for claim in page.claims:
            if not compare(self.claim, claim).contradicts:
                self.claim.merge(claim)


def first_part(page: PageSigns, probability: float = 1.0, signs: Iterable[CutSign] = ()) -> Part:
    """Return a document with this first page."""
    part = Part(Cut(page=page.number, probability=probability, signs=tuple(signs)))
    part.add(page)
    return part


def split(pages: Iterable[Page], *, subject: Subject | None = None) -> Split:
    """Return the documents of a bundle's pages, given in order; those of others than `subject` are in conflict.

    Keeps only signs of each page, so that the pages need not be in memory together.
    """
    signs = [signs_of(page) for page in pages]
    parts, separators = _cut(signs)
    expected = claim_of(subject) if subject else None
    conflicts = _conflicts(parts, expected)
    patients = _patients(
        [None if pages else part.claim for part, pages in zip(parts, conflicts, strict=True)]
    )
    people = _People(parts, conflicts, patients, expected)
    documents = [
        _document(number, part, parts[number : number + 1], sorted(pages), patient)
        for number, (part, pages, patient) in enumerate(zip(parts, conflicts, patients, strict=True), 1)
    ]
    begins = {number: likely for part in parts for number, likely in part.loose.items()}
    begins |= {part.cut.page: part.cut.probability for part in parts}
    return Split(
        documents=tuple(documents),
        separators=tuple(separators),
        page_signs=tuple(
            _page(page, begins.get(page.number, 0.0), people.named.get(page.number, ())) for page in signs
        ),
        patients=tuple(map(identity_of, people.claims)),
        expected=people.expected,
    )


def _page(page: PageSigns, begins: float, patients: Iterable[int]) -> SplitPage:
    kind, probability, _ = judge(page.titles, page.evidence)
    return SplitPage(
        number=page.number,
        begins=begins,
        patients=tuple(sorted(set(patients))),
        kind=kind,
        kind_probability=probability,
        title=next(iter(page.titles), None),
        date=page.date,
        language=page.languages.most_common(1)[0][0] if page.languages else None,
    )


def _cut(signs: Sequence[PageSigns]) -> tuple[list[Part], list[int]]:
    """Return the documents formed by these pages, and the numbers of separator sheets."""
    parts: list[Part] = []
    separators: list[int] = []
    after_sheet = False
    for page in signs:
        current = parts[-1] if parts else None
        if page.is_sheet or (page.blank and separators[-1:] == [page.number - 1]):  # a sheet, or its back
            separators.append(page.number)
            after_sheet = True
            continue
        if current is None:
            parts.append(first_part(page, signs=(CutSign.FIRST, *[CutSign.SEPARATOR] * after_sheet)))
        elif after_sheet or page.separates:
            parts.append(first_part(page, signs=(CutSign.SEPARATOR,)))
        elif page.blank or not current.written:
            current.add(page)
        else:
            features = features_of(current, page)
            probability = probability_of(features)
            if probability >= 0.5:  # noqa: PLR2004  likelier than not
                parts.append(first_part(page, probability, _reasons(features)))
            else:
                current.add(page, probability, features)
        after_sheet = False
    return parts, separators


def _conflicts(parts: Sequence[Part], expected: Claim | None) -> list[set[int]]:
    """Return for each document the pages that may belong to another patient than its own, or than the expected one."""
    conflicts = [set(_contradicting(part, expected)) for part in parts]
    for part, numbers in zip(parts, conflicts, strict=True):
        # A page without a patient that may begin a document may be another patient's.
        nameless = (page.number for page in part.pages if not page.claims)
        numbers.update(number for number in nameless if part.loose.get(number, 0.0) > _DOUBTFUL[0])
        numbers.update(part.contrary)
        numbers.update(_nameless_before(part))
        if expected and not is_expected(expected, part.claim):
            numbers.update(page.number for page in part.pages)
    for number, (part, next_part) in enumerate(pairwise(parts)):
        _add_strays(part, next_part, conflicts[number], conflicts[number + 1])
    return conflicts


def features_of(part: Part, page: PageSigns) -> dict[str, float]:
    """Return the signs for and against a document that begins at this page, rather than the part going on."""
    first, before = part.first or page, part.last or page
    signs = {"bias": True}
    fits_total = page.total is None or before.total is None or page.total == before.total
    follows = before.place is not None and page.place == before.place + 1 and fits_total
    guessed = before.place is None and page.place == part.written + 1
    signs["first_number"] = page.place == 1
    signs["next_number"] = follows or guessed
    signs["number_breaks"] = page.place is not None and page.place > 1 and not follows and not guessed
    signs["before_is_last"] = before.place is not None and before.place == before.total and not follows
    heads = [other.head for other in (first, before) if other.letterhead is page.letterhead]
    alike = max((_common(page.head, head) for head in heads), default=0.0)
    signs["same_head"] = alike >= _ALIKE
    signs["new_head"] = page.letterhead and (first.letterhead or before.letterhead) and alike < _ALIKE
    signs["letterhead"] = page.letterhead and not first.letterhead and not before.letterhead
    signs["no_head"] = not page.letterhead and not page.titles
    known, kinds = set(part.titles.values()), set(page.titles.values())
    same_title = bool(page.titles.keys() & part.titles.keys())
    signs["title"] = bool(kinds)
    signs["same_title"] = same_title and alike >= _ALIKE
    own, sure, _ = judge(page.titles, page.evidence)
    whole, whole_sure, _ = judge(part.titles, part.evidence)
    told = DocumentKind.OTHER not in (own, whole) and min(sure, whole_sure) > SURE_KIND
    signs["other_kind"] = (told and own is not whole) or bool(kinds and known and kinds.isdisjoint(known))
    signs["same_kind"] = told and own is whole
    signs["other_date"] = page.date is not None and first.date is not None and page.date != first.date
    signs["opens"] = page.opens
    signs["closed"] = before.closes
    signs["goes_on"] = page.starts_small
    comparisons = [compare(part.claim, other) for other in page.claims]
    signs["names_nobody"] = not page.claims
    signs["names_fully"] = any(claim.name and claim.births for claim in page.claims)
    signs["same_patient"] = any(one.likeness is Likeness.SAME for one in comparisons)
    signs["other_patient"] = any(one.likeness is Likeness.DIFFERENT for one in comparisons)
    signs["patient_in_doubt"] = not signs["other_patient"] and any(one.contradicts for one in comparisons)
    codes = before.barcodes | first.barcodes
    signs["same_barcode"] = bool(page.barcodes & codes)
    signs["other_barcode"] = bool(page.barcodes) and bool(codes) and not page.barcodes & codes
    signs["size"] = _sizes_differ(before, page)
    backs = len(part.pages) - part.written
    signs["blank"] = part.pages[-1].blank and backs < part.written
    return {name: float(value) for name, value in signs.items() if value}


def probability_of(features: Mapping[str, float]) -> float:
    """Return the probability that a document begins at a page with these signs."""
    return 1 / (1 + math.exp(-sum(WEIGHTS[name] * value for name, value in features.items())))


def _reasons(features: Mapping[str, float]) -> tuple[CutSign, ...]:
    """Return the signs for a cut, the strongest first."""
    strength: Counter[CutSign] = Counter()
    for name in features.keys() & _SIGN_OF.keys():
        strength[_SIGN_OF[name]] = max(strength[_SIGN_OF[name]], WEIGHTS[name])  # type: ignore[assignment]
    return tuple(sign for sign, weight in strength.most_common() if weight > 0)


def _common(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, min(len(one), len(other)))


def _sizes_differ(one: PageSigns, other: PageSigns) -> bool:
    sides = zip(sorted(one.size), sorted(other.size), strict=True)
    return any(abs(side - against) > _SIZES_APART * max(side, against) for side, against in sides)


def _contradicting(part: Part, expected: Claim | None) -> Iterable[int]:
    """Yield the pages that name another patient than their document, or than the caller expects."""
    claims: dict[str, tuple[Claim, list[int]]] = {}  # the same signs stand on many pages
    for page in part.pages:
        for claim in page.claims:
            key = repr(
                (
                    claim.name,
                    sorted(claim.births),
                    sorted((system, sorted(keys)) for system, keys in claim.numbers.items()),
                )
            )
            claims.setdefault(key, (claim, []))[1].append(page.number)
    known = [claim for claim, _ in claims.values()]
    for claim, numbers in claims.values():
        is_same = compare(part.claim, claim).likeness is Likeness.SAME
        if not is_same and any(compare(other, claim).contradicts for other in known):
            yield from numbers
        if expected and compare(expected, claim).contradicts:
            yield from (page.number for page in part.pages)


def _add_strays(part: Part, following: Part, conflicts: set[int], of_following: set[int]) -> None:
    """Add to the conflicts the pages without a patient, between two patients, that may belong to either."""
    is_clear = CutSign.SEPARATOR in following.cut.signs or not following.claim.places
    if is_clear or compare(part.claim, following.claim).likeness is Likeness.SAME:
        return
    named = [place for place, page in enumerate(part.pages) if page.claims]
    if named:
        strays = [page.number for page in part.pages[named[-1] + 1 :] if not page.blank]
        if any(part.loose.get(number, 0.0) > 1 - _LEAST_SURE for number in strays):
            conflicts.update(strays)
    first = next(place for place, page in enumerate(following.pages) if page.claims)
    if following.cut.probability < _LEAST_SURE:
        of_following.update(page.number for page in following.pages[:first] if not page.blank)


def _nameless_before(part: Part) -> list[int]:
    """Return the pages before the first that names the patient, if they may be a separate document."""
    first = next((place for place, page in enumerate(part.pages) if page.claims), 0)
    joins = (part.loose.get(page.number, 0.0) for page in part.pages[1 : first + 1])
    return [page.number for page in part.pages[:first]] if max(joins, default=0.0) > 1 - _LEAST_SURE else []


def _patients(claims: Sequence[Claim | None]) -> list[int | None]:
    """Return a number for each claim's patient; None: unknown, or similar to two patients who may differ."""
    named = {place: claim for place, claim in enumerate(claims) if claim is not None and claim.places}
    same: dict[int, list[int]] = {place: [] for place in named}
    for first, second in combinations_with_replacement(named, 2):
        if likeness_across(named[first], named[second]) is Likeness.SAME:
            same[first].append(second)
            if first != second:
                same[second].append(first)
    numbers: list[int | None] = [None] * len(claims)
    for place, alike in same.items():
        if place in alike and all(other in same[one] for one in alike for other in alike):
            known = next((numbers[other] for other in alike if numbers[other]), None)
            numbers[place] = known or max(filter(None, numbers), default=0) + 1
    return numbers


class _People:
    """All named patients, numbered; those of documents without a conflict come first."""

    def __init__(
        self,
        parts: Sequence[Part],
        conflicts: Sequence[Iterable[int]],
        patients: Sequence[int | None],
        expected: Claim | None,
    ) -> None:
        self._subject = expected
        self.claims = [Claim() for _ in range(max(filter(None, patients), default=0))]
        self.named: dict[int, list[int]] = {}
        self._of_clear: set[int] = set()
        for part, patient in zip(parts, patients, strict=True):
            if patient:
                self.claims[patient - 1].merge(part.claim)
        self._sure = len(self.claims)
        others = _patients(
            [
                part.claim
                if pages and not (self._known_as(part.claim) or self._is_expected(part.claim))
                else None
                for part, pages in zip(parts, conflicts, strict=True)
            ]
        )
        numbers: dict[int, int] = {}  # of the documents in conflict, by who is surely the same
        for part, pages, patient, other in zip(parts, conflicts, patients, others, strict=True):
            if not part.claim.places:
                continue
            own = patient or self._known_as(part.claim) or numbers.get(other or 0) or self._add(part.claim)
            if other:
                numbers[other] = own
            if pages:
                self._name(part, own, set(_contradicting(part, None)))
            else:
                self._of_clear.add(own)
                self.named |= {page.number: [own] for page in part.pages if page.claims}

    def _name(self, part: Part, own: int, apart: Collection[int]) -> None:
        """Record the patients on each page of a document in conflict; pages `apart` may name others than its `own`."""
        strangers: list[tuple[Claim, int]] = []
        for page in part.pages:
            for claim in page.claims:
                number = own
                is_unexpected = self._subject is not None and compare(self._subject, claim).contradicts
                is_apart = page.number in apart and compare(part.claim, claim).likeness is not Likeness.SAME
                if is_unexpected or is_apart:
                    same = (n for known, n in strangers if compare(known, claim).likeness is Likeness.SAME)
                    known_as = None if is_unexpected else self._known_as(claim)
                    number = next(same, 0) or (known_as if known_as != own else None) or self._add(claim)
                    strangers.append((claim, number))
                places = self.claims[number - 1].places
                places += [place for place in claim.places if place not in places]
                self.named.setdefault(page.number, []).append(number)

    def _known_as(self, claim: Claim) -> int | None:
        """Return the only patient without conflict who is surely the same, and expected; None otherwise."""
        if self._subject and not self._is_expected(claim):
            return None
        return only_same(claim, self.claims[: self._sure])

    def _is_expected(self, claim: Claim) -> bool:
        subject = self._subject
        return subject is not None and is_expected(subject, claim) and not compare(subject, claim).contradicts

    def _add(self, claim: Claim) -> int:
        self.claims.append(Claim())
        self.claims[-1].merge(claim)
        return len(self.claims)

    @property
    def expected(self) -> tuple[int, ...] | None:
        """Numbers of the patient that the caller expects; None: no expectation."""
        if self._subject is None:
            return None
        judged = (number for number, claim in enumerate(self.claims, 1) if self._is_expected(claim))
        return tuple(sorted(self._of_clear | set(judged)))


def _document(
    number: int, part: Part, following: Sequence[Part], conflicts: Sequence[int], patient: int | None
) -> DocumentPart:
    kind, probability, words = judge(part.titles, part.evidence)
    pages = tuple(page.number for page in part.pages)
    doubts = []
    if conflicts:
        doubts.append(BundleDoubt(reason=BundleDoubtReason.IDENTITY_CONFLICT, pages=tuple(conflicts)))
    low, high = _DOUBTFUL
    unsure = [page for page, likely in part.loose.items() if likely > low or page in part.untied]
    unsure += [one.cut.page for one in (part, *following) if one.cut.probability < high]
    if unsure:
        doubts.append(BundleDoubt(reason=BundleDoubtReason.CUT, pages=tuple(sorted(unsure))))
    if kind is not DocumentKind.OTHER and probability < SURE_KIND:
        doubts.append(BundleDoubt(reason=BundleDoubtReason.KIND, pages=pages))
    languages = sum((page.languages for page in part.pages), Counter[str]())
    claim = part.claim
    return DocumentPart(
        number=number,
        pages=pages,
        cut=part.cut,
        kind=kind,
        kind_probability=probability,
        kind_words=words,
        title=next((title for page in part.pages for title in page.titles), None),
        date=next((page.date for page in part.pages if page.date), None),
        language=languages.most_common(1)[0][0] if languages else None,
        identity=identity_of(claim) if claim.places else Identity(),
        patient=patient,
        doubts=tuple(doubts),
    )
