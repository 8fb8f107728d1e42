"""What is signed can be verified, and nothing else."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import SecretStr

from pecia.errors import ConfigurationError, WebhookVerificationError
from pecia.webhooks import verify
from pecia_schemas.events import NoticeType
from pecia_schemas.states import JobState, new_id
from pecia_workers.webhooks import SignedNotice, Signer

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()
DELIVERY = new_id()


def notice() -> dict[str, Any]:
    now = "2026-11-01T12:00:00+00:00"
    return {
        "type": "job.succeeded",
        "timestamp": now,
        "data": {
            "job_id": str(new_id()),
            "kind": "document.read",
            "state": "succeeded",
            "lane": "normal",
            "progress": {"total": 1, "done": 1, "failed": 0, "cancelled": 0},
            "failure": None,
            "metadata": {"ward": "café 3"},
            "created_at": now,
            "finished_at": now,
        },
    }


def signed(*, secret: str = SECRET, at: datetime | None = None) -> SignedNotice:
    return Signer(SecretStr(secret)).sign(DELIVERY, notice(), at=at)


def test_a_notice_comes_back_as_it_was_signed() -> None:
    request = signed()
    received = verify(request.body, request.headers, SECRET)
    assert received.type is NoticeType.SUCCEEDED
    assert received.data.state is JobState.SUCCEEDED
    assert received.data.metadata == {"ward": "café 3"}
    assert request.headers["webhook-id"] == str(DELIVERY)
    assert "café".encode() in request.body


def test_the_case_of_names_other_signatures_and_the_zone_of_the_time_do_not_matter() -> None:
    request = signed(at=datetime.now(timezone(timedelta(hours=9))))
    own, other = (one.headers["webhook-signature"] for one in (request, signed(secret=OTHER)))
    headers = {**request.headers, "webhook-signature": f"v1a,xyz {other} {own}"}
    assert verify(request.body, {name.title(): value for name, value in headers.items()}, SECRET)


def refused(body: bytes, headers: Mapping[str, str], secret: str = SECRET) -> str:
    with pytest.raises(WebhookVerificationError) as caught:
        verify(body, headers, secret)
    assert caught.value.__cause__ is None
    return str(caught.value)


CHANGES: list[tuple[str, str | None]] = [
    *((name, None) for name in ("webhook-id", "webhook-timestamp", "webhook-signature")),
    ("webhook-id", "another"),
    *(("webhook-signature", value) for value in ("", "v1", "v1,", "v1,%%%", "v1,é", ",,,", "v2,abcd")),
    *(("webhook-timestamp", value) for value in ("nan", "1e999", "soon", "-1")),
]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_a_header_that_is_missing_or_makes_no_sense_does_not_verify(name: str, value: str | None) -> None:
    request = signed()
    others = {key: told for key, told in request.headers.items() if key != name}
    refused(request.body, others if value is None else {**others, name: value})


@pytest.mark.parametrize("age", [timedelta(minutes=6), timedelta(minutes=-6)])
def test_a_notice_from_long_ago_or_the_future_does_not_verify(age: timedelta) -> None:
    request = signed(at=datetime.now(UTC) - age)
    refused(request.body, request.headers)


def test_another_time_body_or_secret_does_not_verify() -> None:
    request = signed()
    later = str(int(request.headers["webhook-timestamp"]) + 1)
    refused(request.body, {**request.headers, "webhook-timestamp": later})
    refused(request.body, request.headers, OTHER)
    refused(request.body.replace(b"succeeded", b"cancelled"), request.headers)
    refused(b"\xff\xfe", request.headers)


def test_a_signed_body_that_is_no_notice_is_told_apart() -> None:
    request = Signer(SecretStr(SECRET)).sign(DELIVERY, {"type": "news"})
    assert "update pecia" in refused(request.body, request.headers)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_a", "whsec_é"])
def test_a_secret_that_is_no_key_is_the_receivers_own_mistake(secret: str) -> None:
    request = signed()
    with pytest.raises(ConfigurationError, match="whsec_"):
        verify(request.body, request.headers, secret)
