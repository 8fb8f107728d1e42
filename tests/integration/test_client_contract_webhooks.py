"""What both kinds of client promise of endpoints and deliveries, which a fake fleet has not."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pecia import Client, Endpoint, InvalidOptionError, NoticeType, ReadDocument
from tests.shared.contract_fleets import client, fleet, gateway, real_fleet
from tests.shared.gateways import Gateway
from tests.shared.real_fleet import RealFleet
from tests.shared.snippets import ROOT, blocks

__all__ = ["client", "fleet", "gateway", "real_fleet"]

pytestmark = pytest.mark.servers

PDF = b"%PDF-1.7"
HOOK = "https://example.org/hook"


@pytest.fixture
def endpoint(client: Client) -> Iterator[Endpoint]:
    added = client.add_endpoint(HOOK)
    yield added
    for one in client.endpoints():
        client.remove_endpoint(one)


def test_an_endpoint_is_told_how_every_job_ends(fleet: Any, client: Client, endpoint: Endpoint) -> None:
    read = client.submit(ReadDocument(PDF), metadata={"ward": "7"})
    cancelled = client.submit(ReadDocument(PDF), webhook="https://example.org/own")
    cancelled.cancel()
    fleet.finish(read)
    sent = [(one.url, one.notice.type) for one in fleet.callbacks]
    assert sorted(sent[:2]) == [(HOOK, "job.cancelled"), ("https://example.org/own", "job.cancelled")]
    assert sent[2:] == [(HOOK, "job.succeeded")]
    assert fleet.callbacks[2].notice.data.metadata == {"ward": "7"}
    assert NoticeType.PART_DONE not in endpoint.events
    deliveries = client.deliveries(job=cancelled)
    assert {one.endpoint_id for one in deliveries} == {endpoint.id, None}
    assert len({one.id for one in deliveries}) == 2

    test = client.test_endpoint(endpoint)
    assert (test.type, test.job_id, test.endpoint_id) == (NoticeType.TEST, None, endpoint.id)
    assert fleet.callbacks[3].notice.type is NoticeType.TEST
    assert client.delivery(test.id).id == test.id


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


def test_deliveries_come_newest_first_and_go_with_their_endpoint(
    fleet: Any, client: Client, endpoint: Endpoint
) -> None:
    jobs = [client.submit(ReadDocument(PDF)) for _ in range(3)]
    for job in jobs:
        job.cancel()
    fleet.fan_out()
    assert [one.job_id for one in client.deliveries()] == [job.id for job in reversed(jobs)]
    (delivery,) = client.deliveries(job=jobs[0], endpoint=endpoint, since=timedelta(hours=1))
    assert client.delivery(delivery) == delivery
    assert len(client.deliveries(limit=2)) == 2
    assert client.deliveries(endpoint=uuid4()) == client.deliveries(state="dead") == []
    client.remove_endpoint(endpoint.id)
    with pytest.raises(InvalidOptionError):
        client.delivery(delivery)


def test_a_gateway_refuses_more_deliveries_than_it_shows(gateway: Gateway) -> None:
    _, key = gateway.key()
    with Client(gateway.url, api_key=key) as remote:
        assert remote.deliveries(limit=500) == []
        with pytest.raises(InvalidOptionError, match="at most 500 deliveries"):
            remote.deliveries(limit=501)


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


def test_what_is_not_there_or_cannot_be_meant_is_refused(client: Client, endpoint: Endpoint) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: client.remove_endpoint(uuid4()),
        lambda: client.rotate_endpoint(uuid4()),
        lambda: client.rotate_endpoint(endpoint, overlap=timedelta(-1)),
        lambda: client.rotate_endpoint(endpoint, overlap=timedelta.max),
        lambda: client.test_endpoint("nonsense"),
        lambda: client.delivery(uuid4()),
        lambda: client.deliveries(state="lost"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: client.deliveries(limit=-1),
        lambda: client.replay([uuid4()]),
    ]
    assert client.deliveries(limit=0) == []
    for call in calls:
        with pytest.raises(InvalidOptionError):
            call()


def test_the_snippets_on_webhooks_run_one_after_the_other(real_fleet: RealFleet) -> None:
    real_fleet.kind = Client
    names: dict[str, Any] = {"client": real_fleet.client(), "timedelta": timedelta}
    first, *others = blocks((ROOT / "docs" / "webhooks.md").read_text(), "python")
    exec(first, names)  # noqa: S102  the page
    real_fleet.client().submit(ReadDocument(PDF))
    real_fleet.finish()
    (callback,) = real_fleet.callbacks
    names |= {"headers": callback.headers, "body": callback.body, "secret": real_fleet.webhook_secret}
    for block in others:
        exec(block, names)  # noqa: S102  the page
    assert names["notice"].type == "part.done"
    assert names["client"].endpoints() == []
    real_fleet.empty()
