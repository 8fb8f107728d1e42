"""One process whose wall clock is wrong: nothing is refused, removed, expired or sent for that reason."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pecia import Client, ClientSettings
from pecia.webhooks import verify
from pecia_workers.ledger.retention import StraySearch
from pecia_workers.outgoing.sources import Buckets
from pecia_workers.protocol.parts import StorageUnavailableError
from tests.shared.clocks import clock_wrong_by
from tests.shared.document_server import Answer, handing_out
from tests.shared.fetching import fetch
from tests.shared.gateways import serving
from tests.shared.house import House
from tests.shared.limits import eventually
from tests.shared.receivers import SECRET, Outbox, Receiver, outbox, receiver

__all__ = ["outbox", "receiver"]

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WRONG = pytest.mark.parametrize("ahead", [-2 * DAY, -HOUR, HOUR, 2 * DAY], ids=str)


@WRONG
def test_a_callback_is_signed_and_kept_with_the_true_time(
    outbox: Outbox, receiver: Receiver, ahead: timedelta
) -> None:
    delivery = outbox.promise(receiver.url)
    with clock_wrong_by(ahead), outbox.working():
        eventually(lambda: outbox.state(delivery) == "delivered")
    (request,) = receiver.requests
    assert verify(request.body, request.headers, SECRET)
    ((row),) = outbox.query(
        "SELECT at < now() AND at > now() - interval '5 minutes' AS good FROM delivery_attempts"
    )
    assert row["good"]


@WRONG
def test_a_document_that_was_just_stored_is_not_old(
    client: Client, house: House, payload_url: str, ahead: timedelta
) -> None:
    store = client._open().payloads
    name = store.put(b"a submit is about to name it").sha256
    path = Path(payload_url) / "sha256" / name[:2] / name
    written = (
        datetime.now(UTC) + min(ahead, timedelta())
    ).timestamp()  # by this machine's clock if that is behind
    os.utime(path, (written, written))

    async def search_all(database: AsyncEngine) -> int:
        search = StraySearch(house.settings(keep_payloads=DAY))
        return sum([await search(database) for _ in range(256)])

    with clock_wrong_by(ahead):
        assert house.ask(search_all) == 0
    assert path.exists()


@WRONG
def test_a_key_opens_until_its_time_and_no_longer(house: House, ahead: timedelta) -> None:
    settings = ClientSettings().with_stores(**house.urls)
    with clock_wrong_by(ahead), serving(settings) as gateway:
        now = datetime.now(UTC)  # this module's is right
        good, past = gateway.bearer(expires_at=now + HOUR / 2), gateway.bearer(expires_at=now - HOUR / 2)
        assert good.get("/v1/key").status_code == 200
        assert past.get("/v1/key").status_code == 401


def test_a_bucket_that_refuses_a_wrong_clock_refuses_no_document(s3_options: dict[str, str]) -> None:
    answer = Answer(b"<Error><Code>RequestTimeTooSkewed</Code></Error>", status=403)
    with handing_out() as server:
        server.plan("/archive/scan.pdf", answer)
        options = s3_options | {"endpoint": server.url("")}
        with pytest.raises(StorageUnavailableError, match="RequestTimeTooSkewed"):
            fetch(Buckets, "s3://archive/scan.pdf", source_options=options, source_buckets=("archive",))
