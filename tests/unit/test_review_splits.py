"""Corrections of a bundle's documents: no page is lost, and two patients become one only by a recorded decision."""

import datetime as dt
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecia.errors import IdentityConflictError, InvalidOptionError
from pecia.review.splits import corrected
from pecia_schemas.bundles import (
    BundleDoubtReason,
    CutSign,
    DocumentKind,
    Split,
    SplitAction,
    SplitChange,
    Subject,
)
from pecia_workers.bundles.splitting import split
from tests.unit.test_bundles import HEAD, page_of, pages_of

NOW = dt.datetime(2026, 11, 27, tzinfo=dt.UTC)
PEOPLE = ("Name: Anna Meyer  DOB: 12.03.1961", "Name: Peter Koch  DOB: 30.11.1984", "")
ANNA, PETER, NOBODY = PEOPLE


def bundle_of(*people: str, heads: Sequence[bool] = (), subject: Subject | None = None) -> Split:
    """Return the split of pages, each with the line that names its patient; each begins a document unless `heads`."""
    pages = []
    for number, (person, begins) in enumerate(zip(people, heads or [True] * len(people), strict=True), 1):
        top = [HEAD, "Discharge letter", "Page 1 of 1"] if begins else ["and so on, in the middle of a"]
        pages.append(page_of(number, *top, *filter(None, [person]), "sentence without a sign."))
    return split(pages, subject=subject)


def change(action: SplitAction | str, **what: object) -> SplitChange:
    return SplitChange.model_validate({"action": action, **what})


def after(bundle: Split, *changes: SplitChange) -> Split:
    for one in changes:
        number = bundle.revision.number + 1 if bundle.revision else 1
        bundle = corrected(bundle, one, number=number, by="eva", at=NOW)
    return bundle


changes = st.builds(
    SplitChange,
    action=st.sampled_from(SplitAction),
    page=st.integers(0, 7),
    document=st.integers(0, 7),
    kind=st.sampled_from(DocumentKind),
    patient=st.none() | st.integers(0, 5),
    identity=st.none() | st.just(Subject(name="Eva Braun")),
    same_patient=st.booleans(),
)


@given(
    people=st.lists(st.tuples(st.sampled_from(PEOPLE), st.booleans()), min_size=1, max_size=6),
    subject=st.sampled_from([None, Subject(name="Anna Meyer", birth_date=dt.date(1961, 3, 12))]),
    story=st.lists(changes, max_size=8),
)
def test_no_story_loses_a_page_or_merges_two_patients_without_a_decision(
    people: list[tuple[str, bool]], subject: Subject | None, story: list[SplitChange]
) -> None:
    lines, heads = zip(*people, strict=True)
    read = bundle = bundle_of(*lines, heads=heads, subject=subject)
    named = {page.number: {*page.patients} for page in read.page_signs}
    for one in story:
        try:
            bundle = after(bundle, one)
        except (IdentityConflictError, InvalidOptionError):
            continue
        numbers = [page for part in bundle.documents for page in part.pages]
        assert sorted([*numbers, *bundle.separators]) == list(range(1, len(people) + 1))
        assert [part.number for part in bundle.documents] == [*range(1, len(bundle.documents) + 1)]
        assert Split.model_validate_json(bundle.stored_json()) == bundle
        decided_pages = {page for decision in bundle.decisions for page in decision.pages}
        for part in bundle.documents:
            undecided = {patient for page in {*part.pages} - {*decided_pages} for patient in named[page]}
            decided = {
                one.patient for one in bundle.decisions if one.patient and {*part.pages} & {*one.pages}
            }
            assert part.has_conflict or len(undecided) <= 1
            assert part.has_conflict or not undecided or undecided <= (decided or undecided)
            assert part.cut.page == part.pages[0]


def test_a_cut_and_a_join_are_each_other_s_opposite() -> None:
    read = bundle_of(ANNA, ANNA, ANNA, heads=[True, False, False])
    assert pages_of(read) == [(1, 2, 3)]

    cut = after(read, change("cut", page=2, reason="another form"))
    joined = after(cut, change("join", page=2))

    assert pages_of(cut) == [(1,), (2, 3)]
    assert (cut.documents[1].cut.probability, cut.documents[1].cut.signs) == (1, (CutSign.PERSON,))
    assert [part.patient for part in cut.documents] == [1, 1]
    assert {place.page for place in cut.documents[1].identity.places} == {2, 3}
    assert cut.revision
    assert (cut.revision.number, cut.revision.by, cut.revision.at, cut.revision.change.reason) == (
        1,
        "eva",
        NOW,
        "another form",
    )
    assert pages_of(joined) == [(1, 2, 3)]


@pytest.mark.parametrize("merging", [change("join", page=2), change("move", page=2, document=1)])
def test_two_patients_become_one_document_by_a_recorded_decision_alone(merging: SplitChange) -> None:
    read = bundle_of(ANNA, PETER)
    with pytest.raises(IdentityConflictError, match="same_patient"):
        after(read, merging)

    decided = after(read, merging.model_copy(update={"same_patient": True, "reason": "married"}))

    (document,) = decided.documents
    assert (document.pages, document.patient, document.has_conflict) == ((1, 2), 1, False)
    assert document.identity.name == "Anna Meyer"
    (decision,) = decided.decisions
    assert (decision.by, decision.at, decision.reason, decision.pages, decision.patient) == (
        "eva",
        NOW,
        "married",
        (1, 2),
        1,
    )
    apart = after(decided, change("cut", page=2))
    assert [part.patient for part in apart.documents] == [1, 1], "the decision stays"


