"""`pecia webhook`: endpoints, what they were told, and a receiver to try them with."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from limits import WAIT_S
from pecia import Client, ReadDocument
from pecia.cli.app import app
from pecia.endpoints import body_of_test
from pecia_schemas.states import new_id
from pecia_workers.webhooks import Signer
from receivers import SECRET, Answer, Receiver, receiver, settings_for, working

__all__ = ["receiver"]

Pecia = Callable[..., Result]


@pytest.fixture
def pecia(stores: dict[str, str]) -> Pecia:
    return lambda *arguments: CliRunner().invoke(app, ["webhook", *arguments], env=stores)


def added(pecia: Pecia, url: str, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(pecia("add", url, "--json", *options).stdout)
    return made


def lines(told: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.stdout.splitlines()]


def test_an_endpoint_is_added_listed_rotated_and_removed(pecia: Pecia) -> None:
    said = pecia("add", "https://example.org/hook", "--event", "job.failed").stdout
    found = re.fullmatch(r"endpoint (\S+)\nsecret   (whsec_\S+)\n", said)
    assert found
    (listed,) = lines(pecia("list", "--json"))
    assert (listed["id"], listed["events"], "secret" in listed) == (found[1], ["job.failed"], False)
    assert "well" in pecia("list").stdout
    rotated = pecia("rotate", found[1], "--overlap", "2h").stdout
    assert found[2] not in rotated
    assert "former secret too" in rotated
    assert pecia("remove", found[1]).exit_code == 0
    assert pecia("list", "--json").stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "nowhere"),
        ("remove", str(uuid4())),
        ("rotate", str(uuid4()), "--overlap", "soon"),
        ("replay",),
    ],
)
def test_what_cannot_be_meant_is_refused(pecia: Pecia, arguments: tuple[str, ...]) -> None:
    assert pecia(*arguments).exit_code != 0


def test_a_test_says_how_it_went(pecia: Pecia, receiver: Receiver, stores: dict[str, str]) -> None:
    endpoint = added(pecia, receiver.url)["id"]
    receiver.planned = [Answer(), Answer(500, text="out of order")]
    with capture_logs(), working(settings_for(stores["PECIA_DATABASE_URL"], webhook_attempts=1)):
        well, broken = pecia("test", endpoint, "--json"), pecia("test", endpoint, "--json")
    (delivered,), (refused,) = lines(well), lines(broken)
    assert (well.exit_code, delivered["state"], delivered["type"]) == (0, "delivered", "webhook.test")
    assert (broken.exit_code, refused["attempts"][0]["reply"]) == (1, "out of order")


def test_a_test_that_nobody_tries_says_so(pecia: Pecia, receiver: Receiver) -> None:
    told = pecia("test", added(pecia, receiver.url)["id"], "--timeout", "0.3")
    assert told.exit_code == 3
    assert "webhook worker" in told.output


def test_dead_deliveries_are_shown_try_by_try_and_replayed(  # noqa: PLR0917  fixtures
    pecia: Pecia,
    client: Client,
    picture: Callable[..., bytes],
    receiver: Receiver,
    stores: dict[str, str],
    eventually: Callable[..., Any],
) -> None:
    endpoint = added(pecia, receiver.url)["id"]
    receiver.planned = [Answer(500, text="no room")]
    client.submit(ReadDocument(picture())).cancel()
    with capture_logs(), working(settings_for(stores["PECIA_DATABASE_URL"], webhook_attempts=1)):
        eventually(lambda: client.deliveries(state="dead"))
        (dead,) = lines(pecia("deliveries", "--state", "dead", "--endpoint", endpoint, "--json"))
        assert dead["last_error"] == "http_500"
        assert "no room" in pecia("deliveries", dead["id"]).stdout
        assert pecia("replay", "--all").stdout == "1 deliveries go out again.\n"
        eventually(lambda: client.deliveries(state="delivered"))
    assert pecia("replay", "--all").stdout == "0 deliveries go out again.\n"


def post(url: str, secret: str) -> int:
    """Send a signed notice and return the status of the answer."""
    notice = body_of_test() | {"timestamp": "2026-11-21T12:00:00Z"}
    signed = Signer(SecretStr(secret)).sign(new_id(), notice)
    request = Request(url, data=signed.body, headers=dict(signed.headers))  # noqa: S310  loopback
    try:
        with urlopen(request, timeout=WAIT_S) as reply:  # noqa: S310
            return int(reply.status)
    except HTTPError as refusal:
        return refusal.code


def test_a_listener_prints_what_verifies_and_refuses_the_rest() -> None:
    options = ["--port", "0", "--secret", SECRET, "--count", "3", "--json"]
    command = [sys.executable, "-m", "pecia", "webhook", "listen", *options]
    secrets = (SECRET, "whsec_" + "bm90aGVybm90aGVybm90aGVybm90aGVy", SECRET)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stderr
            url = listener.stderr.readline().removeprefix("Listening on ").strip()
            statuses = [post(url, secret) for secret in secrets]
            told, complaints = listener.communicate(timeout=WAIT_S)
        finally:
            listener.kill()
    assert statuses == [204, 401, 204]
    assert [json.loads(line)["type"] for line in told.splitlines()] == ["webhook.test"] * 2
    assert "not signed with this secret" in complaints
    assert listener.returncode == 0


def test_a_listener_without_a_secret_says_what_to_set(pecia: Pecia) -> None:
    told = pecia("listen")
    assert told.exit_code == 2
    assert "PECIA_WEBHOOK_SECRET" in told.output
