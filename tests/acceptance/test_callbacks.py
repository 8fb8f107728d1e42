"""Whoever asked to be called back is called once for each job, with a signature, and hears nothing of the document."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import standardwebhooks

from limits import WAIT_S
from pecia import JobState, NoticeType, ReadDocument, Webhook
from pecia.errors import WebhookVerificationError
from pecia.webhooks import verify

Draw = Callable[[str], bytes]


def deliveries(fleet: Any, jobs: list[UUID]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = fleet.query(
        "SELECT id::text, state, attempts, last_error FROM deliveries WHERE job_id = ANY(%s)", jobs
    )
    return rows


def are_delivered(fleet: Any, jobs: list[UUID]) -> bool:
    return {state for _, state, *_ in deliveries(fleet, jobs)} == {"delivered"}


def test_every_job_calls_back_once_however_it_ended(
    fleet: Any, drawn: Draw, open_receiver: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    receiver = open_receiver()
    good = [ReadDocument(drawn(f"Call number {number}")) for number in range(5)]
    jobs = fleet.client.submit_many([*good, ReadDocument(b"no document")], webhook=receiver.url)
    ids = [job.id for job in jobs.wait(WAIT_S)]

    eventually(lambda: are_delivered(fleet, ids))

    notices = [verify(request.body, request.headers, fleet.webhook_secret) for request in receiver.received]
    assert sorted(notice.data.job_id for notice in notices) == sorted(ids)
    states = {notice.data.job_id: (notice.type, notice.data.state) for notice in notices}
    assert [states[job] for job in ids] == [
        *[(NoticeType.SUCCEEDED, JobState.SUCCEEDED)] * 5,
        (NoticeType.FAILED, JobState.FAILED),
    ]
    assert [(state, attempts) for _, state, attempts, _ in deliveries(fleet, ids)] == [("delivered", 1)] * 6


def test_a_cancelled_job_calls_back_too(
    fleet: Any, drawn: Draw, open_receiver: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    receiver = open_receiver()
    job = fleet.client.submit(
        ReadDocument(drawn("Never mind")), webhook=receiver.url, not_before=timedelta(hours=1)
    )

    job.cancel()

    eventually(lambda: receiver.received)
    notice = verify(receiver.received[0].body, receiver.received[0].headers, fleet.webhook_secret)
    assert (notice.type, notice.data.job_id) == (NoticeType.CANCELLED, job.id)


def test_only_the_chosen_events_are_told(
    fleet: Any, drawn: Draw, open_receiver: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    receiver = open_receiver()
    webhook = Webhook.model_validate({"url": receiver.url, "events": ["job.failed"]})
    sources = [drawn("All is well"), b"no document"]
    good, bad = fleet.client.submit_many(map(ReadDocument, sources), webhook=webhook).wait(WAIT_S)

    eventually(lambda: are_delivered(fleet, [bad.id]))

    assert deliveries(fleet, [good.id]) == []
    assert [json.loads(request.body)["type"] for request in receiver.received] == ["job.failed"]


def test_any_library_of_the_standard_verifies_the_call(
    fleet: Any, drawn: Draw, open_receiver: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    receiver = open_receiver()
    job = fleet.client.submit(
        ReadDocument(drawn("Paroxetine twenty")), webhook=receiver.url, metadata={"ward": "north"}
    )
    assert job.result(WAIT_S).text == "Paroxetine twenty"

    [request] = eventually(lambda: receiver.received)

    said = standardwebhooks.Webhook(fleet.webhook_secret).verify(request.body, request.headers)
    assert said["data"]["job_id"] == str(job.id)
    assert said["data"]["metadata"] == {"ward": "north"}
    assert b"Paroxetine" not in request.body
    forged = request.body.replace(b"north", b"south")
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(fleet.webhook_secret).verify(forged, request.headers)
    with pytest.raises(WebhookVerificationError):
        verify(forged, request.headers, fleet.webhook_secret)


def test_a_receiver_that_was_down_is_called_again_under_the_same_id(
    fleet: Any, drawn: Draw, open_receiver: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    job = fleet.client.submit(ReadDocument(drawn("Ring again")), webhook=f"http://127.0.0.1:{port}/hook")
    [(delivery, *_)] = eventually(lambda: [row for row in deliveries(fleet, [job.id]) if row[3]])

    receiver = open_receiver(port)

    [request] = eventually(lambda: receiver.received)
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["webhook-id"] == delivery
    assert verify(request.body, request.headers, fleet.webhook_secret).data.job_id == job.id
    eventually(lambda: are_delivered(fleet, [job.id]))
    [(_, _, attempts, _)] = deliveries(fleet, [job.id])
    assert attempts > 1
    assert len(receiver.received) == 1