def test_a_page_that_names_nobody_goes_to_the_neighbouring_document() -> None:
    read = bundle_of(ANNA, NOBODY, PETER, heads=[True, False, True])
    assert pages_of(read) == [(1, 2), (3,)]

    moved = after(read, change("move", page=2, document=2))

    assert pages_of(moved) == [(1,), (2, 3)]
    assert [part.identity.name for part in moved.documents] == ["Anna Meyer", "Peter Koch"]
    assert not moved.decisions


def test_a_missed_cut_is_made_and_the_conflict_goes() -> None:
    read = split([page_of(1, HEAD, ANNA, PETER), page_of(2, "goes on", ANNA, "in the middle")])
    assert read.documents[0].has_conflict

    cut = after(read, change("cut", page=2))

    assert [part.has_conflict for part in cut.documents] == [True, False]
    with pytest.raises(IdentityConflictError):
        after(cut, change("accept", document=1))
    accepted = after(cut, change("accept", document=1, same_patient=True))
    assert not accepted.needs_review
    assert accepted.decisions[0].pages == (1,)


def test_kind_and_patient_are_set() -> None:
    read = bundle_of(ANNA, NOBODY, PETER)
    assert [part.patient for part in read.documents] == [1, None, 2]

    done = after(read, change("kind", document=2, kind="consent"), change("patient", document=2, patient=2))

    document = done.documents[1]
    assert (document.kind, document.kind_probability, document.patient) == (DocumentKind.CONSENT, 1, 2)
    assert (document.identity.name, document.identity.places) == ("Peter Koch", ())
    assert done.decisions[0].pages == (2,)
    with pytest.raises(IdentityConflictError):
        after(done, change("join", page=2))
    for other in (
        change("patient", document=1, patient=2),
        change("patient", document=1, identity={"name": "A"}),
    ):
        with pytest.raises(IdentityConflictError):
            after(done, other)
    named = after(read, change("patient", document=2, identity={"name": "Eva Braun"}))
    assert (named.documents[1].identity.name, named.documents[1].patient) == ("Eva Braun", 3)


TYPED = {"name": "Meyer, Anna", "birth_date": "1961-03-12"}


def test_a_patient_who_is_typed_in_is_compared_with_those_on_the_pages() -> None:
    read = bundle_of(ANNA, NOBODY, PETER)

    same = after(
        read, change("patient", document=1, identity=TYPED), change("patient", document=2, identity=TYPED)
    )
    assert [part.patient for part in same.documents] == [1, 1, 2]
    assert len(same.patients) == 2

    for misread in (
        {"name": "Anna Meyer"},
        TYPED | {"birth_date": "1961-03-13"},
        TYPED | {"name": "Anne Meyer"},
    ):
        typed = change("patient", document=1, identity=misread)
        with pytest.raises(IdentityConflictError):
            after(read, typed)
        decided = after(read, typed.model_copy(update={"same_patient": True}))
        assert (decided.documents[0].patient, len(decided.decisions)) == (3, 1)
    with pytest.raises(IdentityConflictError):
        after(read, change("patient", document=3, identity=TYPED))


def test_the_expected_patient_may_be_typed_in() -> None:
    subject = Subject(name="Anna Meyer", birth_date=dt.date(1961, 3, 12))
    read = bundle_of(ANNA, NOBODY, subject=subject)
    assert [part.has_conflict for part in read.documents] == [False, True]
    named = after(read, change("patient", document=2, identity=TYPED, same_patient=True))
    assert [(part.patient, part.has_conflict) for part in named.documents] == [(1, False), (1, False)]


def test_a_document_of_another_than_the_expected_patient_is_accepted_by_decision_alone() -> None:
    subject = Subject(name="Anna Meyer", birth_date=dt.date(1961, 3, 12))
    read = bundle_of(ANNA, PETER, PETER, subject=subject)
    assert [part.has_conflict for part in read.documents] == [False, True, True]

    accepted = after(read, change("accept", document=2, same_patient=True))

    assert [part.has_conflict for part in accepted.documents] == [False, False, True]
    third = after(accepted, change("join", page=3, same_patient=True))
    assert [part.has_conflict for part in third.documents] == [False, False]
    assert len(third.decisions) == 2


def test_what_is_in_doubt_goes_once_a_person_has_settled_it() -> None:
    read = bundle_of(ANNA, NOBODY, heads=[True, False]).model_copy()
    document = read.documents[0]
    doubts = [{"reason": "cut", "pages": [2]}, {"reason": "kind", "pages": [1, 2]}]
    doubted = Split.model_validate(
        read.model_dump() | {"documents": [document.model_dump() | {"doubts": doubts}]}
    )

    assert after(doubted, change("cut", page=2)).documents[0].doubts[0].reason is BundleDoubtReason.KIND
    assert not after(doubted, change("accept", document=1)).needs_review


@pytest.mark.parametrize(
    "meaningless",
    [
        change("cut", page=1),
        change("cut"),
        change("cut", page=9),
        change("join", page=1),
        change("join", page=2),
        change("move", page=1, document=1),
        change("move", page=1, document=9),
        change("kind", document=1),
        change("patient", document=1),
        change("patient", document=1, identity={"name": " "}),
        change("patient", document=1, patient=9),
        change("accept"),
    ],
)
def test_what_cannot_be_meant_changes_nothing(meaningless: SplitChange) -> None:
    with pytest.raises(InvalidOptionError):
        after(bundle_of(ANNA, NOBODY, heads=[True, False]), meaningless)
