"""Waiting for jobs and reading what they return, while a real ledger moves their parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pydantic import ValidationError
from redis import Redis

from pecia import (
    CaptionVideo,
    Client,
    ClientSettings,
    Document,
    FailureCode,
    Job,
    JobCancelledError,
    JobExpiredError,
    JobFailedError,
    JobNotFoundError,
    JobState,
    JobTimeoutError,
    ReadDocument,
    RetryRefusedError,
)
from pecia_workers.local.redis import EmbeddedRedis

Picture = Callable[..., bytes]
PDF = b"%PDF-1.7"


@contextmanager
def meanwhile(*steps: Callable[[], Any], pause: float = 0.2) -> Iterator[None]:
    """Runs the steps in another thread, a pause before each, and raises what they raise."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for step in steps:
                time.sleep(pause)
                step()
        except BaseException as error:  # noqa: BLE001  raised below, in the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert errors == []


@pytest.fixture
def slow_client(database_url: str, redis_url: str, payload_url: str) -> Iterator[Client]:
    """A client that would notice nothing within a test if it were not told."""
    settings = ClientSettings(poll_interval=timedelta(minutes=5))
    with Client(database_url, redis_url, payload_url, settings=settings) as client:
        yield client


def test_a_waiting_client_hears_the_announcement(slow_client: Client, scribe: Any, picture: Picture) -> None:
    job = slow_client.submit(ReadDocument(picture()))
    with meanwhile(lambda: scribe.read(job.id, text="Amoxicillin 500 mg")):
        document = job.result(timeout=10)
    assert isinstance(document, Document)
    assert document.text == "Amoxicillin 500 mg"
    assert (job.state, job.done, job.progress.done) == (JobState.SUCCEEDED, True, 1)


def test_without_redis_a_waiting_client_looks_by_itself(
    database_url: str, payload_url: str, tmp_path: Path, picture: Picture, scribe: Any
) -> None:
    settings = ClientSettings(poll_interval=timedelta(milliseconds=100))
    with Client(database_url, f"unix://{tmp_path}/none.sock", payload_url, settings=settings) as client:
        job = client.submit(ReadDocument(picture()))
        with meanwhile(lambda: scribe.read(job.id)):
            assert job.result(timeout=10).text == "text"


def test_a_redis_that_dies_during_the_wait_is_survived(
    database_url: str,
    payload_url: str,
    redis_server: Callable[..., EmbeddedRedis],
    picture: Picture,
    scribe: Any,
) -> None:
    redis = redis_server()
    settings = ClientSettings(poll_interval=timedelta(milliseconds=200))
    with Client(database_url, redis.url, payload_url, settings=settings) as client:
        job = client.submit(ReadDocument(picture()))
        with meanwhile(redis.kill, lambda: scribe.read(job.id)):
            assert job.wait(timeout=10).state is JobState.SUCCEEDED


def test_a_timeout_is_the_callers_alone(client: Client, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()))
    began = time.monotonic()
    with pytest.raises(JobTimeoutError, match="goes on") as late:
        job.result(timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 2
    assert (late.value.job_id, late.value.timeout) == (job.id, 0.3)
    assert isinstance(late.value, TimeoutError)
    assert job.refresh().state is JobState.QUEUED


def test_a_timeout_of_zero_looks_once(client: Client, scribe: Any, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()))
    with pytest.raises(JobTimeoutError):
        job.wait(timeout=0)
    scribe.read(job.id)
    assert job.state is JobState.QUEUED, "reading an attribute is no look"
    assert job.wait(timeout=0).state is JobState.SUCCEEDED


def test_a_document_that_cannot_be_cut_fails_with_its_reason(client: Client, scribe: Any) -> None:
    job = client.submit(ReadDocument(PDF))
    scribe.fail(job.id, code=FailureCode.ENCRYPTED, stage="ingest")
    with pytest.raises(JobFailedError, match="without protection") as failed:
        job.result(timeout=5)
    assert failed.value.failure.code is FailureCode.ENCRYPTED
    assert job.failure == failed.value.failure
    with pytest.raises(JobFailedError):
        list(job.pages(timeout=5))


def test_a_partial_document_says_which_page_is_missing(client: Client, scribe: Any) -> None:
    job = client.submit(ReadDocument(PDF))
    scribe.cut(job.id, 3)
    scribe.read(job.id, 0, "one")
    scribe.fail(job.id, 1, FailureCode.TOO_LARGE)
    scribe.read(job.id, 2, "three")
    document = job.result(timeout=5)
    assert job.state is JobState.PARTIAL
    assert [(page.number, page.text) for page in document.pages] == [(1, "one"), (3, "three")]
    assert [(page.number, page.failure.code) for page in document.failed] == [(2, FailureCode.TOO_LARGE)]


