"""Whoever asked to be called back is called once for each job, with a signature, and hears nothing of the document."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from fixture_types import Draw, Eventually
from limits import WAIT_S
from pecia import JobState, NoticeType, ReadDocument
from pecia.webhooks import verify


def deliveries(fleet: Any, jobs: list[UUID]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = fleet.query(
        "SELECT id::text, state, attempts, last_error FROM deliveries WHERE job_id = ANY(%s)", jobs
    )
    return rows


def test_every_job_calls_back_once_however_it_ended(
    fleet: Any, drawn: Draw, open_receiver: Callable[..., Any], eventually: Eventually
) -> None:
    receiver = open_receiver()
    good = [ReadDocument(drawn(f"Call number {number}")) for number in range(5)]
    jobs = fleet.client.submit_many([*good, ReadDocument(b"no document")], webhook=receiver.url)
    ids = [job.id for job in jobs.wait(WAIT_S)]

    eventually(lambda: {state for _, state, *_ in deliveries(fleet, ids)} == {"delivered"})

    notices = [verify(request.body, request.headers, fleet.webhook_secret) for request in receiver.requests]
    assert sorted(notice.data.job_id for notice in notices) == sorted(ids)
    states = {notice.data.job_id: (notice.type, notice.data.state) for notice in notices}
    assert [states[job] for job in ids] == [
        *[(NoticeType.SUCCEEDED, JobState.SUCCEEDED)] * 5,
        (NoticeType.FAILED, JobState.FAILED),
    ]
    assert [(state, attempts) for _, state, attempts, _ in deliveries(fleet, ids)] == [("delivered", 1)] * 6
