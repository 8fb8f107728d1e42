"""What is signed can be verified, by us and by libraries of others, and nothing else."""

import base64
import json
import socket
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks

from pecia.errors import ConfigurationError, WebhookVerificationError
from pecia.webhooks import verify
from pecia_schemas.states import new_id
from pecia_workers.outgoing.webhooks import SignedNotice, sign
from tests.shared.command import run_pecia
from tests.shared.limits import WAIT_S
from tests.shared.npm_files import installed, tools

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
    return sign(DELIVERY, notice(), [secret], at=at)


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
    request = sign(DELIVERY, {"type": "news"}, [SECRET])
    assert "update pecia" in refused(request.body, request.headers)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_a", "whsec_é"])
def test_a_secret_that_is_no_key_is_the_receivers_own_mistake(secret: str) -> None:
    request = signed()
    with pytest.raises(ConfigurationError, match="whsec_"):
        verify(request.body, request.headers, secret)


VERIFIERS = Path(__file__).parents[1] / "shared" / "verifiers"
FORMER = "whsec_" + base64.b64encode(b"o" * 24).decode()
NOTICE = {"type": "job.succeeded", "data": {"metadata": {"ward": "café 3 \u2028 漢字"}}}

Verify = Callable[[SignedNotice, str], Any]


def by_npm(name: str, request: SignedNotice, secret: str) -> Any:
    node, folder = tools()[0], installed(VERIFIERS)
    told = json.dumps({"secret": secret, "headers": dict(request.headers), "body": request.body.decode()})
    command = [node, "verify.cjs", name]
    ran = subprocess.run(
        command, cwd=folder, input=told.encode(), capture_output=True, check=True, timeout=WAIT_S
    )
    return json.loads(ran.stdout)


def by_python(request: SignedNotice, secret: str) -> Any:
    try:
        return standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))
    except standardwebhooks.WebhookVerificationError as error:
        return {"refused": str(error)}


@pytest.fixture(params=["standardwebhooks", "svix", "python"])
def library(request: pytest.FixtureRequest) -> Verify:
    """A library of others that receivers verify callbacks with: what a request holds, or `{"refused": why}`."""
    return by_python if request.param == "python" else partial(by_npm, request.param)


def signed_by(*secrets: str, at: datetime | None = None) -> SignedNotice:
    return sign(new_id(), NOTICE, secrets, at=at)


@pytest.mark.gate
def test_a_library_verifies_what_we_sign(library: Verify) -> None:
    assert library(signed_by(SECRET), SECRET) == NOTICE


@pytest.mark.gate
def test_a_library_verifies_by_either_secret_while_it_is_rotated(library: Verify) -> None:
    request = signed_by(SECRET, FORMER)
    assert [library(request, secret) for secret in (SECRET, FORMER)] == [NOTICE, NOTICE]


@pytest.mark.gate
def test_a_library_refuses_what_was_changed_or_signed_by_another_secret_or_long_ago(library: Verify) -> None:
    request = signed_by(SECRET)
    changed = SignedNotice(body=json.dumps({}).encode(), headers=request.headers)
    old = signed_by(SECRET, at=datetime.now(UTC) - timedelta(minutes=6))
    answers = [library(changed, SECRET), library(request, FORMER), library(old, SECRET)]
    assert [list(answer) for answer in answers] == [["refused"]] * 3


def test_a_listener_that_cannot_listen_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for secret, said in (
            (SECRET, "Address already in use: choose another by --port"),
            ("whsec_%%%", "is invalid"),
        ):
            port = str(taken.getsockname()[1])
            ran = run_pecia("webhook", "listen", "--port", port, "--secret", secret)
            assert (ran.returncode, said in ran.stderr, "fault" in ran.stderr) == (4, True, False)