def test_pages_come_in_order_while_the_job_runs(slow_client: Client, scribe: Any) -> None:
    job = slow_client.submit(ReadDocument(PDF))
    pages = job.pages(timeout=20)
    with meanwhile(
        lambda: scribe.cut(job.id, 3),
        lambda: scribe.read(job.id, 1),
        lambda: scribe.read(job.id, 0),
    ):
        numbers = [next(pages).number, next(pages).number]
        assert not job.done
    with meanwhile(lambda: scribe.read(job.id, 2)):
        numbers += [page.number for page in pages]
    assert numbers == [1, 2, 3]


def test_pages_behind_one_that_is_not_read_yet_stay_in_the_store(
    client: Client, scribe: Any, database_url: str
) -> None:
    job = client.submit(ReadDocument(PDF))
    scribe.cut(job.id, 3)
    scribe.read(job.id, 2)
    scribe.read(job.id, 1)
    with pytest.raises(JobTimeoutError):
        list(job.pages(timeout=0.2))
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT FROM reads").fetchall() == []
    scribe.read(job.id, 0)
    assert [page.number for page in job.pages(timeout=5)] == [1, 2, 3]


def test_pages_as_completed_come_when_they_are_read(slow_client: Client, scribe: Any) -> None:
    job = slow_client.submit(ReadDocument(PDF))
    scribe.cut(job.id, 3)
    with meanwhile(*(lambda ordinal=ordinal: scribe.read(job.id, ordinal) for ordinal in (2, 0, 1))):
        assert [page.number for page in job.pages(as_completed=True, timeout=20)] == [3, 1, 2]


def test_events_tell_the_whole_life_and_end_with_it(
    slow_client: Client, scribe: Any, picture: Picture
) -> None:
    job = slow_client.submit(ReadDocument(picture()))
    with meanwhile(lambda: scribe.read(job.id)):
        events = list(job.events(timeout=20))
    assert [event.state for event in events if event.part_id is None] == ["queued", "running", "succeeded"]
    assert [event.state for event in events if event.part_id] == ["running", "done"]
    assert len({event.sequence for event in events}) == len(events)


def test_a_job_is_found_by_its_id_and_only_as_what_it_is(client: Client, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()), metadata={"ward": "7"})
    found = client.job(str(job.id), ReadDocument)
    assert (found.id, found.metadata, found.created) == (job.id, {"ward": "7"}, False)
    with pytest.raises(JobNotFoundError):
        client.job(job.id, CaptionVideo)
    with pytest.raises(JobNotFoundError, match="pecia list"):
        client.job(uuid4())


def test_jobs_are_listed_newest_first_page_by_page(client: Client, scribe: Any, picture: Picture) -> None:
    tasks = [ReadDocument(picture(shade=shade)) for shade in range(7)]
    jobs = [
        client.submit(task, metadata={"ward": str(index % 2), "all": "x"}) for index, task in enumerate(tasks)
    ]
    newest = [job.id for job in reversed(jobs)]
    scribe.read(jobs[3].id)

    def ids(**wanted: Any) -> list[Any]:
        return [job.id for job in client.jobs(**wanted)]

    assert ids(page_size=3) == newest
    assert ids(page_size=3, limit=4) == newest[:4]
    assert ids(status="succeeded") == [jobs[3].id]
    assert set(ids(status=[JobState.QUEUED])) == set(newest) - {jobs[3].id}
    assert ids(metadata={"ward": "1"}) == newest[1::2]
    assert ids(since=timedelta(hours=1), kind="document.read") == newest
    assert ids(since=jobs[5].submitted_at) == newest[:2]
    assert ids(kind="video.caption") == []


def test_a_cancelled_job_and_its_parts_are_over_and_everyone_is_told(
    client: Client, scribe: Any, database_url: str, redis_url: str
) -> None:
    job = client.submit(ReadDocument(PDF), webhook="https://example.org/hook")
    scribe.cut(job.id, 3)
    scribe.read(job.id, 0)
    with Redis.from_url(redis_url, decode_responses=True) as redis, redis.pubsub() as pubsub:
        pubsub.subscribe("pecia:cancelled", f"pecia:job:{job.id}")
        assert job.cancel(reason="wrong file") is True
        heard = [pubsub.get_message(timeout=2) for _ in range(4)]
    assert {message["data"] for message in heard if message and message["type"] == "message"} == {
        str(job.id),
        "cancelled",
    }
    assert (job.state, job.progress.done, job.progress.cancelled) == (JobState.CANCELLED, 1, 2)
    reasons = [event.reason for event in job.events() if event.state == "cancelled"]
    assert reasons == ["wrong file"] * 3
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT type FROM deliveries").fetchall() == [("job.cancelled",)]
    with pytest.raises(JobCancelledError):
        job.result(timeout=5)


