"""What both kinds of client promise of batches: labels, names, filters, counts, exports."""

import hashlib
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyarrow import parquet

from pecia import (
    Client,
    Document,
    FailureCode,
    JobState,
    Lane,
    ReadDocument,
    Submission,
    Verdict,
    errors,
    exporting,
)
from pecia.formats import render
from tests.shared.contract_fleets import client, fleet, gateway, real_fleet
from tests.shared.samples import page

__all__ = ["client", "fleet", "gateway", "real_fleet"]

PDF = b"%PDF-1.7"


def scans(*labels: str, **asked: Any) -> list[Submission[Document]]:
    return [Submission(ReadDocument(PDF), label=label, **asked) for label in labels]


def labels(jobs: Any) -> list[str | None]:
    return [job.label for job in jobs]


def test_jobs_that_are_submitted_together_are_a_batch(client: Client) -> None:
    tasks: list[Any] = [*scans("a.pdf", "b.pdf"), ReadDocument(PDF)]
    group = client.submit_many(tasks)
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
    with pytest.raises(errors.SubmitManyError) as refused:
        client.submit_many([*wrong, *scans("good.pdf")])
    assert labels(refused.value.accepted) == ["good.pdf"]
    assert {number: type(error) for number, error in refused.value.failures.items()} == dict.fromkeys(
        range(3), errors.InvalidOptionError
    )


def test_a_batch_is_found_by_its_name_and_by_its_id(client: Client) -> None:
    group = client.submit_many(scans("a.pdf"), batch="ward-7")
    client.submit_many(scans("b.pdf"), batch="ward-7")
    client.submit_many(scans("c.pdf"), batch=str(group.batch))
    batch = client.batch("ward-7")
    assert (batch.id, batch.name) == (group.batch, "ward-7")
    assert isinstance(batch.created_at, datetime)
    for reference in (batch, batch.id, "ward-7", str(batch.id)):
        assert labels(client.jobs(batch=reference)) == ["c.pdf", "b.pdf", "a.pdf"]
    for missing in ("ward-8", str(UUID(int=7)), "", "..", "x" * 101):
        with pytest.raises(errors.BatchNotFoundError) as refusal:
            client.batch(missing)
        assert refusal.value.reference == missing
    for look in (lambda batch: list(client.jobs(batch=batch)), lambda batch: client.counts(batch=batch)):
        with pytest.raises(errors.BatchNotFoundError) as refusal:
            look(UUID(int=7))
        assert refusal.value.reference == str(UUID(int=7))
    for wrong in ("", "ward 7", "-7", "a/b", "x" * 101):
        with pytest.raises(errors.InvalidOptionError):
            client.submit_many(scans("a.pdf"), batch=wrong)
    with pytest.raises(errors.BatchNotFoundError):
        client.submit_many(scans("a.pdf"), batch=str(UUID(int=7)))


@pytest.mark.servers
def test_a_batch_is_found_by_how_its_id_begins_if_no_other_does(client: Client) -> None:
    group, other = (
        client.submit_many(scans(label), batch=name) for label, name in (("a", "ward-7"), ("b", None))
    )
    assert labels(client.jobs(batch=str(group.batch)[:30])) == ["a"]
    shared = str(group.batch)[:4]
    assert str(other.batch)[:4] == shared
    with pytest.raises(errors.BatchNotFoundError, match=shared):
        client.batch(shared)


def test_jobs_of_a_batch_are_filtered_and_counted(fleet: Any, client: Client) -> None:
    group = client.submit_many(
        scans("a.pdf", "b.pdf", "c.pdf", "d.pdf", metadata={"half": "one"}) + scans("e.pdf"), batch="week"
    )
    client.submit_many(scans("other.pdf"))
    fleet.answers(ReadDocument, Document(pages=(page(),)))
    fleet.finish(group[0])
    fleet.answers(ReadDocument, Document(pages=(page(verdict=Verdict.REVIEW),)))
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
        with pytest.raises(errors.InvalidOptionError, match=begins):
            client.job(begins)


@pytest.mark.servers
def test_a_purge_takes_labels_and_the_batch_that_is_empty_then(client: Client) -> None:
    kept, erased = client.submit_many(scans("kept.pdf", "erased.pdf"), batch="ward-7")
    client.purge([erased])
    assert (erased.refresh().label, erased.batch) == (None, None)
    assert labels(client.jobs(batch="ward-7")) == ["kept.pdf"]
    client.purge([kept])
    with pytest.raises(errors.BatchNotFoundError):
        client.batch("ward-7")
    assert list(client.jobs(since=timedelta(hours=1), state="queued")) == []


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last line of each job by its label, and check the files' sums."""
    lines = [
        json.loads(line)
        for part in sorted(folder.glob("manifest/*"))
        for line in part.read_text().splitlines()
    ]
    for line in lines:
        if line["file"]:
            assert hashlib.sha256((folder / line["file"]).read_bytes()).hexdigest() == line["sha256"]
    return {line["label"]: line for line in lines}


