"""A bundle's pages become documents, and no document holds two patients unseen."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence

import pytest

from pecia.review.splits import corrected
from pecia_schemas.blocks import Block, BlockKind, Box, Line, Source
from pecia_schemas.bundles import (
    BundleDoubtReason,
    CutSign,
    DocumentKind,
    Identity,
    IdentitySign,
    Likeness,
    Split,
    SplitChange,
    Subject,
)
from pecia_schemas.identities import claim_of, compare
from pecia_schemas.results import Page, Verdict
from pecia_workers.bundles.mentions import claims_of, pieces_of
from pecia_workers.bundles.splitting import split
from pecia_workers.bundles.stage import with_new_pages
from tests.shared.drawn_bundles import drawn_bundle

BIRTH, OTHER_BIRTH, NEAR_BIRTH = dt.date(1961, 3, 12), dt.date(1984, 11, 30), dt.date(1967, 3, 12)
ANNA = "Name: Anna Meyer  DOB: 12.03.1961  MRN: 1234567"
HEAD = "St. Mary Hospital, Tel. 020 7946 0123"


def page_of(number: int, *texts: str, codes: Sequence[str] = ()) -> Page:
    lines = tuple(
        Line(text=text, box=Box(left=80, top=80 + 40 * row, right=80 + 11 * len(text), bottom=104 + 40 * row))
        for row, text in enumerate(texts)
    )
    text = Block(kind=BlockKind.TEXT, text="\n".join(texts), lines=lines, source=Source.OCR)
    barcodes = (Block(kind=BlockKind.BARCODE, text=code, source=Source.OCR) for code in codes)
    blocks = ((text,) if texts else ()) + tuple(barcodes)
    verdict = Verdict.OK if blocks else Verdict.BLANK
    return Page(
        number=number,
        blocks=blocks,
        verdict=verdict,
        width=1240,
        height=1754,
        engine="drawn",
        blank=not blocks,
    )


def split_of(*pages: Sequence[str], subject: Subject | None = None) -> Split:
    return split((page_of(number, *texts) for number, texts in enumerate(pages, 1)), subject=subject)


def pages_of(bundle: Split) -> list[tuple[int, ...]]:
    return [document.pages for document in bundle.documents]


def person(name: str | None = None, birth: dt.date | None = None, *records: str) -> Identity:
    return Identity(name=name, birth_date=birth, record_numbers=records)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (person("Anna Meyer", BIRTH), person("Meyer, Anna", BIRTH), Likeness.SAME),
        (person("Jürgen Müller", BIRTH), person("Juergen Mueller", BIRTH), Likeness.SAME),
        (person("Anna Meyer", None, "123456"), person("A. Meyer", None, "123456"), Likeness.SAME),
        (person("Anna Meyer", BIRTH, "123456"), person("Anna Mever", BIRTH, "123456"), Likeness.SAME),
        (person("김민수", BIRTH), person("Kim Min-su", BIRTH), Likeness.SAME),
        (person("Anna Meyer", BIRTH), person("Anna Meyer", NEAR_BIRTH), Likeness.UNKNOWN),
        (person("Anna Meyer"), person("Anna Meyer"), Likeness.UNKNOWN),
        (person(None, BIRTH), person(None, BIRTH), Likeness.UNKNOWN),
        (person(None, None, "123456"), person(None, None, "123456"), Likeness.UNKNOWN),
        (person("Anna Meyer", BIRTH), person("Anne Meyer", BIRTH), Likeness.UNKNOWN),
        (person("김민수", BIRTH), person("김민서", BIRTH), Likeness.UNKNOWN),
        (person("Anna Meyer", BIRTH, "123456"), person("Anna Meyer", BIRTH, "987654"), Likeness.UNKNOWN),
        (person("Anna Meyer", BIRTH, "123456"), person("Peter Koch", BIRTH, "123456"), Likeness.UNKNOWN),
        (person("Anna Meyer", BIRTH, "123456"), person("Anne Meyer", BIRTH, "987654"), Likeness.DIFFERENT),
        (person("Anna Meyer", BIRTH), person("Anne Meyer", OTHER_BIRTH), Likeness.DIFFERENT),
        (person("Peter Meyer", BIRTH), person("Peter Meyer", OTHER_BIRTH), Likeness.DIFFERENT),
        (person("Anna Meyer", BIRTH), person("Peter Koch", BIRTH), Likeness.DIFFERENT),
        (person(), person("Anna Meyer", BIRTH, "123456"), Likeness.UNKNOWN),
    ],
)
def test_identities_are_compared_as_people_do(one: Identity, other: Identity, expected: Likeness) -> None:
    claims = claim_of(one), claim_of(other)
    assert compare(*claims).likeness is compare(*reversed(claims)).likeness is expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Meyer, Anna  *12.03.1961"], ("Meyer, Anna", BIRTH, ())),
        (["Patient: Anna Ward, born 12.03.1961"], ("Anna Ward", BIRTH, ())),
        (["Re: Mrs Ward, Anna, born 12.03.1961"], ("Ward, Anna", BIRTH, ())),
        (["Patient Name", "Anna Meyer", "D.O.B.", "1961-03-12"], ("Anna Meyer", BIRTH, ())),
        (["We report on your patient Mrs Anna Meyer, born on 12 March 1961, who"], ("Anna Meyer", BIRTH, ())),
        (["Nachname: Meyer", "Vorname: Anna", "geb. am 12.03.61"], ("Anna Meyer", BIRTH, ())),
        (["성명: 김민수   생년월일: 1961년 3월 12일  등록번호: 00123456"], ("김민수", BIRTH, ("00123456",))),
        (["Anna Meyer | MRN 1234567 | Page 2 of 3"], ("Anna Meyer", None, ("1234567",))),
        (
            [ANNA, "Referring physician: Dr. John Miller", "Mother: Eva Meyer, born 01.02.1935"],
            ("Anna Meyer", BIRTH, ("1234567",)),
        ),
        (
            [ANNA, "Emergency contact", "Name: Peter Meyer", "Phone: 0171 2345678"],
            ("Anna Meyer", BIRTH, ("1234567",)),
        ),
        (
            [ANNA, "Her twin sister", "Anne Meyer, born 12.03.1961, is well"],
            ("Anna Meyer", BIRTH, ("1234567",)),
        ),
        (["환자 성명 김민수 (남)", "보호자 성명: 김철수", "담당의사: 이영희"], ("김민수", None, ())),
        (["Physician", "Name: Eva Braun", "Hospital name: St. Mary", "Tel: 030 1234567"], (None, None, ())),
        (["Patient denies chest pain", "The patient was admitted on 12.03.2024"], (None, None, ())),
        (["Case No.: 99887766", "Invoice no. 4455667"], (None, None, ())),
    ],
)
def test_the_patient_is_found_and_nobody_else(
    texts: Sequence[str], expected: tuple[str | None, dt.date | None, tuple[str, ...]]
) -> None:
    (document,) = split_of(texts).documents

    identity = document.identity
    assert (identity.name, identity.birth_date, identity.record_numbers) == expected
    assert not document.has_conflict


def test_a_sign_of_identity_has_the_box_of_its_words() -> None:
    page = page_of(1, HEAD, "Name: Anna Meyer  DOB: 12.03.1961")

    (claim,) = claims_of(page, pieces_of(page))

    name = next(place for place in claim.places if place.sign is IdentitySign.NAME)
    assert name.text == "Anna Meyer"
    assert name.box is not None
    assert 130 < name.box.left < name.box.right < 270


def test_a_page_of_another_patient_is_cut_off_or_told() -> None:
    bundle = split_of(
        [HEAD, "Progress Notes", ANNA, "Page 1 of 2"],
        [HEAD, "Name: Anne Meyer  DOB: 12.03.1961", "Page 2 of 2"],
    )

    assert len(bundle.documents) == 2 or bundle.documents[0].has_conflict


def test_two_patients_on_one_page_are_a_conflict() -> None:
    (document,) = split_of(
        [HEAD, "Invoice", ANNA, "Name: Peter Koch  DOB: 30.11.1984  MRN: 7654321"]
    ).documents

    assert document.has_conflict


def test_a_document_of_another_than_the_subject_is_a_conflict() -> None:
    subject = Subject(name="Anna Meyer", birth_date=BIRTH)
    pages = (
        [HEAD, "Invoice", ANNA],
        ["푸른내과의원 전화 02-1", "진단서", "성명: 김민수  생년월일: 1984-11-30"],
    )

    one, other = split_of(*pages, subject=subject).documents

    assert not one.has_conflict
    assert other.has_conflict


@pytest.mark.parametrize(
    ("subject", "refused"),
    [
        (Subject(name="Anna Meyer"), False),
        (Subject(birth_date=BIRTH), False),
        (Subject(name="Peter Koch"), True),
        (Subject(name="Anna Meyer", birth_date=dt.date(1984, 11, 30)), True),
    ],
)
def test_a_subject_of_one_sign_is_met_by_that_sign(subject: Subject, refused: bool) -> None:
    (document,) = split_of([HEAD, "Invoice", ANNA], subject=subject).documents

    assert document.has_conflict is refused


def test_a_document_that_names_nobody_is_not_the_subjects() -> None:
    (document,) = split_of([HEAD, "Invoice"], subject=Subject(name="Anna Meyer", birth_date=BIRTH)).documents

    assert document.has_conflict


@pytest.mark.parametrize("sheet", [["Trennblatt"], ["*** SEPARATOR ***"], ["PATCH T"]])
def test_a_separator_sheet_is_in_no_document(sheet: Sequence[str]) -> None:
    bundle = split_of(["Notes", "and so on"], sheet, [], ["more", "text"])

    assert pages_of(bundle) == [(1,), (4,)]
    assert bundle.separators == (2, 3)
    assert bundle.documents[1].cut.signs == (CutSign.SEPARATOR,)


def test_a_label_that_separates_stays_with_the_document_that_it_is_on() -> None:
    labelled = page_of(
        2, *["Progress Notes and much more text than on a sheet of its own"] * 3, codes=["PECIA-SEPARATOR"]
    )

    bundle = split([page_of(1, "Invoice", ANNA), labelled])

    assert pages_of(bundle) == [(1,), (2,)]
    assert not bundle.separators


def test_a_blank_back_and_a_page_without_a_name_go_with_their_document() -> None:
    first = [HEAD, "Progress Notes", ANNA, "08:15 BP 120/80", "Page 1 of 2"]

    assert pages_of(split_of(first, [], ["and slept well", "Page 2 of 2"], [])) == [(1, 2, 3, 4)]


def test_a_date_is_that_of_the_document() -> None:
    texts = [
        HEAD,
        "Discharge Letter",
        ANNA,
        "Printed: 01.01.2025",
        "The report of 03.02.2019 was seen",
        "Date: 04.05.2024",
    ]
    (document,) = split_of(texts).documents

    assert document.date == dt.date(2024, 5, 4)
    assert (document.kind, document.title, document.language) == (
        DocumentKind.LETTER,
        "Discharge Letter",
        "en",
    )


def test_nothing_comes_of_nothing() -> None:
    assert split([]) == Split(documents=())
    assert pages_of(split_of([], [])) == [(1, 2)]


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 1100), marks=pytest.mark.gate)], ids=["100", "1000"]
)
def test_drawn_bundles_are_split_as_they_were_made(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        bundle = drawn_bundle(seed)
        result = split(iter(bundle.pages))
        truth = {document.pages[0]: document for document in bundle.documents}
        patients = {number: document.patient for document in bundle.documents for number in document.pages}
        cuts = {document.pages[0] for document in result.documents}
        visible = [page for page, document in truth.items() if document.tells and page != min(truth)]
        inner = [page for document in bundle.documents for page in document.pages[1:]]
        counts.update(boundaries=len(visible), recalled=len(cuts.intersection(visible)))
        counts.update(inner=len(inner), false_cuts=len(cuts.intersection(inner)))
        for document in result.documents:
            mixed = len({patients[page] for page in document.pages if page in patients}) > 1
            counts.update(documents=1, untold=mixed and not document.has_conflict)
            counts.update(false_conflicts=document.has_conflict and not mixed)
            if document.pages[0] in truth:
                counts.update(kinds=1, right_kinds=document.kind is truth[document.pages[0]].kind)
        assert list(result.separators) == bundle.separators
        numbered: dict[
            int, set[tuple[str, str, dt.date]]
        ] = {}  # who share all that is printed, nobody tells apart
        for document in result.documents:
            if document.patient is not None:
                persons = [patients[page] for page in document.pages if page in patients]
                of_pages = {(person.family, person.given, person.birth) for person in persons}
                numbered.setdefault(document.patient, set()).update(of_pages)
        for sign in result.page_signs:
            for number in sign.patients:
                person = patients[sign.number]
                numbered.setdefault(number, set()).add((person.family, person.given, person.birth))
        assert all(len(found) == 1 for found in numbered.values())

    assert counts["untold"] == 0
    assert counts["recalled"] >= 0.99 * counts["boundaries"]
    assert counts["false_cuts"] <= 0.005 * counts["inner"]
    assert counts["right_kinds"] >= 0.97 * counts["kinds"]
    assert counts["false_conflicts"] <= 0.01 * counts["documents"]


WORDS = ["the risks were explained", "and the dose was left unchanged"]


@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        (["Page 1 of 2"], {BundleDoubtReason.IDENTITY_CONFLICT}),
        (["Dear Dr. Ward,"], {BundleDoubtReason.IDENTITY_CONFLICT}),
        (["further notes"], {BundleDoubtReason.CUT}),
        ([HEAD], set()),
    ],
)
def test_a_page_that_names_nobody_and_is_not_tied_to_its_document_is_told(
    more: Sequence[str], reasons: set[BundleDoubtReason]
) -> None:
    first, following = [HEAD, "Consent Form", ANNA, *WORDS], [*WORDS, *more]
    if more == [HEAD]:
        following.reverse()

    documents = split_of(first, following).documents

    assert len(documents) == 1
    assert {doubt.reason for doubt in documents[0].doubts} - {BundleDoubtReason.KIND} == reasons


def test_a_cut_in_doubt_is_told() -> None:
    bundle = split_of([HEAD, "Consent Form", ANNA], ["Riverside Medical Centre, Tel. 1", "some other text"])

    cuts = [document.cut.probability for document in bundle.documents[1:]]
    doubts = [doubt.reason for document in bundle.documents for doubt in document.doubts]
    assert all(cut > 0.9 for cut in cuts) or BundleDoubtReason.CUT in doubts


def read_anew(kept: Split, *sheets: Sequence[str], subject: Subject | None = None) -> Split:
    """Return what stands of a corrected split once all of these pages are there."""
    return with_new_pages(kept, split_of(*sheets, subject=subject))


def by_person(bundle: Split, *changes: dict[str, object]) -> Split:
    for number, change in enumerate(changes, 1):
        made = SplitChange.model_validate(change)
        bundle = corrected(bundle, made, number=number, by="eva", at=dt.datetime(2026, 11, 27, tzinfo=dt.UTC))
    return bundle


PETER = "Name: Peter Koch  DOB: 30.11.1984  MRN: 7654321"
FORMER = "Name: Anna Braun  DOB: 12.03.1961  MRN: 5550001"


@pytest.mark.parametrize(
    ("lost", "expected", "conflicts", "unsure"),
    [
        ([HEAD, "Discharge letter", ANNA, "Page 2 of 3"], [(1, 2), (3,), (4,)], [], [(2,)]),
        ([HEAD, "Discharge letter", PETER, "Page 2 of 3"], [(1, 2), (3,), (4,)], [(2,)], [(2,)]),
        ([HEAD, "Prescription", PETER, "Page 1 of 1"], [(1,), (2,), (3,), (4,)], [], [(3,)]),
        (["Trennblatt"], [(1,), (3,), (4,)], [], []),
        ([HEAD, "and so on, with nobody's name"], [(1, 2), (3,), (4,)], [], [(2,)]),
    ],
)
def test_corrections_stand_when_a_page_comes_later(
    lost: Sequence[str],
    expected: list[tuple[int, ...]],
    conflicts: list[tuple[int, ...]],
    unsure: list[tuple[int, ...]],
) -> None:
    first, last = [HEAD, "Discharge letter", ANNA, "Page 1 of 3"], [HEAD, ANNA, "Page 3 of 3"]
    sheets = [first, lost, last, [HEAD, "Invoice", FORMER, "Page 1 of 1"]]
    before = split([page_of(number, *sheets[number - 1]) for number in (1, 3, 4)])
    kept = by_person(
        before,
        {"action": "cut", "page": 3},
        {"action": "kind", "document": 1, "kind": "consent"},
        {"action": "patient", "document": 3, "patient": 1, "same_patient": True, "reason": "married"},
    )
    assert pages_of(kept) == [(1,), (3,), (4,)]

    anew = read_anew(kept, *sheets)

    assert pages_of(anew) == expected
    assert anew.documents[0].kind is DocumentKind.CONSENT
    assert (anew.documents[-1].patient, anew.decisions, anew.revision) == (1, kept.decisions, kept.revision)
    reasons = [(doubt.reason, doubt.pages) for one in anew.documents for doubt in one.doubts]
    assert [pages for reason, pages in reasons if reason == "identity_conflict"] == conflicts
    assert [pages for reason, pages in reasons if reason == "cut"] == unsure
    assert sorted(page.number for page in anew.page_signs) == [1, 2, 3, 4]
    assert all(one.number == place for place, one in enumerate(anew.documents, 1))
    assert all(one.pages[0] == one.cut.page for one in anew.documents)


def test_a_new_page_that_names_whom_a_person_took_for_the_patient_is_in_conflict_still() -> None:
    kept = by_person(
        split([page_of(1, HEAD, "Invoice", ANNA), page_of(2, HEAD, "Invoice", FORMER, "Page 1 of 2")]),
        {"action": "patient", "document": 2, "patient": 1, "same_patient": True},
    )
    anew = read_anew(
        kept, [HEAD, "Invoice", ANNA], [HEAD, "Invoice", FORMER, "Page 1 of 2"], [HEAD, FORMER, "Page 2 of 2"]
    )
    assert pages_of(anew) == [(1,), (2, 3)]
    assert [part.has_conflict for part in anew.documents] == [False, True]
    assert anew.documents[1].patient is None


def test_a_new_separator_sheet_within_a_person_s_document_is_a_doubt() -> None:
    first, last = [HEAD, "Discharge letter", ANNA], [HEAD, "Invoice", ANNA]
    kept = by_person(split([page_of(1, *first), page_of(3, *last)]), {"action": "join", "page": 3})
    anew = read_anew(kept, first, ["Trennblatt"], last)
    assert (pages_of(anew), anew.separators) == ([(1, 3)], (2,))
    assert [doubt.pages for doubt in anew.documents[0].doubts] == [(3,)]
