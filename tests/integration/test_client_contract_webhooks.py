"""What both kinds of client promise of endpoints and deliveries, on a fake fleet as on a real one."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from contract_fleets import client, fleet, gateway, real_fleet
from pecia import (
    CaptionVideo,
    Client,
    Document,
    Endpoint,
    InvalidOptionError,
    NoticeType,
    Page,
    ReadDocument,
    Verdict,
    Webhook,
)

__all__ = ["client", "fleet", "gateway", "real_fleet"]

PDF = b"%PDF-1.7"
HOOK = "https://example.org/hook"


@pytest.fixture
def endpoint(client: Client) -> Iterator[Endpoint]:
    added = client.add_endpoint(HOOK)
    yield added
    for one in client.endpoints():
        client.remove_endpoint(one)


def notices(fleet: Any) -> list[tuple[Any, ...]]:
    return [(one.url, one.notice.type, one.notice.data.job_id) for one in fleet.callbacks]


def test_an_endpoint_is_told_how_every_job_ends(fleet: Any, client: Client, endpoint: Endpoint) -> None:
    read = client.submit(ReadDocument(PDF), metadata={"ward": "7"})
    client.submit(ReadDocument(PDF)).cancel()
    fleet.finish(read)
    assert [kind for _, kind, _ in notices(fleet)] == ["job.cancelled", "job.succeeded"]
    assert fleet.callbacks[1].notice.data.metadata == {"ward": "7"}
    assert {url for url, _, _ in notices(fleet)} == {endpoint.url}
    assert NoticeType.PART_DONE not in endpoint.events


def test_a_job_with_a_webhook_of_its_own_is_told_to_both(
    fleet: Any, client: Client, endpoint: Endpoint
) -> None:
    job = client.submit(ReadDocument(PDF), webhook="https://example.org/own")
    job.cancel()
    assert {url for url, _, _ in notices(fleet)} == {endpoint.url, "https://example.org/own"}
    assert {one.endpoint_id for one in client.deliveries(job=job)} == {endpoint.id, None}
    assert len({one.id for one in client.deliveries(job=job)}) == 2


def test_parts_are_told_to_who_asks_for_them_in_an_order_that_can_be_told(fleet: Any, client: Client) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    hook = Webhook.model_validate({"url": HOOK, "events": ["part.done", "job.succeeded"]})
    job = client.submit(ReadDocument(PDF), webhook=hook)
    fleet.finish(job)
    told = sorted((one.notice for one in fleet.callbacks), key=lambda notice: notice.data.sequence)
    assert [notice.type for notice in told] == ["part.done", "part.done", "job.succeeded"]
    assert [notice.data.part and notice.data.part.number for notice in told] == [1, 2, None]
    assert [notice.data.progress.done for notice in told] == [1, 2, 2]
    assert [notice.data.state for notice in told] == ["running", "running", "succeeded"]
    assert [notice.data.finished_at is None for notice in told] == [True, True, False]
    ends = [event for event in job.events() if event.state == "done" and event.part_id]
    of_parts = {notice.data.part.id: notice.data.sequence for notice in told if notice.data.part}
    assert of_parts == {event.part_id: event.sequence for event in ends if event.part_id in of_parts}
    assert told[-1].data.sequence == list(job.events())[-1].sequence


def test_a_notice_says_how_many_pages_need_review(fleet: Any, client: Client) -> None:
    verdicts = ["ok", "review", "blank", "incomplete"]
    pages = tuple(
        Page(number=number, verdict=Verdict(verdict), width=10, height=20, engine="e")
        for number, verdict in enumerate(verdicts, 1)
    )
    fleet.answers(ReadDocument, Document(pages=pages))
    job = client.submit(ReadDocument(PDF), webhook=HOOK)
    fleet.finish(job)
    assert [one.notice.data.needs_review for one in fleet.callbacks] == [2]


def test_a_summary_is_a_part_too(fleet: Any, client: Client) -> None:
    fleet.answers(CaptionVideo, segments=["one", "two"], summary="both")
    hook = Webhook.model_validate({"url": HOOK, "events": ["part.done"]})
    fleet.finish(client.submit(CaptionVideo(PDF), webhook=hook))
    parts = [one.notice.data.part for one in fleet.callbacks]
    assert [(part.stage, part.number) for part in parts] == [("caption", 1), ("caption", 2), ("summarize", 3)]


def test_what_was_there_before_an_endpoint_is_not_told_to_it(fleet: Any, client: Client) -> None:
    client.submit(ReadDocument(PDF)).cancel()
    client.remove_endpoint(client.add_endpoint(HOOK))
    client.submit(ReadDocument(PDF)).cancel()
    assert fleet.callbacks == []
    assert client.deliveries() == []


def test_a_secret_is_told_once(client: Client, endpoint: Endpoint) -> None:
    assert endpoint.secret is not None
    assert endpoint.secret not in repr(endpoint)
    assert [one.secret for one in client.endpoints()] == [None]
    again = client.rotate_endpoint(endpoint, overlap=timedelta(hours=2))
    assert again.secret not in (None, endpoint.secret)
    assert again.former_until is not None


def test_a_test_is_a_delivery_about_no_job(fleet: Any, client: Client, endpoint: Endpoint) -> None:
    sent = client.test_endpoint(endpoint)
    assert (sent.type, sent.job_id, sent.endpoint_id) == (NoticeType.TEST, None, endpoint.id)
    assert [one.notice.type for one in fleet.callbacks] == [NoticeType.TEST]
    assert client.delivery(sent.id).id == sent.id


def test_deliveries_come_newest_first_and_as_asked(client: Client, endpoint: Endpoint) -> None:
    jobs = [client.submit(ReadDocument(PDF)) for _ in range(3)]
    for job in jobs:
        job.cancel()
    assert [one.job_id for one in client.deliveries()] == [job.id for job in reversed(jobs)]
    assert [one.job_id for one in client.deliveries(job=jobs[0], endpoint=endpoint)] == [jobs[0].id]
    assert len(client.deliveries(limit=2)) == 2
    assert client.deliveries(endpoint=uuid4()) == client.deliveries(state="dead") == []


@pytest.mark.parametrize(
    ("url", "events"),
    [
        ("example.org", None),
        ("ftp://example.org", None),
        ("https://ward:secret@example.org/hook", None),
        (HOOK, []),
        (HOOK, ["job.lost"]),
        (HOOK, ["webhook.test"]),
    ],
)
def test_what_cannot_be_meant_is_no_endpoint(client: Client, url: str, events: Any) -> None:
    with pytest.raises(InvalidOptionError):
        client.add_endpoint(url, events=events)
    assert client.endpoints() == []


def test_an_endpoint_that_is_removed_takes_its_deliveries_along(client: Client, endpoint: Endpoint) -> None:
    job = client.submit(ReadDocument(PDF))
    job.cancel()
    (delivery,) = client.deliveries(endpoint=endpoint, since=timedelta(hours=1))
    assert client.delivery(delivery) == delivery
    client.remove_endpoint(endpoint.id)
    with pytest.raises(InvalidOptionError):
        client.delivery(delivery)


def test_what_is_not_there_or_cannot_be_meant_is_refused(client: Client, endpoint: Endpoint) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: client.remove_endpoint(uuid4()),
        lambda: client.rotate_endpoint(uuid4()),
        lambda: client.rotate_endpoint(endpoint, overlap=timedelta(-1)),
        lambda: client.test_endpoint("nonsense"),
        lambda: client.delivery(uuid4()),
        lambda: client.deliveries(state="lost"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: client.replay([uuid4()]),
    ]
    for call in calls:
        with pytest.raises(InvalidOptionError):
            call()