def test_an_export_goes_on_where_an_earlier_one_stopped(fleet: Any, client: Client, tmp_path: Path) -> None:
    group = client.submit_many(scans("a.pdf", "b.pdf", "c.pdf", "d.pdf"), batch="week")
    client.submit_many(scans("other.pdf"))
    fleet.answers(ReadDocument, pages=["one", "two"])
    fleet.finish(group[0])
    fleet.fails(ReadDocument, FailureCode.DAMAGED)
    fleet.finish(group[1])
    client.export(tmp_path, format="markdown", batch="week")
    first = client.export(tmp_path, format="markdown", batch="week")
    assert (first.written, first.before, first.empty, first.open) == (0, 2, 0, 2)
    told = manifest(tmp_path)
    assert {label: (line["state"], line["verdict"]) for label, line in told.items()} == {
        "a.pdf": ("succeeded", "ok"),
        "b.pdf": ("failed", None),
    }
    text = render(group[0].refresh().result(timeout=0), "markdown")
    assert (tmp_path / told["a.pdf"]["file"]).read_text() == text

    group[1].refresh().retry()
    fleet.answers(ReadDocument, pages=["three"])
    fleet.finish()
    second = client.export(tmp_path, format="markdown", batch="week")
    assert (second.written, second.before, second.empty, second.open) == (3, 1, 0, 0)
    assert {line["file"] for line in manifest(tmp_path).values()} == {"a.md", "b.md", "c.md", "d.md"}
    assert len(list(tmp_path.glob("*.md"))) == 4


def test_an_export_is_lines_or_rows_of_all_jobs_found(fleet: Any, client: Client, tmp_path: Path) -> None:
    group = client.submit_many(scans("a.pdf", "b.pdf", metadata={"ward": "7"}), batch="week")
    fleet.answers(ReadDocument, pages=["one", "two"])
    fleet.finish()
    shown: list[int] = []
    done = client.export(
        tmp_path, batch="week", format="jsonl", progress=lambda far: shown.append(far.written)
    )
    assert (done.written, shown) == (2, [1, 2])
    (lines,) = tmp_path.glob("part-*.jsonl")
    read = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(one["label"], one["result"]["pages"][1]["number"]) for one in read] == [
        ("b.pdf", 2),
        ("a.pdf", 2),
    ]

    assert client.export(str(tmp_path), batch="week", format="parquet").written == 2, "a form of its own"
    rows = parquet.read_table(tmp_path / "part-000002.parquet").to_pylist()
    assert [(row["label"], row["number"], row["text"]) for row in rows] == [
        (label, number, text) for label in ("b.pdf", "a.pdf") for number, text in ((1, "one"), (2, "two"))
    ]
    assert rows[0]["metadata"] == [("ward", "7")]
    assert rows[0]["job"] == str(group[1].id)
    with pytest.raises(errors.InvalidFormatError, match="jsonl"):
        client.export(tmp_path, batch="week", format="docx")
    with pytest.raises(errors.UnavailableError):
        client.export("/proc/none", batch="week")


def test_files_of_equal_names_get_a_number_and_keep_it(fleet: Any, client: Client, tmp_path: Path) -> None:
    names = ["a/scan.pdf", "b/scan.pdf", "b/Scan.PDF", "..", "what?/no*.pdf"]
    group = client.submit_many(
        [Submission(ReadDocument(name.encode()), label=name) for name in names], batch="week"
    )
    for job in (group[1], *group):
        if not job.refresh().done:
            fleet.finish(job)
        client.export(tmp_path, format="markdown", batch="week")
    found = {line["label"]: line["file"] for line in manifest(tmp_path).values()}
    assert found == {
        "b/scan.pdf": "scan.md",
        "a/scan.pdf": "scan-2.md",
        "b/Scan.PDF": "Scan-3.md",
        "..": f"{group[3].id}.md",
        "what?/no*.pdf": "no_.md",
    }


def test_an_export_holds_a_step_and_no_more(
    fleet: Any, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_STEP_JOBS", 2)
    client.submit_many(scans(*"abcdefg"), batch="week")
    fleet.answers(ReadDocument, pages=["one"])
    fleet.finish()
    put, left = exporting.Place.put, [4]

    def breaking(self: Any, name: str, content: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise errors.UnavailableError("it is full")
        put(self, name, content)

    monkeypatch.setattr(exporting.Place, "put", breaking)
    with pytest.raises(errors.UnavailableError):
        client.export(tmp_path, batch="week")
    assert len(manifest(tmp_path)) == 2
    assert client.export(tmp_path, batch="week").before == 2
    assert sorted(manifest(tmp_path)) == list("abcdefg")
    parts = [len(path.read_text().splitlines()) for path in sorted(tmp_path.glob("part-*"))]
    assert parts == [2, 2, 2, 1]
