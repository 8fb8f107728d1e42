"""A bundle's documents are corrected: as revisions, behind the guard of patients; each that is ready is notified."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import Result

from pecia import (
    AuditAction,
    Bundle,
    Client,
    IdentityConflictError,
    InvalidOptionError,
    Job,
    JobNotFoundError,
    JobNotice,
    ReadBundle,
    ReadDocument,
    SplitChange,
    StaleReviewError,
    Verdict,
)
from pecia_schemas.bundles import Subject
from pecia_schemas.settings import ClientSettings
from tests.shared import bundle_files
from tests.shared.fixture_types import Picture
from tests.shared.gateways import serving
from tests.shared.house import House
from tests.shared.receivers import fan_out_all

pytestmark = pytest.mark.usefixtures("shared_template")


def pages_of(bundle: Bundle) -> list[tuple[int, ...]]:
    return [document.part.pages for document in bundle.documents]


def change(action: str, **what: object) -> SplitChange:
    return SplitChange.model_validate({"action": action, **what})


@pytest.fixture
def read(client: Client, house: House) -> Callable[..., Job[Bundle]]:
    """Has the bundle of three documents read: (1, 2) and (4) of one patient, (3) of another."""

    def run(*, subject: Subject | None = None, **options: Any) -> Job[Bundle]:
        job = client.submit(ReadBundle(bundle_files.three_documents(), subject=subject), **options)
        house.work_off(job)
        return job

    return run


def test_a_correction_is_a_revision(read: Callable[..., Job[Bundle]], client: Client, house: House) -> None:
    job = read()
    first = client.correct(job, change("cut", page=2, reason="a form of its own"), revision=0)
    client.correct(job, change("kind", document=2, kind="consent"), revision=1)

    bundle = job.result()
    assert pages_of(bundle) == [(1,), (2,), (3,), (4,)]
    assert bundle.documents[1].part.kind == "consent"
    assert [page.number for page in bundle.documents[1].pages] == [2]
    assert (bundle.revision, first.revision and first.revision.change.reason) == (2, "a form of its own")
    assert pages_of(job.result(revision=0)) == [(1, 2), (3,), (4,)]
    assert job.result(revision=1).documents[1].part.kind == "lab_result"
    with pytest.raises(StaleReviewError):
        client.correct(job, change("join", page=2), revision=1)
    assert [entry.action for entry in client.audit(job=job)].count(AuditAction.REVISED) == 2
    assert [(event.actor, event.reason) for event in job.events()][-1][1] == "revised"
    assert "a form of its own" not in str(house.query("SELECT reason FROM job_events"))
    client.purge([job])
    assert house.query("SELECT count(*) FROM revisions") == [(0,)]


def test_two_patients_are_put_together_by_a_decision_that_the_result_tells(
    read: Callable[..., Job[Bundle]], client: Client
) -> None:
    job = read()
    with pytest.raises(IdentityConflictError):
        client.correct(job, change("join", page=3))
    assert job.result().revision == 0

    client.correct(job, change("join", page=3, same_patient=True, reason="a name misread"))

    bundle = job.result()
    assert bundle.split
    assert pages_of(bundle) == [(1, 2, 3), (4,)]
    (decision,) = bundle.split.decisions
    *_, event = job.events()
    assert (f"client:{decision.by}", decision.reason) == (event.actor, "a name misread")
    assert not bundle.documents[0].part.has_conflict


def test_a_bundle_of_two_patients_is_not_written_as_one_file(
    read: Callable[..., Job[Bundle]], client: Client, tmp_path: Path, pecia: Callable[..., Result]
) -> None:
    job = read()
    for name in ("all.pdf", "all.txt", "all.hocr"):
        with pytest.raises(IdentityConflictError, match="--by document"):
            job.save(tmp_path / name)
    client.export(tmp_path / "export", format="markdown", kind="bundle.read")  # each document on its own
    texts = [path.read_text() for path in (tmp_path / "export").rglob("*.md")]
    assert len(texts) == sum(not document.part.has_conflict for document in job.result().documents)
    refused = pecia("result", job.id, "-o", tmp_path / "all.md")
    assert isinstance(refused.exception, IdentityConflictError)
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    assert Bundle.model_validate_json(job.save(tmp_path / "all.json").read_text()) == job.result()

    client.correct(job, change("patient", document=2, patient=1, same_patient=True))
    assert job.save(tmp_path / "all.txt").exists()


def test_a_retry_keeps_what_a_person_corrected_and_tells_where_a_page_is_new(
    client: Client, house: House, picture: Picture
) -> None:
    pile = [bundle_files.pdf_of([bundle_files.LAB, bundle_files.LAB_BACK]), picture(2500, 2000)]
    job = client.submit(ReadBundle([*pile, bundle_files.pdf_of([bundle_files.LETTER])]))
    house.work_off(job, max_page_pixels=4_000_000)
    assert pages_of(job.result()) == [(1, 2), (4,)]
    client.correct(job, change("cut", page=2, reason="a form of its own"))
    client.correct(job, change("kind", document=3, kind="consent"))

    job.retry()
    with pytest.raises(InvalidOptionError):
        client.correct(job, change("join", page=2))
    house.work_off(job)

    bundle = job.result()
    assert [page.number for page in bundle.failed] == []
    assert pages_of(bundle) == [(1,), (2, 3), (4,)]
    assert [document.part.kind for document in bundle.documents][2] == "consent"
    assert [doubt.pages for doubt in bundle.documents[1].part.doubts] == [(3,)], (
        "a person looks at the new page"
    )
    assert bundle.split
    assert bundle.split.revision
    assert (bundle.revision, bundle.split.revision.change.action) == (3, "kind")
    assert pages_of(job.result(revision=1)) == [(1,), (2,), (4,)]
    assert pages_of(job.result(revision=0)) == [(1, 2), (4,)]
    assert house.query("SELECT verdict FROM parts WHERE stage = 'split'") == [("review",)]
    joined = client.correct(job, change("join", page=2), revision=3)
    assert joined.documents[0].pages == (1, 2, 3)


def test_no_bundle_has_nothing_to_correct(client: Client, house: House, picture: Picture) -> None:
    page = client.submit(ReadDocument(picture()))
    house.work_off(page)
    for job in (page, client.submit(ReadBundle(picture()))):
        with pytest.raises(InvalidOptionError, match="has no split"):
            client.correct(job, change("accept", document=1))
    with pytest.raises(JobNotFoundError):
        client.correct(UUID(int=1), change("accept", document=1))


def test_a_gateway_corrects_for_keys_that_may_review(read: Callable[..., Job[Bundle]], house: House) -> None:
    job = read()
    house.query("UPDATE jobs SET tenant = 'clinic'")
    with serving(ClientSettings.model_validate(house.urls)) as gateway:
        _, key = gateway.key()
        with Client(gateway.url, api_key=key) as remote:
            with pytest.raises(IdentityConflictError, match="same_patient"):
                remote.correct(job.id, change("join", page=3))
            cut = remote.correct(job.id, change("cut", page=2), revision=0)
            with pytest.raises(StaleReviewError):
                remote.correct(job.id, change("join", page=2), revision=0)
            with pytest.raises(InvalidOptionError):
                remote.correct(job.id, change("cut", page=99))
            assert pages_of(remote.job(job.id, ReadBundle).result()) == [(1,), (2,), (3,), (4,)]
        assert cut == job.result().split
        _, other = gateway.key("elsewhere")
        with Client(gateway.url, api_key=other) as stranger, pytest.raises(JobNotFoundError):
            stranger.correct(job.id, change("accept", document=1))


def test_each_document_is_notified_when_it_is_ready_and_none_in_conflict_before_it_is_accepted(
    read: Callable[..., Job[Bundle]], client: Client, house: House
) -> None:
    endpoint = client.add_endpoint("https://example.org/all", events=["document.ready"])
    name, _, record = bundle_files.MARY

    def notified() -> list[tuple[int, tuple[int, ...], int | None]]:
        fan_out_all(house.database_url)
        bodies = house.query(
            "SELECT body FROM deliveries WHERE endpoint_id = %s ORDER BY created_at, id", endpoint.id
        )
        assert bundle_files.JOHN[0] not in str(bodies)
        assert name not in str(bodies)
        notices = [JobNotice.model_validate(body).data for (body,) in bodies]
        documents = ((one.document, one.revision) for one in notices if one.document)
        return sorted((document.number, document.pages, revision) for document, revision in documents)

    job = read(subject=Subject(name=name, record_numbers=(record,)))
    ready: list[tuple[int, tuple[int, ...], int | None]] = [(1, (1, 2), None), (3, (4,), None)]
    assert notified() == ready

    client.correct(job, change("kind", document=2, kind="letter"))
    assert notified() == ready
    client.correct(job, change("accept", document=2, same_patient=True))
    ready.insert(1, (2, (3,), 2))
    assert notified() == ready
    client.correct(job, change("cut", page=2))
    assert notified() == sorted([*ready, (1, (1,), 3), (2, (2,), 3)])


def test_conflicts_come_first_in_what_waits_for_review(
    read: Callable[..., Job[Bundle]],
    client: Client,
    scribe: Any,
    picture: Picture,
    pecia: Callable[..., Result],
) -> None:
    in_conflict = [read(subject=Subject(name=bundle_files.MARY[0])) for _ in range(2)]
    doubtful = client.submit(ReadDocument(picture()))
    scribe.read(doubtful.id, verdict=Verdict.UNREADABLE)

    found = list(client.pages(page_size=1))
    assert [(one.job_id, one.is_conflict) for one in found] == [
        (in_conflict[1].id, True),
        (in_conflict[0].id, True),
        (doubtful.id, False),
    ]
    assert "identity_conflict" in pecia("list", "--verdict", "review").output
    for number, part in enumerate(in_conflict[1].result().documents, 1):
        if part.part.has_conflict:
            client.correct(in_conflict[1], change("accept", document=number, same_patient=True))
    assert [one.job_id for one in client.pages()] == [in_conflict[0].id, doubtful.id]
