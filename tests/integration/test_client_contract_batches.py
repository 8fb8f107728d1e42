"""What both kinds of client promise of batches: labels, names, filters, counts."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from contract_fleets import client, fleet, gateway, real_fleet
from pecia import (
    BatchNotFoundError,
    Client,
    Document,
    FailureCode,
    InvalidOptionError,
    JobState,
    Lane,
    Page,
    ReadDocument,
    Submission,
    SubmitManyError,
    Verdict,
)

__all__ = ["client", "fleet", "gateway", "real_fleet"]

PDF = b"%PDF-1.7"


def scans(*labels: str, **asked: Any) -> list[Submission[Document]]:
    return [Submission(ReadDocument(PDF), label=label, **asked) for label in labels]


def labels(jobs: Any) -> list[str | None]:
    return [job.label for job in jobs]


def test_jobs_that_are_submitted_together_are_a_batch(client: Client) -> None:
    group = client.submit_many([*scans("a.pdf", "b.pdf"), ReadDocument(PDF)])
    alone = client.submit(ReadDocument(PDF), label="alone.pdf")
    assert group.batch is not None
    assert (alone.batch, alone.label, labels(group)) == (None, "alone.pdf", ["a.pdf", "b.pdf", None])
    assert [job.id for job in client.jobs(batch=group.batch)] == [job.id for job in reversed(group)]
    assert labels(client.jobs(batch=client.batch(str(group.batch)), limit=2)) == [None, "b.pdf"]
    assert client.submit_many([]).batch is None


def test_what_is_asked_for_one_task_is_its_alone(client: Client) -> None:
    asked: list[Any] = [
        Submission(ReadDocument(PDF), metadata={"page": "1"}, priority="urgent", key="visit-1"),
        ReadDocument(PDF),
        Submission(ReadDocument(PDF), metadata={"ward": "9"}),
    ]
    one, two, three = client.submit_many(
        asked, metadata={"ward": "7"}, priority="bulk", idempotency_prefix="visits"
    )
    assert [job.lane for job in (one, two, three)] == [Lane.URGENT, Lane.BULK, Lane.BULK]
    assert [job.metadata for job in (one, two, three)] == [
        {"ward": "7", "page": "1"},
        {"ward": "7"},
        {"ward": "9"},
    ]
    again = client.submit(ReadDocument(PDF), priority="urgent", idempotency_key="visit-1", label="another")
    assert (again.id, again.created, again.label) == (one.id, False, None)


def test_a_submission_that_cannot_be_meant_leaves_the_others_alone(client: Client) -> None:
    wrong: list[Any] = [
        Submission(ReadDocument(PDF), label="x" * 1_001),
        Submission(ReadDocument(PDF), metadata={"": "x"}),
        Submission(ReadDocument(PDF), priority="now"),  # type: ignore[arg-type]
    ]
    with pytest.raises(SubmitManyError) as refused:
        client.submit_many([*wrong, *scans("good.pdf")])
    assert labels(refused.value.accepted) == ["good.pdf"]
    assert {number: type(error) for number, error in refused.value.failures.items()} == dict.fromkeys(
        range(3), InvalidOptionError
    )


def test_a_batch_is_found_by_name_by_id_and_by_how_that_begins(client: Client) -> None:
    group = client.submit_many(scans("a.pdf"), batch="ward-7")
    client.submit_many(scans("b.pdf"), batch="ward-7")
    client.submit_many(scans("c.pdf"), batch=str(group.batch))
    batch = client.batch("ward-7")
    assert (batch.id, batch.name) == (group.batch, "ward-7")
    assert isinstance(batch.created_at, datetime)
    for reference in (batch, batch.id, "ward-7", str(batch.id), str(batch.id)[:30]):
        assert labels(client.jobs(batch=reference)) == ["c.pdf", "b.pdf", "a.pdf"]
    other = client.submit_many(scans("d.pdf"))
    assert str(other.batch)[:4] == str(batch.id)[:4]
    for missing in ("ward-8", str(batch.id)[:4], str(UUID(int=7))):
        with pytest.raises(BatchNotFoundError, match=missing):
            client.batch(missing)
    for wrong in ("", "ward 7", "-7", "a/b", "x" * 101):
        with pytest.raises(InvalidOptionError):
            client.submit_many(scans("a.pdf"), batch=wrong)
    with pytest.raises(BatchNotFoundError):
        client.submit_many(scans("a.pdf"), batch=str(UUID(int=7)))


def test_jobs_of_a_batch_are_filtered_and_counted(fleet: Any, client: Client) -> None:
    def page(verdict: Verdict) -> Document:
        return Document(pages=(Page(number=1, verdict=verdict, width=10, height=20, engine="e"),))

    group = client.submit_many(
        scans("a.pdf", "b.pdf", "c.pdf", "d.pdf", metadata={"half": "one"}) + scans("e.pdf"), batch="week"
    )
    client.submit_many(scans("other.pdf"))
    fleet.answers(ReadDocument, page(Verdict.OK))
    fleet.finish(group[0])
    fleet.answers(ReadDocument, page(Verdict.REVIEW))
    fleet.finish(group[1])
    fleet.fails(ReadDocument, FailureCode.DAMAGED)
    fleet.finish(group[2])
    group[3].cancel()

    assert labels(client.jobs(batch="week", state="succeeded")) == ["b.pdf", "a.pdf"]
    assert labels(client.jobs(batch="week", verdict="review")) == ["b.pdf"]
    assert labels(client.jobs(verdict=["review", "ok"], limit=1)) == ["b.pdf"]
    assert labels(client.jobs(batch="week", state=["failed", "cancelled"], metadata={"half": "one"})) == [
        "d.pdf",
        "c.pdf",
    ]
    assert [one.job_id for one in client.pages(batch="week")] == [group[1].id]
    assert list(client.pages(batch="week", state="failed")) == []

    counts = client.counts(batch="week")
    states = {JobState.SUCCEEDED: 2, JobState.FAILED: 1, JobState.CANCELLED: 1, JobState.QUEUED: 1}
    assert (counts.states, counts.jobs, counts.open) == (states, 5, 1)
    assert (counts.done, counts.uncut, counts.failures) == (2, 1, {FailureCode.DAMAGED: 1})
    assert client.counts(batch="week", state="succeeded", verdict="ok").jobs == 1


def test_a_job_is_found_by_how_its_id_begins_if_no_other_does(client: Client) -> None:
    one, two = client.submit_many(scans("a.pdf", "b.pdf"))
    shared = next(n for n in range(36) if str(one.id)[n] != str(two.id)[n])
    assert client.job(str(one.id)[: shared + 1]).id == one.id
    assert client.job(str(one.id).replace("-", "")).id == one.id
    for begins in (str(one.id)[: max(4, shared)], "ffff"):
        with pytest.raises(InvalidOptionError, match=begins):
            client.job(begins)


def test_a_purge_takes_labels_and_the_batch_that_is_empty_then(client: Client) -> None:
    kept, erased = client.submit_many(scans("kept.pdf", "erased.pdf"), batch="ward-7")
    client.purge([erased])
    assert (erased.refresh().label, erased.batch) == (None, None)
    assert labels(client.jobs(batch="ward-7")) == ["kept.pdf"]
    client.purge([kept])
    with pytest.raises(BatchNotFoundError):
        client.batch("ward-7")
    assert list(client.jobs(since=timedelta(hours=1), state="queued")) == []