def test_cancelling_what_is_over_changes_nothing(client: Client, scribe: Any, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()))
    scribe.read(job.id)
    assert job.cancel() is False
    assert job.state is JobState.SUCCEEDED
    assert job.result(timeout=0).text == "text"


def test_an_expired_job_says_so(client: Client, database_url: str, picture: Picture) -> None:
    job = client.submit(ReadDocument(picture()))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE jobs SET state = 'expired', finished_at = now()")
    with pytest.raises(JobExpiredError):
        job.result(timeout=5)


def test_a_retry_runs_what_failed_and_keeps_what_was_read(
    client: Client, scribe: Any, redis_url: str, database_url: str
) -> None:
    job = client.submit(ReadDocument(PDF))
    scribe.cut(job.id, 2)
    scribe.read(job.id, 0, "kept")
    scribe.fail(job.id, 1)
    assert job.wait(5).state is JobState.PARTIAL
    job.retry()
    assert (job.state, job.finished_at, job.progress.done, job.progress.failed) == (
        JobState.QUEUED,
        None,
        1,
        0,
    )
    with Redis.from_url(redis_url) as redis:
        assert redis.llen("read.normal") == 1
    with psycopg.connect(database_url) as connection:
        query = "SELECT attempt, failure, published_at IS NOT NULL FROM parts WHERE stage = 'read' AND ordinal = 1"
        assert connection.execute(query).fetchone() == (1, None, True)
    scribe.read(job.id, 1, "second time")
    assert job.result(timeout=5).text == "kept\fsecond time"
    assert job.state is JobState.SUCCEEDED


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_retry_cuts_again_what_was_never_cut(client: Client, scribe: Any, end: str) -> None:
    job = client.submit(ReadDocument(PDF))
    if end == "failed":
        scribe.fail(job.id, stage="ingest")
    else:
        job.cancel()
    assert job.wait(5).state == end
    assert job.retry().progress.total is None
    scribe.cut(job.id, 1)
    scribe.read(job.id)
    assert job.result(timeout=5).text == "text"


def test_a_retry_is_refused_while_there_is_nothing_to_repeat(
    client: Client, scribe: Any, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture()))
    with pytest.raises(RetryRefusedError, match="queued"):
        job.retry()
    scribe.read(job.id)
    with pytest.raises(RetryRefusedError, match="succeeded"):
        job.retry()


def test_a_group_yields_its_jobs_as_they_finish(slow_client: Client, scribe: Any, picture: Picture) -> None:
    group = slow_client.submit_many(ReadDocument(picture(shade=shade)) for shade in range(3))
    turn = [group[2], group[0], group[1]]
    with meanwhile(*(lambda job=job: scribe.read(job.id) for job in turn)):
        finished = [job.id for job in group.as_completed(timeout=20)]
    assert finished == [job.id for job in turn]
    assert [document.text for document in group.results(timeout=0)] == ["text"] * 3


def test_a_group_of_a_thousand_waits_on_one_connection_and_is_cancelled_as_one(
    client: Client, redis_url: str, picture: Picture
) -> None:
    content = picture()
    group = client.submit_many(ReadDocument(content) for _ in range(1000))
    with Redis.from_url(redis_url) as redis:
        before = redis.info("clients")["connected_clients"]
        for _ in range(3):
            with pytest.raises(JobTimeoutError):
                group.wait(timeout=0.2)
        assert redis.info("clients")["connected_clients"] <= before + 1
    assert group.cancel(reason="test") == 1000
    assert group.wait(timeout=5)[999].state is JobState.CANCELLED
    assert group.cancel() == 0


def test_a_job_that_was_deleted_is_no_endless_wait(
    client: Client, database_url: str, picture: Picture
) -> None:
    job: Job[Document] = client.submit(ReadDocument(picture()))
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM jobs")
    with pytest.raises(JobNotFoundError):
        job.wait(timeout=5)


def test_a_result_of_another_version_is_an_error_that_quotes_nothing(
    client: Client, scribe: Any, database_url: str, picture: Picture
) -> None:
    job = client.submit(ReadDocument(picture()))
    scribe.read(job.id, text="Anna Miller, 1961")
    with psycopg.connect(database_url) as connection:
        connection.execute("""UPDATE results SET content = content - 'verdict' || '{"new": "Anna Miller"}'""")
    with pytest.raises(ValidationError) as error:
        job.result(timeout=5)
    assert "Anna" not in str(error.value)
