"""Who is served first, and jobs that end before their time, over a whole fleet."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from PIL import Image

from limits import WAIT_S
from pecia import (
    Document,
    Job,
    JobCancelledError,
    JobExpiredError,
    JobState,
    Lane,
    ReadDocument,
    RetryRefusedError,
)

SHEETS = 20 * (os.cpu_count() or 1)  # a second or two of work, however many read

Draw = Callable[[str], bytes]


@pytest.fixture(scope="module")
def long_document(drawn: Draw) -> bytes:
    sheets = [Image.open(io.BytesIO(drawn(f"Sheet number {number}"))) for number in range(SHEETS)]
    buffer = io.BytesIO()
    sheets[0].save(buffer, "TIFF", save_all=True, append_images=sheets[1:], compression="tiff_deflate")
    return buffer.getvalue()


@pytest.fixture
def engine_paused(fleet: Any) -> Callable[[], AbstractContextManager[None]]:
    """Holds the engine still for a block, so that what is submitted meanwhile waits together."""

    @contextmanager
    def paused() -> Iterator[None]:
        pid = fleet.pid("engine")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    return paused


@pytest.fixture
def under_way(fleet: Any, long_document: bytes, eventually: Callable[..., Any]) -> Job[Document]:
    """A job of which some pages are read and most are not."""
    job: Job[Document] = fleet.client.submit(ReadDocument(long_document), priority=Lane.BULK)
    eventually(lambda: job.refresh().progress.done >= 2)
    assert not job.done
    return job


def expect_fleet_goes_on(fleet: Any, drawn: Draw) -> None:
    document = fleet.client.submit(ReadDocument(drawn("The fleet goes on"))).result(WAIT_S)
    assert document.text == "The fleet goes on"


def count_results(fleet: Any, job: Job[Any]) -> int:
    [(count,)] = fleet.query("SELECT count(*) FROM results WHERE job_id = %s", job.id)
    assert isinstance(count, int)
    return count


def start_of(fleet: Any, job: Job[Any]) -> datetime:
    [(at,)] = fleet.query("SELECT started_at FROM parts WHERE job_id = %s", job.id)
    assert isinstance(at, datetime)
    return at


# Lanes


def test_lanes_are_served_in_their_order(
    fleet: Any, drawn: Draw, engine_paused: Callable[[], AbstractContextManager[None]]
) -> None:
    task = ReadDocument(drawn("In order of urgency"))
    with engine_paused():
        waiting = {
            lane: fleet.client.submit_many([task] * 6, priority=lane)
            for lane in (Lane.BULK, Lane.NORMAL, Lane.URGENT)
        }
    for jobs in waiting.values():
        jobs.wait(WAIT_S)

    starts = {lane: [start_of(fleet, job) for job in jobs] for lane, jobs in waiting.items()}
    assert max(starts[Lane.URGENT]) <= min(starts[Lane.NORMAL])
    assert max(starts[Lane.NORMAL]) <= min(starts[Lane.BULK])
    assert max(starts[Lane.URGENT]) < min(starts[Lane.BULK])


def test_an_urgent_page_overtakes_a_backlog_of_bulk_pages(
    fleet: Any, drawn: Draw, under_way: Job[Document]
) -> None:
    urgent = fleet.client.submit(ReadDocument(drawn("Read me first")), priority=Lane.URGENT)

    assert urgent.result(WAIT_S).text == "Read me first"

    assert under_way.refresh().progress.finished < SHEETS
    assert len(under_way.result(WAIT_S).pages) == SHEETS


# Cancel and retry


def test_a_cancelled_job_stops_and_its_pages_stay(fleet: Any, drawn: Draw, under_way: Job[Document]) -> None:
    assert under_way.cancel(reason="sent twice")
    read = count_results(fleet, under_way)
    expect_fleet_goes_on(fleet, drawn)

    assert under_way.state is JobState.CANCELLED
    assert count_results(fleet, under_way) == under_way.refresh().progress.done == read
    assert under_way.progress.done + under_way.progress.cancelled == SHEETS
    assert [event.reason for event in under_way.events()][-1] == "sent twice"
    with pytest.raises(JobCancelledError):
        under_way.result(timeout=0)


def test_a_job_is_cancelled_once(fleet: Any, drawn: Draw) -> None:
    job = fleet.client.submit(ReadDocument(drawn("Not today")), not_before=timedelta(hours=1))

    assert job.cancel()
    assert not job.cancel()


def test_a_cancelled_job_that_is_tried_again_reads_only_what_is_missing(
    fleet: Any, under_way: Job[Document]
) -> None:
    under_way.cancel()
    query = "SELECT ordinal, attempt, created_at FROM results WHERE job_id = %s ORDER BY ordinal"
    before = fleet.query(query, under_way.id)
    assert 0 < len(before) < SHEETS

    document = under_way.retry().result(WAIT_S)

    assert [page.text for page in document.pages] == [f"Sheet number {number}" for number in range(SHEETS)]
    after = fleet.query(query, under_way.id)
    assert len(after) == SHEETS
    assert set(before) <= set(after)
    with pytest.raises(RetryRefusedError):
        under_way.retry()


# Time


def test_a_job_does_not_start_before_its_time(fleet: Any, drawn: Draw) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1.5)

    job = fleet.client.submit(ReadDocument(drawn("In due time")), not_before=due)

    assert job.result(WAIT_S).text == "In due time"
    assert start_of(fleet, job) >= due


def test_a_job_whose_time_is_over_is_read_by_nobody(
    fleet: Any, drawn: Draw, engine_paused: Callable[[], AbstractContextManager[None]]
) -> None:
    with engine_paused():
        job = fleet.client.submit(ReadDocument(drawn("Too late")), expires=timedelta(seconds=0.5))
        job.wait(WAIT_S)
    expect_fleet_goes_on(fleet, drawn)

    assert job.refresh().state is JobState.EXPIRED
    assert count_results(fleet, job) == 0
    with pytest.raises(JobExpiredError):
        job.result(timeout=0)


def test_an_expired_job_that_is_tried_again_has_all_the_time_it_needs(fleet: Any, drawn: Draw) -> None:
    job = fleet.client.submit(
        ReadDocument(drawn("Better late")), not_before=timedelta(hours=1), expires=timedelta(seconds=0.1)
    )
    assert job.wait(WAIT_S).state is JobState.EXPIRED

    assert job.retry().result(WAIT_S).text == "Better late"
