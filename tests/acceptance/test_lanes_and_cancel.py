"""Who is served first, and jobs that end before their time, over a whole fleet."""

import io
import os
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from limits import WAIT_S
from pecia import Document, Job, JobCancelledError, JobState, Lane, ReadDocument
from pictures import encoded

pytestmark = pytest.mark.gate

SHEETS = 20 * (os.cpu_count() or 1)  # a second or two of work, however many read

Draw = Callable[[str], bytes]


@pytest.fixture(scope="module")
def long_document(drawn: Draw) -> bytes:
    sheets = [Image.open(io.BytesIO(drawn(f"Sheet number {number}"))) for number in range(SHEETS)]
    return encoded(sheets[0], "TIFF", save_all=True, append_images=sheets[1:], compression="tiff_deflate")


@pytest.fixture
def under_way(fleet: Any, long_document: bytes, eventually: Callable[..., Any]) -> Job[Document]:
    """A job of which some pages are read and most are not."""
    job: Job[Document] = fleet.client.submit(ReadDocument(long_document), priority=Lane.BULK)
    eventually(lambda: job.refresh().progress.done >= 2)
    assert not job.done
    return job


def count_results(fleet: Any, job: Job[Any]) -> int:
    [(count,)] = fleet.query("SELECT count(*) FROM results WHERE job_id = %s", job.id)
    assert isinstance(count, int)
    return count


def test_an_urgent_page_overtakes_a_backlog_of_bulk_pages(
    fleet: Any, drawn: Draw, under_way: Job[Document]
) -> None:
    urgent = fleet.client.submit(ReadDocument(drawn("Read me first")), priority=Lane.URGENT)

    assert urgent.result(WAIT_S).text == "Read me first"

    assert under_way.refresh().progress.finished < SHEETS
    assert len(under_way.result(WAIT_S).pages) == SHEETS


def test_a_cancelled_job_stops_and_its_pages_stay(fleet: Any, drawn: Draw, under_way: Job[Document]) -> None:
    assert under_way.cancel(reason="sent twice")
    read = count_results(fleet, under_way)
    assert fleet.client.submit(ReadDocument(drawn("And on"))).result(WAIT_S).text == "And on"

    assert under_way.state is JobState.CANCELLED
    assert count_results(fleet, under_way) == under_way.refresh().progress.done == read
    assert under_way.progress.done + under_way.progress.cancelled == SHEETS
    assert [event.reason for event in under_way.events()][-1] == "sent twice"
    with pytest.raises(JobCancelledError):
        under_way.result(timeout=0)
