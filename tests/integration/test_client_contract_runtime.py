"""The worker that runs in production tells of its jobs what a fake fleet tells of them."""

from collections import Counter
from typing import Any

import pytest

from fixture_types import Picture
from hand_made_pdfs import blank_pdf
from house import House
from limits import WAIT_S
from pecia import Client, FailureCode, Job, ReadDocument
from pecia.testing import FakeFleet


def told(job: Job[Any]) -> Any:
    """What can be seen of a job that is over, but for ids, times, names and text."""
    events = [
        (event.state, event.attempt, event.reason, event.part_id is None)
        for event in job.events(timeout=WAIT_S)
    ]
    pages = [page.number for page in job.pages(timeout=WAIT_S)] if job.state.has_result else []
    code = job.failure.code if job.failure else None
    return job.state, job.progress, code, pages, Counter(events), [event for event in events if event[3]]


@pytest.mark.usefixtures("shared_template")
def test_a_real_worker_and_a_fake_fleet_agree(client: Client, house: House, picture: Picture) -> None:
    document, scan, sheet = blank_pdf(3), picture(), b"name;dose"
    answers: dict[bytes, Any] = {document: ["1", "2", "3"], scan: "x", sheet: FailureCode.UNSUPPORTED_TYPE}
    tasks = [
        ReadDocument(document),
        ReadDocument(document, pages="1,3"),
        ReadDocument(document, pages="7"),
        ReadDocument(scan),
        ReadDocument(sheet),
    ]
    real = client.submit_many(tasks)
    house.work_off()
    with FakeFleet() as fleet:
        fleet.answers(ReadDocument, lambda task: answers[task.source])
        fake = fleet.client().submit_many(tasks)
        assert [told(job) for job in fake.wait(WAIT_S)] == [told(job) for job in real.wait(WAIT_S)]
