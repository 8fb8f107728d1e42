"""What both kinds of client promise of jobs, on a fake fleet as on a real one: submitting, waiting, results, ends."""

import io
import os
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pecia import (
    CaptionVideo,
    Client,
    Document,
    FailureCode,
    Job,
    JobGroup,
    JobState,
    Lane,
    ReadBundle,
    ReadDocument,
    SplitAction,
    SplitChange,
    Verdict,
    errors,
)
from tests.shared.contract_fleets import client, fleet, gateway, real_fleet
from tests.shared.fixture_types import Picture
from tests.shared.limits import WAIT_S
from tests.shared.samples import page

__all__ = ["client", "fleet", "gateway", "real_fleet"]

PDF = b"%PDF-1.7"
HOOK = "https://example.org/hook"


def code_of(job: Job[Any]) -> FailureCode | None:
    return job.failure.code if job.failure else None


def test_a_task_becomes_a_queued_job_of_one_page_if_it_is_a_picture(client: Client, picture: Picture) -> None:
    job = client.submit(ReadDocument(PDF), priority=Lane.URGENT, metadata={"ward": "7"})
    assert (job.state, job.lane, job.kind, job.created) == ("queued", "urgent", "document.read", True)
    assert (job.metadata, job.progress.total, job.done, job.failure) == ({"ward": "7"}, None, False, None)
    assert job.finished_at is None
    assert abs(job.submitted_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert client.submit(ReadDocument(picture())).progress.total == 1


def test_a_document_is_read_part_by_part_and_comes_back_page_by_page(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    job = client.submit(ReadDocument(PDF))
    assert fleet.start(job)
    assert (job.refresh().state, job.progress.total) == (JobState.RUNNING, None)
    seen = []
    while fleet.step(job):
        seen.append((job.refresh().state, job.progress.total, job.progress.done))
    assert seen == [(JobState.RUNNING, 2, 0), (JobState.RUNNING, 2, 1), (JobState.SUCCEEDED, 2, 2)]
    assert job.result(timeout=WAIT_S).text == "one\ftwo"
    assert (job.progress.finished, job.finished_at is None) == (2, False)


def test_a_full_result_comes_back_as_it_was_told(fleet: Any, client: Client) -> None:
    first = page(text="x", verdict=Verdict.LOW_CONFIDENCE, rotation=90, engine="e")
    whole = Document(pages=(first, first.model_copy(update={"number": 2})))
    fleet.answers(ReadDocument, whole)
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    assert job.state is JobState.QUEUED, "attributes are what was last seen"
    assert job.result(timeout=WAIT_S) == whole


def test_a_result_is_saved_as_a_file(fleet: Any, client: Client, tmp_path: Path) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    assert job.save(tmp_path / "scan.txt", timeout=WAIT_S).read_text().split() == ["one", "two"]
    assert Document.model_validate_json(job.save(str(tmp_path / "scan"), "json").read_bytes()) == job.result()
    with pytest.raises(errors.InvalidFormatError):
        job.save(tmp_path / "scan.exe")


def test_only_the_pages_that_were_asked_for_are_read(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two", "three", "four"])
    job, beyond = (client.submit(ReadDocument(PDF, pages=pages)) for pages in ("2,4-", "5"))
    fleet.finish()
    pages = job.result(timeout=WAIT_S).pages
    assert [(page.number, page.text) for page in pages] == [(2, "two"), (4, "four")]
    assert code_of(beyond.wait(WAIT_S)) is FailureCode.NO_SUCH_PAGE


def test_fields_come_back_to_who_asked_for_them(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, text="x", fields={"drug": "Amoxicillin"})
    schema = {"type": "object", "properties": {"drug": {"type": "string"}}}
    asked, plain = client.submit(ReadDocument(PDF, fields=schema)), client.submit(ReadDocument(PDF))
    fleet.finish()
    assert asked.result(timeout=WAIT_S).pages[0].fields == {"drug": "Amoxicillin"}
    assert plain.result(timeout=WAIT_S).pages[0].fields is None


def test_a_partial_document_says_which_page_is_missing(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", FailureCode.TOO_LARGE, "three"])
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    document = job.result(timeout=WAIT_S)
    assert (job.state, job.failure) == (JobState.PARTIAL, None)
    assert [page.number for page in document.pages] == [1, 3]
    assert [(page.number, page.failure.code) for page in document.failed] == [(2, FailureCode.TOO_LARGE)]


@pytest.mark.parametrize("of_one_page", [True, False])
def test_a_job_without_result_fails(fleet: Any, client: Client, picture: Picture, of_one_page: bool) -> None:
    fleet.fails(ReadDocument, FailureCode.DAMAGED)
    job = client.submit(ReadDocument(picture() if of_one_page else PDF))
    fleet.finish(job)
    with pytest.raises(errors.JobFailedError, match="damaged") as failed:
        job.result(timeout=WAIT_S)
    assert failed.value.failure.code is FailureCode.DAMAGED
    assert failed.value.failure == job.failure
    assert (job.progress.total, job.progress.failed) == ((1, 1) if of_one_page else (0, 0))
    with pytest.raises(errors.JobFailedError):
        list(job.pages(timeout=WAIT_S))


def test_a_job_whose_pages_all_failed_tells_of_the_first(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=[FailureCode.TOO_LARGE, FailureCode.DAMAGED])
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    assert code_of(job.wait(WAIT_S)) is FailureCode.TOO_LARGE
    assert (job.state, job.progress.failed) == (JobState.FAILED, 2)


def test_a_video_comes_back_in_segments_with_a_summary_if_there_is_any(fleet: Any, client: Client) -> None:
    fleet.answers(CaptionVideo, segments=["a dog", FailureCode.DAMAGED, "a cat"], summary="animals")
    fleet.answers(CaptionVideo, segments=[FailureCode.DAMAGED, FailureCode.DAMAGED], times=1)
    lost, job = (client.submit(CaptionVideo(content)) for content in (b"lost", b"video"))
    fleet.finish(lost)
    fleet.finish(job)
    captions = job.result(timeout=WAIT_S)
    assert [(segment.number, segment.text) for segment in captions.segments] == [(1, "a dog"), (3, "a cat")]
    assert [segment.number for segment in captions.failed] == [2]
    assert captions.summary is not None
    assert captions.summary.text == "animals"
    assert (job.state, job.progress.total) == (JobState.PARTIAL, 4)
    with pytest.raises(TypeError, match="no pages"):
        list(job.pages())
    assert lost.wait(WAIT_S).state is JobState.FAILED
    assert (lost.progress.failed, lost.progress.cancelled) == (2, 1)
    assert [one.reason for one in lost.events() if one.state == "cancelled"] == ["nothing_to_summarize"]


def test_a_timeout_is_the_callers_alone_and_zero_looks_once(fleet: Any, client: Client) -> None:
    job = client.submit(ReadDocument(PDF))
    for timeout in (0, 0.05):
        with pytest.raises(errors.JobTimeoutError, match="goes on") as late:
            job.wait(timeout)
        assert (late.value.job_id, late.value.timeout) == (job.id, timeout)
    for stream in (job.pages, job.events, client.group([job]).as_completed):
        with pytest.raises(errors.JobTimeoutError):
            list(stream(timeout=0))
    fleet.finish(job)
    assert job.wait(timeout=0).state is JobState.SUCCEEDED


def test_a_wait_ends_when_the_job_does(fleet: Any, client: Client) -> None:
    job = client.submit(ReadDocument(PDF))
    later = threading.Timer(0.1, fleet.finish, [job])
    later.start()
    assert job.wait(timeout=WAIT_S).state is JobState.SUCCEEDED
    later.join()


def test_pages_come_in_order_or_as_they_are_read(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two", FailureCode.DAMAGED, "four"])
    job = client.submit(ReadDocument(PDF))
    for _ in range(3):
        fleet.step(job)
    for as_completed in (False, True):
        pages = job.pages(as_completed=as_completed, timeout=WAIT_S)
        assert [next(pages).number, next(pages).number] == [1, 2]
    fleet.finish(job)
    assert [page.number for page in job.pages(timeout=WAIT_S)] == [1, 2, 4]


def test_events_tell_the_whole_life(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", FailureCode.DAMAGED])
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    events = list(job.events(timeout=WAIT_S))
    assert [event.state for event in events if event.part_id is None] == ["queued", "running", "partial"]
    moves = [(event.state, event.attempt, event.reason) for event in events if event.part_id]
    begun, done, failed = ("running", 1, None), ("done", 1, None), ("failed", 1, "damaged")
    assert moves == [begun, done, begun, done, begun, failed]
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences))
    assert events[0].actor in ("client:test", "client:clinic/test")
    assert events[-1].job_id == job.id
    assert len({event.part_id for event in events}) == 4


def test_a_key_names_one_task_and_repeated_returns_its_job(client: Client) -> None:
    job = client.submit(ReadDocument(PDF), idempotency_key="scan-1", metadata={"ward": "7"})
    again = client.submit(ReadDocument(PDF), idempotency_key="scan-1", metadata={"ward": "8"})
    assert (again.id, again.created, again.metadata) == (job.id, False, {"ward": "7"})
    others: list[tuple[Any, Lane]] = [
        (ReadDocument(b"other"), Lane.NORMAL),
        (ReadDocument(PDF, language="en"), Lane.NORMAL),
        (CaptionVideo(PDF), Lane.NORMAL),
        (ReadDocument(PDF), Lane.BULK),
    ]
    for other, lane in others:
        with pytest.raises(errors.IdempotencyConflictError) as conflict:
            client.submit(other, idempotency_key="scan-1", priority=lane)
        assert conflict.value.existing_job_id == job.id
    assert len(list(client.jobs())) == 1


def test_many_tasks_become_a_group_in_their_order(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, lambda task: task.source.decode())
    group = client.submit_many((ReadDocument(f"{n}".encode()) for n in range(5)), idempotency_prefix="run")
    fleet.finish()
    assert [document.text for document in group.results(timeout=WAIT_S)] == list("01234")
    again = client.submit_many((ReadDocument(f"{n}".encode()) for n in range(6)), idempotency_prefix="run")
    assert [job.created for job in again] == [False] * 5 + [True]
    assert [job.id for job in again][:5] == [job.id for job in group]


def test_many_tasks_take_the_options_of_one_and_wait_for_their_time(fleet: Any, client: Client) -> None:
    options: dict[str, Any] = {"priority": Lane.BULK, "metadata": {"ward": "7"}, "webhook": HOOK}
    late = client.submit_many([ReadDocument(PDF)] * 2, **options, not_before=timedelta(hours=1))
    assert {(job.lane, job.metadata["ward"]) for job in late} == {(Lane.BULK, "7")}
    assert not fleet.step()
    fleet.advance(timedelta(hours=2))
    fleet.finish(late[0])
    assert late.cancel() == 1
    assert [callback.url for callback in fleet.callbacks] == [HOOK] * 2
    assert len(client.submit_many(list[ReadDocument]())) == 0


def test_tasks_may_have_keys_of_their_own(client: Client) -> None:
    contents = {f"scan-{number}": f"{number}".encode() for number in range(4)}
    first = client.submit_many(map(ReadDocument, contents.values()), idempotency_keys=contents)
    again = client.submit_many(
        (ReadDocument(contents[key]) for key in reversed(contents)), idempotency_keys=reversed(contents)
    )
    assert [job.id for job in again] == [job.id for job in first][::-1]
    with pytest.raises(errors.InvalidOptionError, match="fewer keys"):
        client.submit_many([ReadDocument(PDF)] * 2, idempotency_keys=["one"])
    with pytest.raises(errors.InvalidOptionError, match="not both"):
        client.submit_many([ReadDocument(PDF)], idempotency_prefix="run", idempotency_keys=["one"])


def test_a_group_yields_its_jobs_as_they_finish(fleet: Any, client: Client) -> None:
    group = client.submit_many(ReadDocument(f"{n}".encode()) for n in range(3))
    fleet.finish(group[2])
    finished = group.as_completed(timeout=WAIT_S)
    assert next(finished).id == group[2].id
    fleet.finish()
    assert {job.id for job in finished} == {group[0].id, group[1].id}
    assert group.refresh()[0].state is JobState.SUCCEEDED
    assert [job.id for job in client.group(group[:0:-1])] == [group[2].id, group[1].id]


def test_a_group_is_cancelled_as_one(fleet: Any, client: Client) -> None:
    group = client.submit_many(ReadDocument(f"{n}".encode()) for n in range(3))
    fleet.finish(group[0])
    assert group.cancel(reason="test") == 2
    assert [job.state for job in group.wait(timeout=WAIT_S)] == ["succeeded", "cancelled", "cancelled"]
    assert group.cancel() == 0
    with pytest.raises(errors.JobCancelledError):
        group.results(timeout=0)


def test_a_job_is_found_by_its_id_and_only_as_what_it_is(client: Client) -> None:
    job = client.submit(ReadDocument(PDF), metadata={"ward": "7"})
    found = client.job(str(job.id), ReadDocument)
    assert (found.id, found.metadata, found.created) == (job.id, {"ward": "7"}, False)
    with pytest.raises(errors.JobNotFoundError):
        client.job(job.id, CaptionVideo)
    with pytest.raises(errors.JobNotFoundError, match="pecia list"):
        client.job(uuid4())
    with pytest.raises(errors.InvalidOptionError, match="UUID"):
        client.job("7")


def test_jobs_are_listed_newest_first_by_what_is_asked(fleet: Any, client: Client) -> None:
    jobs = [client.submit(ReadDocument(PDF), metadata={"ward": str(n % 2), "all": "x"}) for n in range(5)]
    video = client.submit(CaptionVideo(b"video"))
    fleet.finish(jobs[3])
    fleet.start(jobs[1])
    newest = [job.id for job in reversed(jobs)]

    def ids(**wanted: Any) -> list[Any]:
        return [job.id for job in client.jobs(**wanted)]

    assert ids(page_size=2) == [video.id, *newest]
    assert ids(limit=3) == [video.id, *newest[:2]]
    assert ids(kind="video.caption") == [video.id]
    assert ids(state="succeeded") == [jobs[3].id]
    assert ids(part=next(event.part_id for event in jobs[3].events() if event.part_id)) == [jobs[3].id]
    assert set(ids(state=["queued", JobState.RUNNING])) == {video.id, *newest} - {jobs[3].id}
    assert ids(metadata={"ward": "1", "all": "x"}) == newest[1::2]
    assert ids(since=jobs[3].submitted_at) == [video.id, *newest[:2]]
    fleet.advance(timedelta(hours=2))
    assert ids(since=timedelta(hours=1)) == []
    with pytest.raises(errors.InvalidOptionError, match="state"):
        ids(state="sleeping")
    with pytest.raises(errors.InvalidOptionError, match="further away"):
        ids(since=timedelta.max)
    for kind in ("\0", "\ud800"):
        with pytest.raises(errors.InvalidOptionError, match="without NUL"):
            ids(kind=kind)


@pytest.mark.servers
def test_pages_are_found_by_their_verdict_in_the_newest_job_first(
    fleet: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [Verdict.REVIEW, Verdict.OK, Verdict.INCOMPLETE, Verdict.BLANK, Verdict.REVIEW]
    fleet.answers(
        ReadDocument, Document(pages=tuple(page(n, verdict=verdict) for n, verdict in enumerate(verdicts, 1)))
    )
    older, newer, erased = (
        client.submit(ReadDocument(PDF), metadata={"ward": ward}) for ward in ("1", "2", "3")
    )
    fleet.finish()
    client.purge([erased])

    def found(**wanted: Any) -> list[Any]:
        return [(page.job_id, page.number, page.verdict) for page in client.pages(**wanted)]

    def doubtful(job: Any) -> list[Any]:
        return [(job.id, number, verdicts[number - 1]) for number in (1, 3, 5)]

    assert found() == found(page_size=2) == [*doubtful(newer), *doubtful(older)]
    with monkeypatch.context() as patched:  # a gateway's answer may hold fewer than the client's page
        patched.setattr("pecia.remote.calls.AT_ONCE", 4)
        assert found() == [*doubtful(newer), *doubtful(older)]
    assert found(limit=4, page_size=1) == [*doubtful(newer), *doubtful(older)][:4]
    assert found(state="failed") == found(kind="video.caption") == []
    assert found(verdict="incomplete") == [(newer.id, 3, "incomplete"), (older.id, 3, "incomplete")]
    assert found(verdict=[Verdict.OK, "incomplete"], metadata={"ward": "1"}) == [
        (older.id, 2, "ok"),
        (older.id, 3, "incomplete"),
    ]
    fleet.advance(timedelta(hours=2))
    assert found(since=timedelta(hours=1)) == []
    with pytest.raises(errors.InvalidOptionError, match="incomplete"):
        found(verdict="doubtful")


def test_a_cancelled_job_is_over_and_what_was_read_is_counted(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two", "three"])
    job = client.submit(ReadDocument(PDF))
    fleet.step(job)
    fleet.step(job)
    fleet.start(job)
    assert job.cancel(reason="wrong file") is True
    assert (job.state, job.progress.done, job.progress.cancelled) == (JobState.CANCELLED, 1, 2)
    assert [event.reason for event in job.events() if event.state == "cancelled"] == ["wrong file"] * 3
    assert job.cancel() is False
    with pytest.raises(errors.JobCancelledError):
        job.result(timeout=0)


def test_a_retry_runs_what_failed_and_keeps_what_was_read(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["kept", "second time"])
    fleet.answers(ReadDocument, pages=["kept", FailureCode.ENGINE_ERROR], times=1)
    job = client.submit(ReadDocument(PDF))
    with pytest.raises(errors.RetryRefusedError, match="queued"):
        job.retry()
    fleet.finish(job)
    assert job.wait(WAIT_S).state is JobState.PARTIAL
    job.retry()
    assert (job.state, job.finished_at, job.progress.done, job.progress.failed) == ("queued", None, 1, 0)
    fleet.finish(job)
    assert job.result(timeout=WAIT_S).text == "kept\fsecond time"
    assert [event.attempt for event in job.events() if event.reason == "retry" and event.part_id] == [1]
    assert (job.cancel(), job.state) == (False, JobState.SUCCEEDED)
    with pytest.raises(errors.RetryRefusedError, match="succeeded"):
        job.retry()


@pytest.mark.servers
@pytest.mark.operators
def test_a_retry_may_be_of_some_parts(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    fleet.answers(ReadDocument, pages=[FailureCode.TIMEOUT] * 2, times=1)
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    (part,) = (part for part in client.dead_parts(job=job.id) if part.number == 2)
    with pytest.raises(errors.RetryRefusedError):
        job.retry([uuid4()])
    job.retry([part.id])
    fleet.finish(job)
    assert [page.text for page in job.result(timeout=WAIT_S).pages] == ["two"]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_retry_cuts_again_what_was_never_cut(fleet: Any, client: Client, end: str) -> None:
    fleet.fails(ReadDocument, FailureCode.ENCRYPTED, times=1)
    job = client.submit(ReadDocument(PDF))
    if end == "failed":
        fleet.finish(job)
    else:
        fleet.start(job)
        job.cancel()
        assert job.progress.cancelled == 0
    assert job.wait(WAIT_S).state == end
    assert job.retry().progress.total is None
    fleet.answers(ReadDocument, text="at last")
    fleet.finish(job)
    assert job.result(timeout=WAIT_S).text == "at last"


def test_a_retried_segment_has_the_summary_written_anew(fleet: Any, client: Client) -> None:
    fleet.answers(CaptionVideo, segments=["a", "b"], summary="both")
    fleet.answers(CaptionVideo, segments=["a", FailureCode.TIMEOUT], summary="one", times=1)
    job = client.submit(CaptionVideo(b"video"))
    fleet.finish(job)
    assert job.retry().progress.done == 1
    assert (fleet.start(job), fleet.start(job)) == (True, False)
    fleet.finish(job)
    captions = job.result(timeout=WAIT_S)
    assert captions.summary is not None
    assert (captions.summary.text, len(captions.segments), job.state) == ("both", 2, JobState.SUCCEEDED)


def test_a_job_whose_time_is_over_expires_and_can_be_retried(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    job = client.submit(ReadDocument(PDF), expires=timedelta(hours=1))
    fleet.step(job)
    fleet.step(job)
    fleet.advance(timedelta(hours=2))
    with pytest.raises(errors.JobExpiredError):
        job.result(timeout=WAIT_S)
    assert (job.state, job.progress.done, job.progress.cancelled) == (JobState.EXPIRED, 1, 1)
    assert [event.reason for event in job.events() if event.state == "cancelled"] == ["expired"]
    job.retry()
    fleet.advance(timedelta(hours=2))
    fleet.finish(job)
    assert job.result(timeout=WAIT_S).text == "one\ftwo"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metadata": {str(n): "" for n in range(65)}}, "at most 64 keys"),
        ({"metadata": {"key": "x" * 513}}, "at most 512 characters"),
        ({"metadata": {"ward": 7}}, "str()"),
        ({"metadata": {"ward": "\0"}}, "NUL"),
        ({"webhook": "not an address"}, "http or https"),
        ({"priority": "now"}, "urgent, normal, bulk"),
        ({"webhook": "https://example.org/" + "x" * 2_048}, "at most 2,048 characters"),
        ({"idempotency_key": ""}, "1 to 512"),
        ({"idempotency_key": "x" * 513}, "1 to 512"),
        ({"not_before": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001  the missing zone is the point
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_with_a_sentence(
    client: Client, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(errors.InvalidOptionError) as refusal:
        client.submit(ReadDocument(PDF), **options)
    assert sentence in str(refusal.value)
    assert list(client.jobs()) == []


def test_path_bytes_file_and_stream_are_the_same_document(fleet: Any, client: Client, tmp_path: Path) -> None:
    fleet.answers(ReadDocument, lambda task: task.source.decode())
    path = tmp_path / "scan.pdf"
    path.write_bytes(PDF)
    reader, writer = os.pipe()
    os.write(writer, PDF)
    os.close(writer)
    half_read = io.BytesIO(b"skipped" + PDF)
    half_read.seek(len(b"skipped"))
    with path.open("rb") as file, os.fdopen(reader, "rb") as stream:
        sources: list[Any] = [path, str(path), PDF, file, stream, half_read]
        jobs = [client.submit(ReadDocument(source)) for source in sources]
    fleet.finish()
    assert [job.result(timeout=WAIT_S).text for job in jobs] == [PDF.decode()] * len(sources)
    assert not half_read.closed
    unreadable: list[tuple[Any, str]] = [("/no/such/file.pdf", "check the path"), (io.StringIO("text"), "rb")]
    for source, sentence in unreadable:
        with pytest.raises(errors.InvalidSourceError, match=sentence):
            client.submit(ReadDocument(source))
    assert len(list(client.jobs())) == len(jobs)


@pytest.mark.operators
def test_a_full_lane_refuses_more_and_says_when_to_come_again(fleet: Any) -> None:
    client = fleet.client(max_backlog={Lane.BULK: 2})
    for _ in range(2):
        client.submit(ReadDocument(PDF), priority=Lane.BULK)
    for patience in ({}, {"block": True, "timeout": 0.05}):
        with pytest.raises(errors.QueueFullError) as full:
            client.submit(ReadDocument(PDF), priority=Lane.BULK, **patience)
        assert (full.value.lane, full.value.retry_after >= 1) == (Lane.BULK, True)
    client.submit(ReadDocument(PDF))
    fleet.finish()
    fleet.client(max_backlog={Lane.BULK: 2}).submit(ReadDocument(PDF), priority=Lane.BULK)


def test_a_task_that_is_refused_leaves_the_others_alone(fleet: Any, client: Client) -> None:
    client.submit(ReadDocument(b"other"), idempotency_key="run/1")
    with pytest.raises(errors.SubmitManyError, match=r"2 of 4 .* Task 1, counted from 0: ") as refused:
        client.submit_many([*[ReadDocument(PDF)] * 3, ReadDocument("/no/such.pdf")], idempotency_prefix="run")
    failures = refused.value.failures
    assert {number: type(error) for number, error in failures.items()} == {
        1: errors.IdempotencyConflictError,
        3: errors.InvalidSourceError,
    }
    assert [job.state for job in refused.value.accepted] == [JobState.QUEUED] * 2
    fleet.finish()
    assert [job.state for job in client.jobs()] == [JobState.SUCCEEDED] * 3


@pytest.mark.operators
def test_an_outage_of_postgres_or_the_payloads_is_said_and_the_rest_stays(fleet: Any, client: Client) -> None:
    job = client.submit(ReadDocument(PDF))
    with fleet.outage("postgres"):
        with pytest.raises(errors.DatabaseUnavailableError):
            client.submit(ReadDocument(PDF))
        with pytest.raises(errors.DatabaseUnavailableError):
            job.wait(timeout=0)
    with fleet.outage("payloads"), pytest.raises(errors.PayloadStoreUnavailableError):
        client.submit(ReadDocument(PDF))
    client.close()
    client.close()
    assert [found.id for found in client.jobs()] == [job.id], "a closed client can be used again"


def test_without_redis_jobs_are_accepted_and_waited_for(fleet: Any, client: Client) -> None:
    with fleet.outage("redis"):
        job = client.submit(ReadDocument(PDF))
        with pytest.raises(errors.JobTimeoutError):
            job.wait(timeout=0.05)
    fleet.finish(job)
    assert job.wait(timeout=WAIT_S).state is JobState.SUCCEEDED


@pytest.mark.servers
def test_a_document_has_no_split_to_correct(fleet: Any, client: Client) -> None:
    job = client.submit(ReadDocument(PDF))
    fleet.finish(job)
    with pytest.raises(errors.InvalidOptionError, match="not a bundle"):
        client.correct(job, SplitChange(action=SplitAction.ACCEPT, document=1))


def test_every_method_of_a_client_is_part_of_the_contract() -> None:
    contract = "".join(path.read_text() for path in Path(__file__).parent.glob("test_client_contract*.py"))
    of_a_sequence = {"count", "index"}
    methods = {
        name
        for kind in (Client, Job, JobGroup)
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name)) and name not in of_a_sequence
    }
    assert {name for name in methods if not re.search(rf"\.{name}\b", contract)} == set()


@pytest.mark.servers
def test_what_was_purged_has_no_result_any_more(fleet: Any, client: Client) -> None:
    job = client.submit(ReadDocument(PDF), metadata={"patient": "Anna"})
    fleet.finish(job)
    client.purge([job])
    with pytest.raises(errors.JobErasedError) as erased:
        job.result(timeout=WAIT_S)
    assert (job.state, job.metadata, job.progress.done) == (JobState.SUCCEEDED, {}, 1)
    assert erased.value.erased_at == job.erased_at is not None
    with pytest.raises(errors.JobErasedError):
        list(job.pages(timeout=WAIT_S))


def test_a_retried_page_has_its_bundle_split_anew(fleet: Any, client: Client) -> None:
    fleet.answers(ReadBundle, pages=["a", "b"])
    fleet.answers(ReadBundle, pages=["a", FailureCode.TIMEOUT], times=1)
    job = client.submit(ReadBundle(PDF))
    fleet.finish(job)
    job.refresh()
    assert (job.state, job.progress.total, len(job.result().pages)) == (JobState.PARTIAL, 3, 1)
    fleet.finish(job.retry())
    job.refresh()
    (document,) = job.result().documents
    assert (job.state, [page.text for page in document.pages]) == (JobState.SUCCEEDED, ["a", "b"])
    fleet.answers(ReadBundle, pages=[FailureCode.DAMAGED, FailureCode.DAMAGED], times=1)
    lost = client.submit(ReadBundle(PDF))
    fleet.finish(lost)
    assert lost.refresh().state is JobState.FAILED
    assert [one.reason for one in lost.events() if one.state == "cancelled"] == ["nothing_to_split"]
